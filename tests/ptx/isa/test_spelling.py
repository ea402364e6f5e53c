"""Which spellings there are, as ptxas sees it, and what every operation promises its caller."""

from __future__ import annotations

import pickle
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.toolchain import PTXAS

from refmoe.ptx import isa
from refmoe.silicon.opcodes import NARROW, candidates, known_opcodes

# What ptxas 13.0 takes although the manual does not describe it, so that its meaning would be a guess.
UNDOCUMENTED = re.compile(r"fma\.r[zmp](\.relu)?\.bf16(x2)?|cvt\.(bf16\.f16|f16\.bf16)")


REGISTERS = {"pred": "%p", "b8": "%rb", "b16": "%rs", "b32": "%r", "b64": "%rd"}


def kinds_of(opcode: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Destination and source kinds of a spelling that refmoe refuses, guessed from its types."""
    parts = opcode.split(".")
    name, last, before = parts[0], parts[-1], parts[-2]

    def width(t: str) -> str:
        if t in ("f16x2", "bf16x2", "u16x2", "s16x2", "tf32"):
            return "b32"
        if t == "f32x2":
            return "b64"
        if t in NARROW:
            return "b8" if t == "e2m1x2" else "b16"
        digits = re.fullmatch(r"[a-z]+(\d+)", t)
        return f"b{digits[1]}" if digits and digits[1] in ("8", "16", "32", "64") else "pred" if t == "pred" else "b32"

    k = width(last)
    wide = {"b16": "b32", "b32": "b64", "b64": "b64"}.get(k, k)
    table = {
        "setp": (("pred", "pred") if last.endswith("x2") else ("pred",), (k, k, *["pred"] * ("and" in parts))),
        "set": ((width(before),), (k, k, *["pred"] * ("xor" in parts))),
        "selp": ((k,), (k, k, "pred")),
        "slct": ((width(before),), (width(before), width(before), "b32")),
        "testp": (("pred",), (k,)),
        "lop3": (("b32", "pred"), ("b32", "b32", "b32", "b32", "pred")),
        "shl": ((k,), (k, "b32")),
        "shr": ((k,), (k, "b32")),
        "shf": ((k,), (k, k, "b32")),
        "bfe": ((k,), (k, "b32", "b32")),
        "bfi": ((k,), (k, k, "b32", "b32")),
        "bfind": (("b32",), (k,)),
        "popc": (("b32",), (k,)),
        "clz": (("b32",), (k,)),
        "cvt": ((width(before),), (k, k) if last == "f32" and before.endswith("x2") else (k,)),
    }
    if "pack" in parts:
        return ("b32",), ("b32",) * (3 if last == "b32" else 2)
    if name in table:
        return table[name]
    if "wide" in parts:
        return (wide,), (k, k, *[wide] * (name == "mad"))
    three = ("fma", "mad", "madc", "mad24", "sad", "dp4a", "dp2a")
    one = ("abs", "neg", "not", "cnot", "brev", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "mov")
    return (k,), (k,) * (3 if name in three else 1 if name in one else 2)


def statement(opcode: str, operation: isa.Operation | None) -> str:
    destinations, sources = (operation.destinations, operation.sources) if operation else kinds_of(opcode)
    count = dict.fromkeys(REGISTERS, 0)

    def register(kind: str) -> str:
        count[kind] += 1
        return f"{REGISTERS[kind]}{count[kind]}"

    operands = [register(kind) for kind in sources]
    if opcode.startswith("lop3"):
        operands[3] = "0x96"
    # 8-bit values live in 16-bit registers, except where the other side is packed or bf16.
    text = f"{opcode} {'|'.join(register(k) for k in destinations)}, {', '.join(operands)};"
    return text if "e2m1x2" in opcode or "bf16" in opcode else text.replace("%rb", "%rs1")


def test_legal_spellings_are_those_of_ptxas(tmp_path: Path) -> None:
    if PTXAS is None:
        pytest.skip("no ptxas")
    known = known_opcodes()
    remaining = candidates()
    header = [
        ".version 9.0",
        ".target sm_120a",
        ".address_size 64",
        ".entry k() {",
        ".reg .pred %p<9>; .reg .b8 %rb<9>; .reg .b16 %rs<19>; .reg .b32 %r<9>; .reg .b64 %rd<9>;",
    ]
    refused: set[str] = set()
    while True:  # ptxas stops after a number of errors
        source = tmp_path / "spellings.ptx"
        source.write_text("\n".join([*header, *(statement(o, known.get(o)) for o in remaining), "ret; }"]))
        run = subprocess.run(
            [PTXAS, "-arch=sm_120a", "-O0", str(source), "-o", str(tmp_path / "out")],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = {int(line) for line in re.findall(r"line (\d+); (?:error|fatal)", run.stdout + run.stderr)}
        bad = {remaining[line - len(header) - 1] for line in lines if line <= len(header) + len(remaining)}
        if not bad:
            break
        refused |= bad
        remaining = [opcode for opcode in remaining if opcode not in bad]
    assert run.returncode == 0, run.stderr[:2000]
    legal = {opcode for opcode in candidates() if opcode not in refused}
    assert sorted(set(known) - legal) == []
    assert [o for o in sorted(legal - set(known)) if not UNDOCUMENTED.fullmatch(o)] == []
    assert len(legal) > 2000


def lanes(kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(isa.DTYPES[kind])
    if kind == "pred":
        return rng.integers(0, 2, 6).astype(np.bool_)
    return np.frombuffer(rng.bytes(6 * dtype.itemsize), dtype)  # read-only: an operation that writes it raises


def test_every_operation_keeps_its_promises() -> None:
    for opcode, operation in known_opcodes().items():
        sources = [lanes(kind, i) for i, kind in enumerate(operation.sources)]
        for source in sources:
            source.flags.writeable = False
        if opcode.startswith("lop3"):
            sources[3] = np.uint32(0xE8)
        if operation.carry_in:
            sources.append(lanes("pred", 9))
        uniform = [source if np.ndim(source) == 0 else source[2] for source in sources]
        mixed = [sources[0], *uniform[1:]]
        kinds = (*operation.destinations, *["pred"] * operation.carry_out)
        with np.errstate(all="ignore"):
            results = [operation.function(*x) for x in (sources, uniform, mixed, [uniform[0], *sources[1:]])]
            exact = operation.exact_when(*sources) if operation.exact_when else None
        results = [r if isinstance(r, tuple) else (r,) for r in results]
        shapes = [(6,), (), (6,), (6,) if any(np.ndim(s) for s in sources[1:]) else ()]
        for result, shape in zip(results, shapes, strict=True):
            assert [np.shape(r) for r in result] == [shape] * len(kinds), opcode
            assert [r.dtype for r in result] == [np.dtype(isa.DTYPES[k]) for k in kinds], opcode
        assert [int(r[2]) for r in results[0]] == [int(r) for r in results[1]], opcode
        assert exact is None or (exact.dtype == np.bool_ and exact.shape == (6,)), opcode


@pytest.mark.parametrize(
    "opcode",
    [
        "",
        "add",
        "add.",
        "add.u8",
        "add.rn.u32",
        "add.u32.rn",
        "frobnicate.b32",
        "mul.u32",
        "cvt.f16.f32",
        "ld.u32",
        "x.",
    ],
)
def test_what_is_unknown_names_itself(opcode: str) -> None:
    with pytest.raises(isa.NoSuchInstruction) as caught:
        isa.resolve(opcode)
    assert caught.value.opcode == opcode
    assert repr(opcode) in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.opcode, str(again)) == (opcode, str(caught.value))


def test_two_destinations_only_where_the_instruction_has_them() -> None:
    assert isa.resolve("setp.lt.u32", 2).destinations == ("pred", "pred")
    assert isa.resolve("lop3.or.b32", 2).destinations == isa.resolve("lop3.or.b32").destinations == ("b32", "pred")
    for opcode, destinations in (("add.u32", 2), ("lop3.b32", 2), ("setp.lt.u32", 3), ("setp.lt.u32", 0)):
        with pytest.raises(isa.NoSuchInstruction):
            isa.resolve(opcode, destinations)


@pytest.mark.parametrize(
    ("written", "manual"),
    [
        ("div.ftz.rn.f32", "div.rn.ftz.f32"),
        ("add.sat.ftz.rz.f32", "add.rz.ftz.sat.f32"),
        ("sqrt.ftz.approx.f32", "sqrt.approx.ftz.f32"),
        ("fma.sat.rn.f32", "fma.rn.sat.f32"),
        ("min.NaN.ftz.f32", "min.ftz.NaN.f32"),
        ("setp.ftz.lt.f32", "setp.lt.ftz.f32"),
        ("cvt.ftz.rni.f32.f32", "cvt.rni.ftz.f32.f32"),
    ],
)
def test_modifiers_in_another_order(written: str, manual: str) -> None:
    rng = np.random.default_rng(1)
    operation, other = isa.resolve(written), isa.resolve(manual)
    assert (operation.sources, operation.destinations) == (other.sources, other.destinations)
    values = [rng.integers(0, 1 << 32, 4096, dtype=np.uint64).astype(np.uint32) for _ in operation.sources]
    for value in values:
        value[:64] &= np.uint32(0x80FFFFFF)
    with np.errstate(all="ignore"):
        assert operation.function(*values).tobytes() == other.function(*values).tobytes()
