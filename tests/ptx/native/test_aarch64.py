"""All that becomes machine code becomes machine code of aarch64 too, by an LLVM on any host."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from ptx.native.test_mma import NARROW, SPELLINGS
from support.native.forms import source_kinds
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.native import compiler
from refmoe.ptx import isa
from refmoe.ptx.native import batch, clocks, consecutive, copies, mma, order, pages, scheduler
from refmoe.ptx.native.memory import variants
from refmoe.ptx.ops.evaluate import _module
from refmoe.ptx.ops.lanes import LaneBuilder
from refmoe.ptx.ops.table import exactness, lowering
from refmoe.silicon.opcodes import known_opcodes

TRIPLE = "aarch64-unknown-linux-gnu"
#: Machine of ELF's header, little endian at byte 18: EM_AARCH64.
EM_AARCH64 = 183
#: Type of an ELF section: a symbol table.
SHT_SYMTAB = 2
#: What code may call besides itself: these are there wherever Python is.
CALLED = {"memset", "memcpy", "memmove"}
#: Opcodes of one module: a module costs as much as many of them.
BATCH = 32
KERNEL = """.version 8.7
.target sm_120a
.address_size 64
.visible .entry sums(.param .u64 x, .param .u64 y) {
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<6>;
    .shared .align 4 .b8 held[128];
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
    mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
    mov.u32 %r2, held; shl.b32 %r3, %r1, 2; add.u32 %r2, %r2, %r3;
    ld.global.f32 %f1, [%rd4]; st.shared.f32 [%r2], %f1; bar.sync 0;
    mov.f32 %f2, 0f00000000; mov.u32 %r4, 0; mov.u32 %r5, held;
MORE:
    ld.shared.f32 %f3, [%r5]; fma.rn.f32 %f2, %f3, %f1, %f2;
    add.u32 %r5, %r5, 4; add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 32; @%p1 bra MORE;
    st.global.f32 [%rd5], %f2;
    ret;
}
"""


def machine(level: int) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu="generic", opt=level)


def code_for(text: str, level: int = compiler.LEVEL) -> bytes:
    """An object file for aarch64 of a module, which calls only what is there."""
    assert "llvm.x86" not in text
    module = llvm.parse_assembly(text)
    module.triple = TRIPLE
    module.verify()
    target = machine(level)
    if level > 1:
        builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=level))
        builder.getModulePassManager().run(module, builder)
    code = bytes(target.emit_object(module))
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == EM_AARCH64
    assert undefined(code) <= CALLED
    return code


def undefined(code: bytes) -> set[str]:
    """The names that an object file needs from elsewhere: those in its symbol table that are in no section (ELF64)."""
    sections_at, (count,) = struct.unpack_from("<Q", code, 0x28)[0], struct.unpack_from("<H", code, 0x3C)
    # Of each section: type at 4, offset at 24, size at 32, and at 40 the section of its names.
    headers = [struct.unpack_from("<4xI16xQQI", code, sections_at + 64 * number) for number in range(count)]
    found = set()
    for kind, offset, size, names in headers:
        for at in range(offset, offset + size, 24) if kind == SHT_SYMTAB else ():
            name, section = struct.unpack_from("<I2xH", code, at)
            if name and not section:
                begin = headers[names][1] + name
                found.add(code[begin : code.index(b"\0", begin)].decode())
    return found


def test_what_code_calls_is_seen() -> None:
    calls = "declare float @sinf(float) define float @f(float %x) { %y = call float @sinf(float %x) ret float %y }"
    with pytest.raises(AssertionError):
        code_for(calls)


@pytest.fixture(autouse=True)
def aarch64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code is written for a host without AVX-512, as every one of aarch64 is."""
    monkeypatch.setattr(compiler, "_host", lambda: ("generic", "+neon"))


Written = tuple[str, int]


@cache
def batches() -> dict[str, list[Written]]:
    """Spellings with a native form, and how many destinations they are written with, in modules by their sources."""
    alike: dict[tuple[str, ...], list[Written]] = defaultdict(list)
    for opcode in known_opcodes():
        for destinations in (1, 2):
            try:
                isa.resolve(opcode, destinations)
            except isa.NoSuchInstruction:
                continue
            if lowering(opcode, destinations) is not None:
                alike[tuple(source_kinds(opcode, destinations))].append((opcode, destinations))
    parts = ((each[i : i + BATCH]) for each in alike.values() for i in range(0, len(each), BATCH))
    return {f"{part[0][0]} and {len(part) - 1} more": part for part in parts}


@pytest.mark.parametrize("name", thinned(batches(), 12))
def test_opcodes(name: str) -> None:
    written = batches()[name]
    operations = [isa.resolve(*each) for each in written]
    results = [[*each.destinations, *["pred"] * each.carry_out] for each in operations]
    certain = [exactness(opcode) for opcode, _ in written]

    def all_of_them(lanes: LaneBuilder, values: Sequence[Any]) -> list[Any]:
        made = []
        for each, of_exactness in zip(written, certain, strict=True):
            lower = lowering(*each)
            assert lower is not None
            # The table of lop3 has to be known.
            known = lanes.constant(0x96, 32)
            made += lower(lanes, [*values[:3], known, *values[4:]] if each[0].startswith("lop3") else values)
            if of_exactness is not None:
                made += of_exactness(lanes, values)
        return made

    kinds = [
        kind
        for each, of_exactness in zip(results, certain, strict=True)
        for kind in (*each, *["pred"] * (of_exactness is not None))
    ]
    text = _module(all_of_them, source_kinds(*written[0]), kinds, {})
    assert len(code_for(text)) > 64 * len(written)


def test_every_native_form_is_compiled() -> None:
    assert len({opcode for part in batches().values() for opcode, _ in part}) > 2000


def own_functions() -> Iterator[tuple[str, Callable[[], str]]]:
    """The executor's own functions: the text of each module."""
    for module in (pages, copies, order, clocks, scheduler):
        yield module.__name__.rpartition(".")[2], module._text
    for stores in (False, True):
        for space in ("shared", "local", "generic"):
            for size, count in ((1, 1), (8, 2)):
                variant = variants.Variant(stores, size, count, space)
                yield variant.name, lambda variant=variant: variants._text(variant)  # type: ignore[misc]
    for spelling in SPELLINGS:
        yield f"mma {spelling}", lambda form=spelling.native: mma._module(form)  # type: ignore[misc]


OWN = dict(own_functions())
#: Products of mixed formats that are compiled quickly: of the others' optimised code every format is A and is B, with
#: scales and without, and the code that takes an operand apart knows nothing of the other one.
QUICK = {
    f"mma {each}"
    for each in SPELLINGS
    if each.model in ("sm120", "sm90_mma_fp8")
    and NARROW.index(each.b_format) != (NARROW.index(each.a_format) + each.scales) % len(NARROW)
}


def test_every_format_is_optimised_on_both_sides() -> None:
    optimised = [each for each in SPELLINGS if f"mma {each}" not in QUICK]
    assert len(QUICK) == 14
    for side in ("a_format", "b_format"):
        assert {(each.model, getattr(each, side), each.scales) for each in optimised} == {
            (each.model, getattr(each, side), each.scales) for each in SPELLINGS
        }


@pytest.mark.parametrize("name", thinned(OWN, 32))
def test_own_functions(name: str) -> None:
    # Half of the accesses are compiled as kernels are; the others, of which LLVM sees the same instructions, quickly.
    assert len(code_for(OWN[name](), 0 if name.endswith("1x1") or name in QUICK else 2)) > 500


@pytest.mark.usefixtures("forget")
def test_a_kernel(forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its blocks are compiled for this host too, and give the same without what only some hosts have."""
    texts: list[str] = []

    def kept(text: str) -> bytes:
        texts.append(text)
        return native(text)

    monkeypatch.undo()
    native = batch.compiled
    forget()
    monkeypatch.setattr(batch, "compiled", kept)
    monkeypatch.setattr(consecutive, "has_feature", lambda name: False)
    monkeypatch.setenv("REFMOE_CACHE_DIR", str(tmp_path))
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    ptx.run_ptx(KERNEL, block=32, args=[x, y])
    assert y.tolist() == (x * x.sum()).tolist()
    assert texts
    for text in texts:
        assert len(code_for(text)) > 1000
