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
#: What the argument `output` names.
_OUTPUT = ("output",)

#: Of the arrays of a result in order, by module below refmoe.cuda and name. None is that of a function which gives no
#: arrays: a plan, or a number.
RESULTS: Mapping[str, tuple[str, ...] | None] = MappingProxyType(
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
        "expand.expand_as": _OUTPUT,
        "finalize.finalize": _OUT,
        "finalize_q8_1.finalize_q8_1": _Q8_1,
        "gemm.kernel.grouped_gemm": _OUT,
        "gemm.tile.check_tile": None,
        "moe.launches.LayerOptions": None,
        "moe.launches.LayerShape": None,
        "moe.arrays.layer_launches": None,
        "moe.deepseek.DeepSeekArguments": None,
        "moe.deepseek.deepseek_launches": None,
        "moe.deepseek.deepseek_moe": _OUT,
        "moe.deepseek.layer_arguments": None,
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
#: Of `expand_as`, by output: "x" is x's own type.
_EXPANDED = {"nvfp4": ("uint8", "uint8"), "fp8_tensor": ("uint8",), "fp8_token": ("uint8", "uint8"), "copy": ("x",)}


def check_result(name: str, result: Any, arguments: Mapping[str, Any]) -> None:
    """Hold the types of a result against those that are promised.

    Args:
        name: of the function, by its module below refmoe.cuda.
        result: what it returned.
        arguments: those that it was given, by name.

    Raises:
        RefmoeError: the types are others, or nothing is said of the function.
    """
    if name not in RESULTS:
        raise RefmoeError(f"{name} is no function whose results refmoe.families.wrong.results knows")
    promised = RESULTS[name]
    if promised is None:
        return
    due = list(_due(promised, arguments))
    found = [array.dtype.name for array in _arrays(result)]
    if found != due:
        raise RefmoeError(f"{name} returned arrays of {', '.join(found) or 'nothing'}; it promises {', '.join(due)}")


def _due(words: tuple[str, ...], arguments: Mapping[str, Any]) -> Iterator[str]:
    """The types that the words stand for."""
    for word in words:
        if word == "out_dtype":
            asked = arguments.get("out_dtype", ml_dtypes.bfloat16)
            yield _WORDS[asked] if isinstance(asked, str) else np.dtype(asked).name
        elif word == "output":
            yield from _due(_EXPANDED[arguments["output"]], arguments)
        else:
            yield arguments["x"].dtype.name if word == "x" else word


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
