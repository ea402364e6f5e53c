"""The types of what the functions that cases call return, written down a second time.

Cases compare bits. So the type that a function gives them would be compared by none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from refmoe.errors import RefmoeError

_BLOCKS = ("uint8", "uint8")
_TILES = ("uint8", "float32")
_Q8_1 = ("int8", "float16", "float16")
_MAPS = ("int64", "int32", "int32")
_ROUTED = (*_MAPS, "int32", "float32")
#: The type that is asked for, BF16 if none is.
_OUT = ("out_dtype",)

#: Of the arrays of a result in order, by module below refmoe.cuda and name.
RESULTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "activation.swiglu_quantize": _BLOCKS,
        "block_fp8.quantize_block_fp8": _TILES,
        "deepseek.activation.swiglu_block_fp8": _TILES,
        "deepseek.activation.swiglu_block_fp8_masked": _TILES,
        "deepseek.expand.expand_block_fp8": (*_TILES, *_TILES),
        "deepseek.finalize.finalize_shared": _OUT,
        "deepseek.routing.route_grouped": _ROUTED,
        "deepseek.routing.try_route_grouped": _ROUTED,
        "deepseek_gemm.deepseek_gemm": _OUT,
        "deepseek_gemm.deepseek_gemm_masked": _OUT,
        "dp4a.dp4a_gemv": _OUT,
        "expand.expand": _BLOCKS,
        "finalize.finalize": _OUT,
        "finalize_q8_1.finalize_q8_1": _Q8_1,
        "gemm.kernel.grouped_gemm": _OUT,
        "moe.deepseek.deepseek_moe": _OUT,
        "moe.fused.fused_moe": ("bfloat16",),
        "nvfp4.quantize_nvfp4": _BLOCKS,
        "nvfp4_gemm.nvfp4_grouped_gemm": _OUT,
        "q8_1.quantize_q8_1": _Q8_1,
        "quantize.quantize_mxfp8": _BLOCKS,
        "routing.permute": _MAPS,
        "routing.route": _ROUTED,
        "routing.try_route": _ROUTED,
        "swiglu_q8_1.swiglu_q8_1": _Q8_1,
    }
)

_WORDS = {"bf16": "bfloat16", "f32": "float32"}


def check_result(name: str, result: Any, named: Mapping[str, Any]) -> None:
    """Hold the types of a result against those that are promised.

    Args:
        name: of the function, by its module below refmoe.cuda; one that is not known passes.
        result: what it returned.
        named: its named arguments.

    Raises:
        RefmoeError: the types are others.
    """
    if name not in RESULTS:
        return
    asked = named.get("out_dtype", ml_dtypes.bfloat16)
    out = _WORDS[asked] if isinstance(asked, str) else np.dtype(asked).name
    due = [out if word == "out_dtype" else word for word in RESULTS[name]]
    found = [array.dtype.name for array in _arrays(result)]
    if found != due:
        raise RefmoeError(f"{name} returned arrays of {', '.join(found) or 'nothing'}; it promises {', '.join(due)}")


def _arrays(result: Any) -> Iterator[Any]:
    """The arrays of a result: of a tuple or a dataclass in order."""
    if isinstance(result, np.ndarray):
        yield result
    elif isinstance(result, tuple):
        for each in result:
            yield from _arrays(each)
    elif is_dataclass(result):
        for field in fields(result):
            yield from _arrays(getattr(result, field.name))
