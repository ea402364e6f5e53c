"""The arithmetic of atom, red and redux: what is stored, from what was there and the operand.

Order, atomicity and addresses are the machine's.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from refmoe.ptx.isa.errors import NoSuchInstruction
from refmoe.ptx.isa.operation import Array, Function
from refmoe.ptx.isa.table import resolve

_INTEGERS = ("u32", "s32", "u64", "s64")
_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
# Operations that are instructions of their own, and the types that atom or red have them for.
_INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "add": (*_INTEGERS, "f32", "f64", *_HALVES),
    "min": (*_INTEGERS, "f32", *_HALVES),
    "max": (*_INTEGERS, "f32", *_HALVES),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}


def _increment(old: Array, limit: Array) -> Array:
    """inc(r, s) = (r >= s) ? 0 : r + 1."""
    return np.where(old >= limit, np.uint32(0), old + np.uint32(1))


def _decrement(old: Array, limit: Array) -> Array:
    """dec(r, s) = (r == 0 || r > s) ? s : r - 1."""
    return np.where((old == 0) | (old > limit), limit, old - np.uint32(1))


@cache
def resolve_atomic(operation: str, type: str, flush: bool = False) -> Function:
    """What an atomic operation stores.

    Args:
        operation: "add", "min", "max", "inc", "dec", "and", "or", "xor", "exch" or "cas".
        type: "u32", "s32", "u64", "s64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "b16", "b32" or "b64".
        flush: subnormal f32 inputs and results count as zeros of their sign, which is what add.f32 does in global
            memory but not in shared memory (PTX ISA, atom and red).

    Returns:
        `f(old, operand) -> new`, for "cas" `f(old, compare, value) -> new`, on unsigned bit patterns of the type's
        width. Floating-point addition rounds to nearest even; the halves keep subnormals (.noftz). min and max of f32
        are those of redux, and of the halves those of red: a NaN loses to a number.

    Raises:
        NoSuchInstruction: there is no such operation for the type.
    """
    unknown = NoSuchInstruction(f"atom.{operation}.{type}")
    if flush and (operation, type) != ("add", "f32"):
        raise unknown
    if operation in _INSTRUCTIONS:
        if type not in _INSTRUCTIONS[operation]:
            raise unknown
        is_float = type.startswith(("f", "bf"))
        rounding = ".rn" if operation == "add" and is_float else ""
        return resolve(f"{operation}{rounding}{'.ftz' if flush else ''}.{type}").function
    if operation in ("inc", "dec") and type == "u32":
        return _increment if operation == "inc" else _decrement
    if operation == "exch" and type in ("b32", "b64"):
        return lambda old, value: value
    if operation == "cas" and type in ("b16", "b32", "b64"):
        return lambda old, compare, value: np.where(old == compare, value, old)
    raise unknown
