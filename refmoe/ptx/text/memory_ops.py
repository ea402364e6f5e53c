"""Spellings of the instructions that touch memory: `ld st ldu atom red`."""

from __future__ import annotations

from dataclasses import dataclass

from refmoe.ptx.text.scopes import type_bits

_SPACES = {
    "global": "global",
    "const": "const",
    "local": "local",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared",  # the address says whose
    "param": "param",
    "param::entry": "param",
    "param::func": "param",
}
_SCOPES = ("cta", "cluster", "gpu", "sys")
_SEMANTICS = ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")
_CACHE = {
    "ld": ("ca", "cg", "cs", "lu", "cv", "nc"),
    "st": ("wb", "cg", "cs", "wt"),
    "ldu": (),
    "atom": (),
    "red": (),
}
_HINTS = (
    "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
    "L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B",
)  # fmt: skip
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_LOAD_TYPES = ("b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64")
_ATOMIC_TYPES = (*_LOAD_TYPES, "f16", "bf16", "f16x2", "bf16x2")
_OPERATIONS = ("and", "or", "xor", "cas", "exch", "add", "inc", "dec", "min", "max")


@dataclass(frozen=True)
class MemoryOpcode:
    """The parts of a spelling.

    Attributes:
        stem: `ld st ldu atom red`.
        space, type: as spelled; without a space `"generic"`.
        count: elements.
        semantics: as spelled, or empty.
        operation: of an atomic.
        hinted: whether there is one more operand, a cache policy, which changes no result.
        scope: as spelled, or what the manual says where none is: `.sys` for `.volatile`, else `.gpu`.
        coherent: not `.nc`.
    """

    stem: str
    space: str
    type: str
    count: int
    semantics: str
    operation: str | None
    hinted: bool
    scope: str = "gpu"
    coherent: bool = True

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return type_bits(self.type) // 8

    @property
    def strong(self) -> bool:
        """Whether it is a strong operation: a relaxed one, or more."""
        return self.stem in ("atom", "red") or self.semantics not in ("", "weak")


def memory_opcode(spelling: str) -> MemoryOpcode | None:
    """The parts of `spelling`, or None if it is no load, store or atomic that exists."""
    stem, *parts = spelling.split(".")
    # The type stands last in the manual; ptxas takes the parts in any order.
    kinds = [part for part in parts if part in _ATOMIC_TYPES]
    if stem not in _CACHE or len(kinds) != 1:
        return None
    (kind,) = kinds
    parts.remove(kind)
    space, count, semantics, operation = "generic", 1, "", None
    hinted, scope = False, ""
    seen: set[str] = set()
    for part in parts:
        if part in seen:
            return None
        seen.add(part)
        if part in _SPACES:
            space = _SPACES[part]
        elif part in _SEMANTICS:
            # `ld.mmio.relaxed` is the one spelling with two.
            semantics = part
        elif part in _VECTORS:
            count = _VECTORS[part]
        elif operation is None and stem in ("atom", "red") and part in _OPERATIONS:
            operation = part
        elif part == "L2::cache_hint":
            hinted = True
        elif part in _SCOPES and not scope:
            scope = part
        elif not (part in _HINTS or part in _CACHE[stem]) and part != "noftz":
            return None
    if stem in ("atom", "red"):
        valid = kind in _ATOMIC_TYPES and operation is not None and space in ("generic", "global", "shared")
    else:
        valid = kind in _LOAD_TYPES and "noftz" not in seen
    size = type_bits(kind) // 8 if valid else 0
    if not valid or size * count > 32 or (stem == "st" and space == "const"):
        return None
    scope = scope or ("sys" if semantics in ("volatile", "mmio") else "gpu")
    return MemoryOpcode(stem, space, kind, count, semantics, operation, hinted, scope, "nc" not in seen)
