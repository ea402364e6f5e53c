"""Bulk copies that do not replace what lies at their destination, but combine it with what they bring.

Each element is combined by itself, atomically: copies that meet at one place do not race with each other, and each adds
what it brings. Of floating-point sums the order decides the bits; here copies combine in the order in which they are
known to be complete, and those of one instruction in that of their lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx import isa

Array = Any
TYPES: dict[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
}
"""Types of elements that each operation has in global memory."""
SHARED_TYPES: dict[str, tuple[str, ...]] = {
    operation: tuple(
        each for each in types if each in (("u32", "s32", "u64") if operation == "add" else ("u32", "s32", "b32"))
    )
    for operation, types in TYPES.items()
}
"""Those that it has in shared memory."""
# Of a tensor map's types, the names that logical operations have for them.
_LOGICAL = {"u32": "b32", "s32": "b32", "u64": "b64", "s64": "b64"}
_BYTES = {
    "f16": 2,
    "bf16": 2,
    **{each: int(each[1:]) // 8 for each in ("u32", "s32", "b32", "f32", "u64", "s64", "b64", "f64")},
}


@dataclass(frozen=True)
class Reduction:
    """How elements are combined.

    Attributes:
        operation: a key of `TYPES`.
        type: of an element.
        flushes: whether subnormal FP32 numbers count as zeros, as those that `red` adds in global memory do.
    """

    operation: str
    type: str
    flushes: bool = False

    @classmethod
    def of_tensor(cls, operation: str, data_type: str) -> Reduction:
        """In a tensor of that type.

        Raises:
            ValueError: there is no such operation for it.
        """
        name = _LOGICAL.get(data_type, data_type) if operation in ("and", "or", "xor") else data_type
        if name not in TYPES[operation]:
            raise ValueError(f"a reduction {operation} in a tensor of {data_type}, which there is not")
        return cls(operation, name, flushes=(operation, name) == ("add", "f32"))

    @property
    def bytes(self) -> int:
        """Of an element."""
        return _BYTES[self.type]

    def __call__(self, there: Array, brought: Array) -> Array:
        """Words as they were and as they are brought, [n] or [n, 2] each, combined element by element."""
        function: Callable[..., Any] = isa.resolve_atomic(self.operation, self.type, self.flushes)
        dtype = np.dtype(f"u{self.bytes}")
        one, other = (np.ascontiguousarray(each) for each in (there, brought))
        found = function(one.view(dtype).ravel(), other.view(dtype).ravel())
        return np.ascontiguousarray(found, dtype).view(one.dtype).reshape(one.shape)
