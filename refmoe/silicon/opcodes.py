"""Spellings of PTX instructions: every combination of modifiers that a reader of the manual might try."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cache

from refmoe.ptx import isa

INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
WORDS = ("b16", "b32", "b64")
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "f32x2")
ROUNDINGS = ("", "rn", "rz", "rm", "rp")
ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
#: The third group is true of NaN as well.
COMPARISONS = (*ORDERED, "lo", "ls", "hi", "hs", *(f"{each}u" for each in ORDERED), "num", "nan")
CONVERTED = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f16", "bf16", "f32", "f64")
NARROW = ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2", "ue8m0x2")
ANY = (*INTEGERS, *WORDS, "f32", "f64", "f16", "bf16", "f16x2", "bf16x2")


def _product(*parts: tuple[str, ...]) -> Iterator[str]:
    for choice in itertools.product(*parts):
        yield ".".join(part for part in choice if part)


def candidates() -> list[str]:
    """The combinations, most of them illegal, in alphabetical order."""
    ftz, sat, cc = ("", "ftz"), ("", "sat"), ("", "cc")
    found: set[str] = set()
    for grid in (
        (("add", "sub"), ("", "sat", "cc"), (*INTEGERS, "u16x2", "s16x2")),
        (("add", "sub", "mul"), ROUNDINGS, ftz, sat, FLOATS),
        (("fma", "mad"), ROUNDINGS, ftz, ("", "sat", "relu"), FLOATS),
        # Sums of FP32 with operands of 16 bits.
        (("add", "sub", "fma"), ROUNDINGS, sat, ("f32",), ("f16", "bf16")),
        (("addc", "subc"), cc, ("u32", "s32", "u64", "s64")),
        (("mul",), ("lo", "hi", "wide"), INTEGERS),
        (("mad",), ("lo", "hi", "wide"), ("", "sat", "cc"), INTEGERS),
        (("madc",), ("lo", "hi", "wide"), cc, ("u32", "s32", "u64", "s64")),
        (("mul24",), ("lo", "hi"), INTEGERS),
        (("mad24",), ("lo", "hi"), sat, INTEGERS),
        (("div", "rem", "sad", "abs", "neg"), INTEGERS),
        (("min", "max"), ("", "relu"), (*INTEGERS, "u16x2", "s16x2")),
        (("min", "max"), ftz, ("", "NaN"), ("", "xorsign.abs"), FLOATS),
        (("abs", "neg"), ftz, FLOATS),
        (("copysign", "testp.finite"), FLOATS),
        (("div", "rcp", "sqrt"), (*ROUNDINGS, "approx", "full"), ftz, ("f32", "f16")),
        (("div", "rcp", "sqrt"), (*ROUNDINGS, "full"), ("f64",)),
        (("rsqrt", "ex2", "lg2", "sin", "cos", "tanh"), ("", "approx"), ftz, tuple(f for f in FLOATS if f != "f64")),
        (("dp4a", "dp2a.lo", "dp2a.hi"), ("u32", "s32"), ("u32", "s32")),
        (("and", "or", "xor", "not", "cnot", "popc", "clz", "brev"), ("pred", *WORDS)),
        (("shl", "shr"), (*WORDS, *INTEGERS)),
        (("shf",), ("l", "r"), ("clamp", "wrap"), ("b32", "b64")),
        (("prmt.b32",), ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")),
        (("bfe", "bfi", "bfind", "bfind.shiftamt"), (*INTEGERS, *WORDS)),
        (("szext", "bmsk"), ("clamp", "wrap"), ("u32", "s32", "b32")),
        (("fns", "lop3", "lop3.or", "lop3.and", "lop3.xor"), ("b32",)),
        (("setp",), COMPARISONS, ("", "and"), ftz, ANY),
        (("set",), ("eq", "lo", "geu"), ("", "xor"), ftz, ("u32", "s32", "f32", "f16", "bf16", "u16", "f16x2"), ANY),
        (("selp", "mov"), ("pred", *ANY)),
        (("slct",), ftz, ANY, ("s32", "f32", "u32")),
        (("cvt",), (*ROUNDINGS, "rni", "rzi", "rmi", "rpi"), ftz, sat, CONVERTED, CONVERTED),
        (("cvt",), ("", "rn", "rz", "rp", "rna"), ("", "satfinite"), ("", "relu"), ("tf32", "f16", "bf16"), ("f32",)),
        (("cvt",), ("", "rn", "rz", "rna"), ("", "relu"), ("", "satfinite"), ("f16x2",), ("f32", *NARROW)),
        # Between bf16x2 and the other narrow formats: PTX 9.2, which the compiler here does not read.
        (("cvt",), ("", "rn", "rz", "rna"), ("", "relu"), ("", "satfinite"), ("bf16x2",), ("f32", "ue8m0x2")),
        (("cvt",), ("", "rn", "rz", "rp"), ("", "satfinite"), ("", "relu"), NARROW, ("f32", "f16x2")),
        (("cvt",), ("", "rn", "rz", "rp"), ("", "satfinite"), ("", "relu"), ("ue8m0x2",), ("bf16x2",)),
        (("cvt.pack",), sat, ("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"), ("s32", "u32"), ("", "b32")),
    ):
        found.update(_product(*grid))
    return sorted(found)


@cache
def known_opcodes() -> Mapping[str, isa.Operation]:
    """Those of `candidates` that the executor knows, with what they compute."""
    found = {}
    for opcode in candidates():
        try:
            found[opcode] = isa.resolve(opcode)
        except isa.NoSuchInstruction:
            continue
    return found
