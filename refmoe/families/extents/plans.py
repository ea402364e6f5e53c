"""Plans of calls that no case can make: of gigabytes, or of a chip with few or many multiprocessors.

A plan is made of numbers alone, so it needs no memory. Those here lie where a rule of a plan takes effect: a grid that
is full, the last count of rows that 32 bits can walk over, the first one past it. Each case of a family makes them
again, on whatever host code there is, and holds them against `refmoe.families.extents.geometry`.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.extents.geometry import check_launch
from refmoe.families.wrong.defaults import DEFAULTS
from refmoe.formats import E2M1

if TYPE_CHECKING:
    from refmoe.cuda.launch import LaunchPlan

_INT32_MAX = 2**31 - 1
#: Rows with which a walk in steps of 2^16 CTAs stays in 32 bits.
_MOST_ROWS = _INT32_MAX - (1 << 16)
#: What is said of more.
_STEP = "kernels step past the last in int32"
#: Chips of the probes: of few multiprocessors, and of more than fill a grid.
_SMALL, _LARGE = 3, 2000

#: A plan, the multiprocessors that it is for, and a part of the sentence that refuses it; "" where it is made.
Probe = tuple[Callable[[], "LaunchPlan"], int, str]


def _module(name: str) -> Any:
    return importlib.import_module(f"refmoe.cuda.{name}")


def _rows() -> Iterator[Probe]:
    """Launches over rows, see `refmoe.cuda.launch.row_plan`."""
    launch = _module("launch")

    def of(rows: int, width: int, multiprocessors: int) -> Callable[[], LaunchPlan]:
        entry = launch.Entry("quantize", "refmoe_mxfp8_quantize_bf16_rceil_exact_linear")
        numbers = {"rows": rows, "width": width, "multiprocessors": multiprocessors}
        return lambda: launch.row_plan(entry, (None, None, None, rows, width // 16, 1), **numbers)

    yield of(1000, 2880, _SMALL), _SMALL, ""
    yield of(100_000, 16384, _LARGE), _LARGE, ""
    yield of(_MOST_ROWS, 32, _LARGE), _LARGE, ""
    yield of(_MOST_ROWS + 1, 32, _LARGE), _LARGE, _STEP


def _block_fp8() -> Iterator[Probe]:
    yield from _rows()
    module = _module("block_fp8")

    def of(rows: int) -> Callable[[], LaunchPlan]:
        x = np.broadcast_to(np.float32(0), (rows, 32))
        kernel = module.block_fp8_kernel("f32", "128x128", "deepgemm", "fp32")
        plan: Callable[..., LaunchPlan] = module.block_fp8_plan

        def made() -> LaunchPlan:
            try:
                module.quantize_block_fp8(x, device=None, block="128x128")
            except ArgumentError as error:
                # Broadcast, the array has no rows of its own, which is asked for behind its sizes.
                if "strides" not in str(error):
                    raise
            numbers = {"block": "128x128", "rows": rows, "k": 32, "layout": "k_major", "multiprocessors": _SMALL}
            return plan(kernel, None, None, None, **numbers)

        return made

    yield of(4000), _SMALL, ""
    yield of(_MOST_ROWS), _SMALL, ""
    yield of(_INT32_MAX - 128), _SMALL, _STEP
    yield of(_INT32_MAX - 127), _SMALL, "rows and those of one more tile"


def _finalize() -> Iterator[Probe]:
    module = _module("finalize")

    def of(tokens: int, width: int, multiprocessors: int) -> Callable[[], LaunchPlan]:
        numbers = {"tokens": tokens, "top_k": 2, "width": width, "first_expert": 0, "multiprocessors": multiprocessors}
        kernel = module.finalize_kernel("bf16", "bf16")
        return lambda: module.finalize_plan(kernel, *(None,) * 6, **numbers)

    yield of(1000, 2880, _SMALL), _SMALL, ""
    yield of(1000, 256 * 100, _SMALL), _SMALL, ""
    yield of(_MOST_ROWS, 8, _LARGE), _LARGE, ""
    yield of(_MOST_ROWS + 1, 8, _LARGE), _LARGE, _STEP


def _finalize_q8_1() -> Iterator[Probe]:
    module = _module("finalize_q8_1")

    def of(tokens: int, width: int) -> Callable[[], LaunchPlan]:
        numbers = {"tokens": tokens, "top_k": 2, "width": width, "first_expert": 0, "multiprocessors": _SMALL}
        kernel = module.finalize_q8_1_kernel("bf16", "llama_cpp_mmq")
        return lambda: module.finalize_q8_1_plan(kernel, *(None,) * 8, **numbers)

    yield of(1000, 2880), _SMALL, ""
    yield of(4, 512 * 4), _SMALL, ""


def _q8_1() -> Iterator[Probe]:
    module = _module("q8_1")

    def of(rows: int, k: int) -> Callable[[], LaunchPlan]:
        kernel = module.q8_1_quantize_kernel("bf16", "llama_cpp_mmq")
        numbers = {"rows": rows, "k": k, "multiprocessors": _SMALL}
        return lambda: module.q8_1_quantize_plan(kernel, None, None, None, None, **numbers)

    yield of(1000, 2880), _SMALL, ""
    yield of(2, 1024), _SMALL, ""


def _swiglu_q8_1() -> Iterator[Probe]:
    module = _module("swiglu_q8_1")

    def of(rows: int, width: int) -> Callable[[], LaunchPlan]:
        kernel = module.swiglu_q8_1_kernel("silu", "bf16", "llama_cpp_mmq")
        numbers = {"rows": rows, "width": width, "experts": 2, "multiprocessors": _SMALL}
        nothing = (None, None, None)
        return lambda: module.swiglu_q8_1_plan(kernel, None, None, nothing, *nothing, **numbers)

    yield of(1000, 2880), _SMALL, ""
    yield of(4, 512), _SMALL, ""


def _dp4a() -> Iterator[Probe]:
    module = _module("dp4a")

    def of(k: int) -> Callable[[], LaunchPlan]:
        size = module.GemvSize(tokens=2, top_k=2, experts=2, first_expert=0, n=72, k=k)
        return lambda: module.dp4a_gemv_plan("bf16", *(None,) * 9, size=size, input_by_choice=False)

    # The most warps that have room are 4, 4, 2, 2, 1, 1: on each side of each end.
    for blocks in (90, 737, 738, 1475, 1476, 2951):
        yield of(32 * blocks), _SMALL, ""


def _grouped(module: str, gemm: str) -> Callable[[], Iterator[Probe]]:
    """The grouped GEMM of MXFP8 or of NVFP4: a grid, and the most tiles that there may be."""

    def probes() -> Iterator[Probe]:
        made, grouped, tiles = getattr(_module(module), gemm), _module("gemm.grouped"), _module("gemm.tile")
        tile = tiles.Tile(128, 16, 256)

        def of(rows: int, experts: int, n: int, multiprocessors: int) -> Callable[[], LaunchPlan]:
            shape = grouped.GemmShape(rows, experts, n, 512)
            out = _Output(rows * n * 4)
            return lambda: made.plan(tile, "f32", 2, (None,) * 7, out, shape, multiprocessors=multiprocessors)

        yield of(1000, 8, 512, _SMALL), _SMALL, ""
        yield of(3, 8, 128, _LARGE), _LARGE, ""
        # 2^27 tiles of tokens less one, 16 of weight rows: 2^31 - 16 - 7 tiles and CTAs at most.
        rows = ((1 << 27) - 3) * 16
        yield of(rows, 2, 16 * 128, 15), 15, ""
        yield of(rows, 2, 16 * 128, 16), 16, "CTAs of a grid"

    return probes


class _Output:
    """A buffer of a size, for an output that nobody has memory for."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def _routing() -> Iterator[Probe]:
    module = _module("routing")

    def of(tokens: int, top_k: int) -> Callable[[], LaunchPlan]:
        maps = module.MapBuffers(None, None, None)
        numbers = {"tokens": tokens, "top_k": top_k, "experts": 8, "first_expert": 0}
        return lambda: module.permute_plan(None, maps, **numbers)

    for tokens, top_k in ((21, 3), (32, 2), (13, 5), (5000, 4)):
        yield of(tokens, top_k), _SMALL, ""


def _all(*each: Callable[[], Iterator[Probe]]) -> Callable[[], Iterator[Probe]]:
    """The probes of several families: of a layer, which plans their launches."""
    return lambda: (probe for probes in each for probe in probes())


#: By family.
_PROBES: Mapping[str, Callable[[], Iterator[Probe]]] = MappingProxyType(
    {
        "moe": _all(_routing, _rows, _grouped("gemm.kernel", "GEMM"), _finalize),
        "integer_moe": _all(_routing, _q8_1, _dp4a, _swiglu_q8_1, _finalize, _finalize_q8_1),
        "deepseek_moe": _all(_routing, _block_fp8),
        "deepseek_routing": _routing,
        **dict.fromkeys(("mxfp8_quantize", "nvfp4_quantize", "expand", "activation"), _rows),
        **dict.fromkeys(("deepseek_expand", "deepseek_activation", "deepseek_finalize"), _rows),
        "block_fp8_quantize": _block_fp8,
        "finalize": _finalize,
        "finalize_q8_1": _finalize_q8_1,
        "q8_1_quantize": _q8_1,
        "swiglu_q8_1": _swiglu_q8_1,
        "dp4a_gemv": _dp4a,
        "sm12x_gemm": _grouped("gemm.kernel", "GEMM"),
        "sm12x_nvfp4_gemm": _grouped("nvfp4_gemm", "NVFP4_GEMM"),
        "routing": _routing,
    }
)

#: The NVFP4 tiles that a choice is among, and by the most tokens of an expert the one that is due: of one width each,
#: the one with which there are fewest, and of those the narrowest.
_NVFP4_WIDTHS = (8, 16, 32, 64, 128)
_NVFP4_CHOICES = MappingProxyType({1: 8, 8: 8, 9: 16, 17: 32, 33: 64, 64: 64, 65: 128, 128: 128, 129: 128, 1000: 128})


#: Those of functions that cases call, and of one that only plans of a bench call.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    **DEFAULTS,
    "expand.expand_as_kernel": {"prescaled": False, "layout": "128x4", "by_expert": False},
}


def check_plans(family: str, host: tuple[str, ...]) -> None:
    """Hold the plans of a family's host code, and its defaults, against what is said of them.

    Args:
        family: its name.
        host: the modules of its host code.

    Raises:
        RefmoeError: the first that is another one.
    """
    for name in _DEFAULTS:
        module = f"refmoe.cuda.{name}".rpartition(".")[0]
        if module in sys.modules and any(_beside(module, each) for each in host):
            _check_defaults(name)
    for plan, multiprocessors, refused in _PROBES.get(family, lambda: iter(()))():
        try:
            made = plan()
        except ArgumentError as error:
            if not refused or refused not in str(error):
                due = f"refused with the words {refused!r}" if refused else "sound"
                raise RefmoeError(f"a call that has to be {due} is refused: {error}") from error
            continue
        if refused:
            raise RefmoeError(f"a call of {made.kernel.entry} whose numbers pass 32 bits is not refused")
        check_launch(made, multiprocessors)
    if family == "sm12x_nvfp4_gemm":
        _check_choice()
    if family in ("sm12x_gemm", "sm12x_nvfp4_gemm"):
        _check_words()
    if family == "deepseek_moe":
        _check_options()


def _beside(module: str, host: str) -> bool:
    """Whether a module is host code of a family, or beside it in a folder of that family's own."""
    folder = host.rpartition(".")[0]
    return module == host or (folder != "refmoe.cuda" and module.rpartition(".")[0] == folder)


def _check_defaults(name: str) -> None:
    module, _, function = name.rpartition(".")
    parameters = inspect.signature(getattr(_module(module), function)).parameters.values()
    for each in parameters:
        default = each.default.name.lower() if isinstance(each.default, enum.Enum) else each.default
        due = _DEFAULTS[name].get(each.name, each.empty)
        if type(default) is not type(due) or default != due:
            raise RefmoeError(f"{name} has {each.name}={default!r} where a caller says nothing; it has to be {due!r}")


def _check_choice() -> None:
    module = _module("nvfp4_gemm")
    if (widths := tuple(tile.n for tile in module.DYNAMIC_TILES)) != _NVFP4_WIDTHS:
        raise RefmoeError(f"the tiles of a choice have widths {widths}; they have to be {_NVFP4_WIDTHS}")
    for tokens, width in _NVFP4_CHOICES.items():
        if (found := module.choose_tile(tokens, "sm_120a").n) != width:
            raise RefmoeError(f"the tile of {tokens} tokens has width {found}; it has to be {width}")


def _check_options() -> None:
    """Options of a layer that a caller makes by himself: a word that is none of them is refused by its name."""
    module = _module("moe.deepseek")
    sound = {"rules": module.DeepSeekRules(), "logits": "f32", "layout": "k_major", "scale": 1.0}
    for name in ("logits", "layout"):
        refused = "nothing"
        try:
            module.DeepSeekOptions(**{**sound, name: "fp8"})
        except ArgumentError as error:
            refused = error.argument
        if refused != name:
            raise RefmoeError(f"options with {name}='fp8' are refused for {refused}; they have to be for {name}")


def _check_words() -> None:
    """Of the tiles' own arithmetic, what no tile asks for: other sizes than those that there are."""
    module = _module("gemm.tile")
    for most, due in ((2, "2 stages"), (3, "2 to 3 stages"), (8, "2 to 8 stages")):
        if (found := module.stage_range(most)) != due:
            raise RefmoeError(f"{most} stages at most are called {found!r}; they are {due!r}")
    for elements, size in ((0, 0), (2, 1), (256, 128), (-2, None), (3, None)):
        try:
            made = module.k_bytes(elements, E2M1)
        except ArgumentError:
            made = None
        if made != size:
            raise RefmoeError(f"{elements} elements of FP4 are {made} bytes; they are {size}, None where that is none")
