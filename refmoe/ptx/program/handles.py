"""Which parameters of an entry are handles of textures or surfaces, and whether an object can be one of them.

It is known of a parameter whose value goes from its load to such instructions, and nowhere else. What is found before
a launch is what no lane could use: an instruction that some lanes may never reach refuses nothing by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from refmoe.ptx.program.registers import operands_of
from refmoe.ptx.state.textures import SurfaceObject, TextureObject
from refmoe.ptx.text.syntax import Address, Instruction, Symbol

_TEXTURES, _SURFACES = ("tex", "tld4", "txq"), ("suld", "sust", "sured", "suq")
_SPELLINGS = tuple(f"{stem}." for stem in (*_TEXTURES, *_SURFACES))
_ACCESS = re.compile(r"su(ld|st)\.b\.\w+(\.v(?P<count>[24]))?\.b(?P<bits>\d+)\.\w+")


def handle_uses(instructions: Iterable[Instruction]) -> dict[str, list[Instruction]]:
    """By parameter that is nothing but a handle, the instructions on textures and surfaces that take it."""
    instructions = list(instructions)
    # Most kernels have none, and the rest takes time.
    if not any(each.opcode.startswith(_SPELLINGS) for each in instructions):
        return {}
    loaded: dict[str, str] = {}
    written: dict[str, int] = {}
    used: dict[str, list[Instruction]] = {}
    other: set[str] = set()
    for each in instructions:
        stem = each.opcode.split(".")[0]
        writes, reads = operands_of(each)
        for register in writes:
            written[register.name] = written.get(register.name, 0) + 1
        source = each.operands[1] if each.opcode.startswith("ld.param") and len(each.operands) == 2 else None
        if isinstance(source, Address) and isinstance(source.base, Symbol) and len(writes) == 1:
            if source.offset or source.base.offset:
                other.add(writes[0].name)
            loaded[writes[0].name] = source.base.name
        handle = next((operand.base for operand in each.operands if isinstance(operand, Address)), None)
        for register in reads:
            if stem in (*_TEXTURES, *_SURFACES) and register == handle:
                used.setdefault(register.name, []).append(each)
            else:
                other.add(register.name)
    found: dict[str, list[Instruction]] = {}
    mixed = {loaded[name] for name in loaded if name in other or written[name] > 1}
    for name, parameter in loaded.items():
        if parameter not in mixed and name in used:
            found.setdefault(parameter, []).extend(used[name])
    return found


def misfit(uses: Iterable[Instruction], handle: int, objects: Mapping[int, TextureObject | SurfaceObject]) -> str:
    """Why no instruction can use a handle, or `""`; a null handle is for lanes that come to none."""
    uses = list(uses)
    if not handle:
        return ""
    found = objects.get(handle)
    textures = [each for each in uses if each.opcode.split(".")[0] in _TEXTURES]
    wanted = " or ".join(["a texture object"] * bool(textures) + ["a surface object"] * (len(textures) < len(uses)))
    if found is None:
        return f"0x{handle:X} is no texture or surface object; {wanted} needed"
    if isinstance(found, TextureObject):
        return "" if textures else f"a texture object; {wanted} needed"
    if len(textures) == len(uses):
        return f"a surface object; {wanted} needed"
    widths = {_width(each) for each in uses if each not in textures}
    if None in widths or found.resource.texels.texel_bytes in widths:
        return ""
    accesses = ", ".join(str(width) for width in sorted(width for width in widths if width))
    return f"a surface over {found.resource.texels}; the kernel accesses {accesses} bytes"


def _width(instruction: Instruction) -> int | None:
    """Bytes of a surface access; None where any surface will do."""
    match = _ACCESS.fullmatch(instruction.opcode)
    return None if match is None else int(match["bits"]) // 8 * int(match["count"] or 1)
