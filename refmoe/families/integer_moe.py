"""The family `integer_moe`: whole layers of few tokens by integer products, every buffer of every launch compared.

Stages are named as in the family `moe`, whose tokens and weights these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import RefmoeError
from refmoe.families import pairs
from refmoe.families.activation import PARAMS, VARIANT, check_params
from refmoe.families.case import SCHEDULES, Shape, refused, word
from refmoe.families.choices import RANKS, ROUTING, check_choices, padding_ids
from refmoe.families.extents import permutation, q8_1_rows, staged
from refmoe.families.extents.traffic import integer_traffic
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Inputs, LaunchFailed, Outputs
from refmoe.families.finalize import TokenSums
from refmoe.families.gemm.epilogue import LAYER_BIAS
from refmoe.families.gemm.stages import Products
from refmoe.families.moe import GLOBAL_SCALES, LAYER_FILLS, layer_inputs, layer_of, tokens_of
from refmoe.families.q8_1 import BlockHalves, Int8Codes
from refmoe.families.routing import ChoiceRows, FirstRows, RowChoices
from refmoe.families.stages import Stage
from refmoe.families.vacuity import Limits, doubt_values
from refmoe.families.wrong import WRONG, Change, called, wrong_calls
from refmoe.formats import MX_BLOCK, Q8_1
from refmoe.reference.dp4a import MAX_TOKENS
from refmoe.reference.moe.pipeline import moe_layer
from refmoe.reference.q8_1 import Q8Tensor, quantize_q8_1

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

PATH = word("path", "dp4a", "llama_cpp", fixed=True)
_PRODUCTS: Mapping[str, str] = MappingProxyType({"dp4a": "bf16", "llama_cpp": "f32"})
_SUMS = Limits(zeros=0.02, reason="tokens that have experts here have an output")
_CODES = Limits(zeros=0.1, reason="few outputs are below half a unit of their block's scale")

#: A layer's output: BF16, or of llama_cpp Q8_1, which the next layer takes as it is.
OUTPUT = word("output", "bf16", "q8_1", fixed=True)


def _buffers(case: Case) -> tuple[tuple[str, str], ...]:
    """(stage, buffer), in the order of the launches. Tokens in Q8_1 need no quantize."""
    quantize = () if case.dtype == "q8_1" else ("codes", "d", "s")
    sums = (("codes", "out"), ("d", "out_d"), ("s", "out_s")) if case.output == "q8_1" else (("out", "out"),)
    return (
        *((f"permute.{name}", name) for name in ("offsets", "unpermuted_to_permuted", "permuted_to_unpermuted")),
        *((f"quantize.{name}", f"quantize_{name}") for name in quantize),
        ("gemm1.out", "gemm1_out"),
        *((f"activation.{name}", f"activation_{name}") for name in ("codes", "d", "s")),
        ("gemm2.out", "gemm2_out"),
        *((f"finalize.{name}", buffer) for name, buffer in sums),
    )


def _quantization(case: Case) -> str:
    return "ready" if case.dtype == "q8_1" else "separate"


#: What tokens are here in another form.
_OF_MOE = ("x", "input_sf")


def _inputs(case: Case) -> Inputs:
    """Those of a layer; its tokens come in BF16, or in Q8_1 as another layer leaves them."""
    given = {name: array for name, array in layer_inputs(case).items() if name not in _OF_MOE}
    x = tokens_of(case.fill, case.seed, case.shape.m, case.shape.k)
    if case.dtype == "bf16":
        return {"x": x, "x_d": None, **given}
    tokens = quantize_q8_1(x)
    return {"x": tokens.codes, "x_d": tokens.d, **given}


def _expect(case: Case, inputs: Inputs) -> Expectation:
    """Every intermediate of the path's reference, poison where no kernel writes."""
    x = inputs["x"]
    if case.dtype == "q8_1":
        x = Q8Tensor(x, inputs["x_d"], np.zeros_like(inputs["x_d"]))  # a product with MXFP4 reads no sums of blocks
    found = moe_layer(
        x,
        layer_of(case, inputs),
        path=case.path,
        quantization=_quantization(case),
        output=case.output,
        topk_ids=inputs["topk_ids"],
        topk_weights=inputs["topk_weights"],
        first_expert=case.first_expert,
        stages=True,
    ).stages
    used = int(found["routing"]["offsets"][-1])
    outputs = {}
    for stage, _ in _buffers(case):
        launch, _, name = stage.partition(".")
        array = found["routing" if launch == "permute" else launch][name]
        bits: NDArray[Any] = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").copy()
        if not case.shape.m:
            bits.view(np.uint8)[:] = case.poison  # no launch
        elif launch in ("gemm1", "activation", "gemm2"):
            bits[used:].view(np.uint8)[:] = case.poison
        outputs[stage] = bits
    present = (found["routing"]["unpermuted_to_permuted"].reshape(case.shape.t, case.shape.m) >= 0).any(axis=0)
    sums = found["finalize"]["codes" if case.output == "q8_1" else "out"][present].astype(np.float32)
    doubt = doubt_values(sums, _CODES if case.output == "q8_1" else _SUMS)
    return Expectation(outputs, _stages(case, inputs, found), doubt)


def _stages(case: Case, inputs: Inputs, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> tuple[Stage, ...]:
    shape, routing, ids = case.shape, found["routing"], inputs["topk_ids"]
    stages: list[Stage] = [
        FirstRows("permute.offsets", shape.e),
        ChoiceRows("permute.unpermuted_to_permuted", ids),
        RowChoices("permute.permuted_to_unpermuted", shape.m),
    ]
    for source, product, n in (("quantize", "gemm1", 2 * shape.n), ("activation", "gemm2", shape.k)):
        if source in found:
            stages += _q8_1_stages(source, found)
        stages.append(Products(f"{product}.out", _PRODUCTS[case.path], n, routing["offsets"], case.poison))
    if case.output == "q8_1":
        return (*stages, *_q8_1_stages("finalize", found))
    return (*stages, TokenSums("finalize.out", "bf16", shape.k, routing["unpermuted_to_permuted"], ids))


def _q8_1_stages(launch: str, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> tuple[Stage, ...]:
    d = found[launch]["d"]
    return (
        Int8Codes(f"{launch}.codes", d),
        BlockHalves(f"{launch}.d", d.shape[1]),
        BlockHalves(f"{launch}.s", d.shape[1]),
    )


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.moe.integer import integer_steps, integer_workspace_bytes, output_bytes
    from refmoe.cuda.moe.launches import LayerBuffers, LayerShape

    size, chosen = case.shape, {"quantization": _quantization(case), "output": case.output}

    def planned(input_sf: Any, path: str, variant: str, quantization: str, output: str, **sizes: int) -> Any:
        shape = LayerShape(**sizes)
        chosen = {"quantization": quantization, "output": output}
        workspace = {
            name: device.output(name, (count,), case.poison)
            for name, count in integer_workspace_bytes(shape, path, **chosen).items()
        }
        out = device.output("out", (output_bytes(shape, output),), case.poison)
        given = {name: inputs[name] for name in _UPLOADED} | {"input_sf": input_sf}
        given["topk_ids"] = padding_ids(case, inputs["topk_ids"])
        buffers = LayerBuffers(
            **{name: None if array is None else device.upload(name, array) for name, array in given.items()},
            out=out,
            workspace=workspace,
        )
        more = {} if variant == "gpt_oss" else {"variant": variant}  # what is the default is left to the function
        steps = integer_steps(shape, path, buffers, multiprocessors=device.multiprocessors, **chosen, **more)
        return {**workspace, "out": out}, steps

    written, steps = called(case, planned)(
        inputs["x_d"],
        case.path,
        case.variant,
        **chosen,
        **{"tokens": size.m, "top_k": size.t, "experts": size.e, "hidden": size.k, "intermediate": size.n},
        first_expert=case.first_expert,
    )
    integer_traffic(case, inputs, _quantization(case)).check(steps)
    for number, step in enumerate(steps):
        try:
            device.launch(step.plan)
        except RefmoeError as error:
            done = {before.stage for before in steps[:number]}
            raise LaunchFailed(step.stage, _taken(case, device, written, done), error) from error
    return _taken(case, device, written, {stage.partition(".")[0] for stage, _ in _buffers(case)})


_UPLOADED = (
    *("x", "topk_ids", "topk_weights", "gate_up", "gate_up_scales", "down", "down_scales"),
    *("gate_up_alpha", "down_alpha"),
    *("gate_up_bias", "down_bias", "swiglu_alpha", "swiglu_beta", "swiglu_limit"),
)


def _taken(case: Case, device: Device, written: Mapping[str, Any], launches: set[str]) -> Outputs:
    """By stage name the buffers that these launches write, in the shapes of the reference."""
    size, product = case.shape, "u2" if case.path == "dp4a" else "u4"
    forms = {
        "offsets": ("u8", -1), "unpermuted_to_permuted": ("u4", -1), "permuted_to_unpermuted": ("u4", -1),
        "gemm1_out": (product, 2 * size.n), "gemm2_out": (product, size.k),
        "out": ("u1" if case.output == "q8_1" else "u2", size.k),
    }  # fmt: skip
    for source, width in (("quantize", size.k), ("activation", size.n), ("out", size.k)):
        forms |= {f"{source}_codes": ("u1", width)}
        forms |= {f"{source}_{half}": ("u2", width // Q8_1.block) for half in ("d", "s")}
    outputs = {}
    for stage, buffer in _buffers(case):
        if stage.partition(".")[0] in launches:
            dtype, width = forms[buffer]
            flat = np.ascontiguousarray(device.download(written[buffer])).reshape(-1).view(dtype)
            outputs[stage] = flat if width < 0 else flat.reshape(-1, width)
    return outputs


def _check(case: Case) -> None:
    if case.shape.n % MX_BLOCK:
        raise refused("shape", str(case.shape), f"an n that is a multiple of {MX_BLOCK}: it is the intermediate size")
    if case.shape.m > MAX_TOKENS:
        raise refused("shape", str(case.shape), f"at most {MAX_TOKENS} tokens")
    if case.path != "llama_cpp" and case.dtype == "q8_1":
        raise refused("dtype", case.dtype, f"bf16 with path={case.path}, which converts every time")
    if case.path != "llama_cpp" and case.output == "q8_1":
        raise refused("output", case.output, f"bf16 with path={case.path}, which converts every time")
    check_params(case)
    check_choices(case)


def _case(fill: str, m: int, k: int, n: int, e: int, t: int, path: str, seed: int = 7, **options: Any) -> Case:
    options.setdefault("poison", 0x7F)  # of 0xFF the bytes of -1 consist
    options.setdefault("bias", "distinct")
    return INTEGER_MOE.case(fill, Shape(m, k, e, t, n), seed=seed, path=path, **options)


def _staying(fill: str, m: int, k: int, n: int, e: int, t: int, seed: int = 7, **options: Any) -> Case:
    """A layer in the middle of a chain."""
    return _case(fill, m, k, n, e, t, "llama_cpp", seed, dtype="q8_1", output="q8_1", **options)


def _quick() -> Iterator[Case]:
    for path in PATH.words:
        yield _case("gaussian", 1, 416, 64, 8, 4, path)  # decode
        yield _case("gaussian", 5, 96, 64, 6, 2, path)
    yield _case("gaussian", 3, 96, 64, 4, 2, "dp4a", variant="silu", bias="none")
    yield _case("gaussian", 4, 96, 64, 6, 2, "llama_cpp", routing="empty-experts", params="distinct")
    yield _case("gaussian", 2, 96, 64, 6, 2, "llama_cpp", output="q8_1")  # the first layer of a chain
    yield _staying("gaussian", 1, 416, 64, 8, 4)  # one in its middle
    yield _case("gaussian", 2, 96, 64, 6, 2, "llama_cpp", dtype="q8_1", bias="none")  # its last


def _default() -> Iterator[Case]:
    yield _case("gaussian", 1, 2880, 32, 128, 4, "dp4a")  # gpt-oss's experts and width
    yield _case("real", 1, 384, 768, 8, 1, "llama_cpp")
    yield _case("gaussian", 8, 96, 32, 3, 2, "dp4a", routing="same-experts")
    yield _case("gaussian", 2, 96, 32, 3, 2, "dp4a", schedules=4)
    yield _case("gaussian", 6, 96, 64, 4, 4, "dp4a", first_expert=4, ranks=3)
    for path in PATH.words:  # the last of three ranks, of which a token chooses more experts than each has
        yield _case("gaussian", 5, 96, 64, 3, 4, path, first_expert=6, ranks=3)
    yield _staying("gaussian", 5, 96, 64, 3, 4, first_expert=6, ranks=3)
    yield _case("gaussian", 3, 96, 64, 4, 2, "llama_cpp", first_expert=4, ranks=2, routing="elsewhere")
    for number, path in enumerate(PATH.words):  # more experts than a power of two, and as many as DeepSeek-V3 has
        yield _case("gaussian", 3, 96, 32, 99, 5, path, params="distinct", first_expert=99 * number, ranks=2)
        yield _case("gaussian", 1, 96, 32, 256, 8, path, bias="none")
    yield _staying("gaussian", 8, 96, 64, 3, 2, routing="same-experts", params="distinct")
    yield _case("gaussian", 0, 96, 64, 4, 2, "dp4a")
    yield _staying("gaussian", 1, 2880, 32, 128, 4)
    # One choice a token, a bias of both products, and an output in Q8_1.
    yield _case("gaussian", 3, 96, 64, 4, 1, "llama_cpp", output="q8_1")
    yield _staying("gaussian", 3, 96, 64, 4, 1)
    yield _staying("real", 2, 384, 768, 8, 2)
    yield _staying("gaussian", 3, 96, 64, 4, 2, first_expert=4, ranks=2, routing="elsewhere")
    yield _staying("gaussian", 7, 96, 64, 4, 4, first_expert=4, ranks=3, variant="silu")
    yield _case("gaussian", 1, 2880, 2880, 1, 1, "dp4a")  # gpt-oss's matrices, of one expert
    # A bias of one product alone, and SiLU of tokens that the layer quantizes.
    yield _case("gaussian", 3, 96, 64, 4, 2, "llama_cpp", variant="silu", output="q8_1", bias="second")
    yield _case("gaussian", 3, 96, 64, 8, 2, "dp4a", bias="second", params="closed")
    yield _staying("gaussian", 3, 96, 64, 4, 2, bias="first")
    for path in PATH.words:  # factors of each expert, others for each product
        yield _case("gaussian", 2, 64, 32, 3, 2, path, global_scales="distinct")
    yield _staying("gaussian", 2, 96, 64, 3, 2, global_scales="distinct", bias="none", first_expert=3, ranks=2)
    for path in PATH.words:
        yield _case("gaussian", 8, 96, 64, 6, 2, path, routing="padded")  # a batch as a graph pads it
        yield _case("gaussian", 3, 32, 32, 2, 1, path, routing="unset")
        yield _case("gaussian", 4, 96, 64, 8, 2, path, routing="all-one-token", params="distinct")
        yield _case("gaussian", 2, 32, 32, 11, 32, path, ranks=3)  # as many choices as there may be
    for chosen in pairs.pairwise(pairs.INTEGER_MOE, pairs.integer_moe_agrees):  # any two options together
        yield _case("gaussian", 6, 96, 96, 3, 3, ranks=2, **chosen)


def _full() -> Iterator[Case]:
    for path in PATH.words:
        for m in (1, 8):
            yield _case("gaussian", m, 2880, 2880, 4, 4, path)
        for m in (1, 2, 7):
            yield _case("real", m, 384, 768, 8, 4, path, seed=m)
    for m in (1, 8):
        yield _staying("gaussian", m, 2880, 2880, 4, 4)


_CHANGES: Mapping[str, Change] = {
    "x-nine": lambda given: {"tokens": 9},
    "topk_ids-many": lambda given: {"top_k": 33},
    "topk_ids-past_256": lambda given: {"tokens": 8, "top_k": 32, "hidden": 1 << 27},
    "gate_up-past_max_k": lambda given: {"hidden": 1 << 20},
    "down-past_max_k": lambda given: {"intermediate": 1 << 20},
    "input_sf-given": lambda given: {"input_sf": np.zeros((3, 3), np.float16)},
    "output-of_dp4a": lambda given: {"output": "q8_1"},
    "quantization-of_dp4a": lambda given: {"quantization": "ready"},
}


def _refuses() -> Iterator[Case]:
    yield from wrong_calls(
        _case("gaussian", 3, 96, 64, 4, 2, "dp4a"),
        {
            "x-nine": "x: found 9 tokens",
            "topk_ids-many": "topk_ids: found k = 33",
            "gate_up-past_max_k": "found K = 1048576",
        },
        x="nine",
        topk_ids="many",
        gate_up="past_max_k",
        down="past_max_k",
        input_sf="given",
        tokens="negative",
        top_k="zero",
        experts="zero",
        hidden="zero past negative",
        intermediate="zero past negative",
        first_expert="negative",
        path="word",
        variant="word",
        quantization="word of_dp4a",
        output="word of_dp4a",
    )
    yield from wrong_calls(_staying("gaussian", 3, 96, 64, 4, 2), input_sf="none")


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    m, k, n, rows = case.shape.m, case.shape.k, case.shape.n, case.shape.rows
    product = 4 if case.path == "llama_cpp" else 2
    return staged(
        permute=permutation(case),
        quantize={} if case.dtype == "q8_1" else q8_1_rows(m, k),
        gemm1={"out": rows * 2 * n * product},
        activation=q8_1_rows(rows, n),
        gemm2={"out": rows * k * product},
        finalize=q8_1_rows(m, k) if case.output == "q8_1" else {"out": m * k * 2},
    )


INTEGER_MOE = Family(
    name="integer_moe",
    about="A whole layer of few tokens by integer products: permute, quantize, product, activation, product, finalize.",
    dtypes=("bf16", "q8_1"),
    sizes="mknet",
    fills=LAYER_FILLS,
    options=(PATH, OUTPUT, VARIANT, PARAMS, LAYER_BIAS, GLOBAL_SCALES, ROUTING, *RANKS, SCHEDULES, POISON, WRONG),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=(
            *("x", "x_d", "topk_ids", "topk_weights", "gate_up", "gate_up_scales", "down", "down_scales"),
            *("gate_up_alpha", "down_alpha"),
            *("gate_up_bias", "down_bias", "swiglu_alpha", "swiglu_beta", "swiglu_limit"),
        ),
        features=(
            "x_d",
            "gate_up_alpha",
            "down_alpha",
            "gate_up_bias",
            "down_bias",
            "swiglu_alpha",
            "swiglu_beta",
            "swiglu_limit",
        ),
        outputs={
            "finalize.out": "bfloat16",
            "finalize.codes": "int8",
            "finalize.d": "float16",
            "finalize.s": "float16",
        },
        settings={
            "num_experts": "e",
            "first_expert": "first_expert",
            "top_k": "t",
            "path": "path",
            "output": "output",
            "variant": "variant",
        },
    ),
    sources=("routing", "q8_1", "dp4a", "swiglu_q8_1", "finalize", "finalize_q8_1"),
    host=("refmoe.cuda.moe.integer",),
    check=_check,
    group="dp4a",
)
