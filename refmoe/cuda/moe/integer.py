"""A whole MoE layer of up to 8 tokens by integer products: which kernel, on which buffers, moving which bytes.

    dp4a               permute   quantize   gemm1 (BF16)   activation   gemm2 (BF16)   finalize (BF16)
    llama_cpp          permute   quantize   gemm1 (FP32)   activation   gemm2 (FP32)   finalize (BF16)
    llama_cpp, chain   permute              gemm1 (FP32)   activation   gemm2 (FP32)   finalize (Q8_1)

Activations are Q8_1 in all; they differ in what lies between a product and the next quantization. There is no expand:
a product reads a token's row for each of its experts. Outputs lie in the order of the experts, as in the other layers.

The launches overlap: a product asks for its weights while those in front of it are still under way (programmatic
dependent launch). They are one chain, which begins when all that comes before the layer has ended.

A layer of llama_cpp may take its tokens in Q8_1 and give its output in Q8_1, each by itself. The output of one is then
the input of the next without a launch or a conversion between them: its `out` is the next `x`, its workspace's `out_d`
the next `input_sf`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from refmoe.cuda.activation import VARIANTS
from refmoe.cuda.arguments import one_of
from refmoe.cuda.dp4a import GemvSize, check_sizes, dp4a_gemv_plan
from refmoe.cuda.finalize import finalize_kernel, finalize_plan
from refmoe.cuda.finalize_q8_1 import finalize_q8_1_kernel, finalize_q8_1_plan
from refmoe.cuda.launch import Buffer
from refmoe.cuda.moe.launches import LaunchStep, LayerBuffers, LayerShape, Load, Traffic
from refmoe.cuda.q8_1 import HALF_BYTES, q8_1_quantize_kernel, q8_1_quantize_plan
from refmoe.cuda.routing import MAX_TOP_K, MapBuffers, permute_plan
from refmoe.cuda.swiglu_q8_1 import swiglu_q8_1_kernel, swiglu_q8_1_plan
from refmoe.errors import ArgumentError
from refmoe.formats import Q8_1
from refmoe.reference.dp4a import MAX_TOKENS
from refmoe.reference.moe.paths import path_steps

#: The type of a product's outputs, by path.
OUTPUTS: Mapping[str, str] = {"dp4a": "bf16", "llama_cpp": "f32"}
QUANTIZER = "llama_cpp_mmvq"

_BYTES = {"bf16": 2, "f32": 4}
_BF16_BYTES, _INT32_BYTES, _INT64_BYTES, _FP32_BYTES = 2, 4, 8, 4


def integer_workspace_bytes(shape: LayerShape, path: str, *, quantization: str, output: str) -> Mapping[str, int]:
    """Bytes of each intermediate buffer, by name; of a Q8_1 output also its scales `out_d` and sums `out_s`.

    Args:
        shape: sizes.
        path: "dp4a" or "llama_cpp".
        quantization: as in `integer_steps`.
        output: likewise.

    Raises:
        ArgumentError: another path, or one that does not have this quantization or output.
    """
    _check_path(path, quantization, output)
    out, rows = _BYTES[OUTPUTS[path]], shape.rows
    tokens = {} if quantization == "ready" else _q8_1_bytes("quantize", shape.tokens * shape.hidden)
    sums = _q8_1_bytes("out", shape.tokens * shape.hidden) if output == "q8_1" else {}
    return {
        "offsets": (shape.experts + 1) * _INT64_BYTES,
        "permuted_to_unpermuted": rows * _INT32_BYTES,
        "unpermuted_to_permuted": rows * _INT32_BYTES,
        **tokens,
        "gemm1_out": rows * 2 * shape.intermediate * out,
        **_q8_1_bytes("activation", rows * shape.intermediate),
        "gemm2_out": rows * shape.hidden * out,
        **{name: size for name, size in sums.items() if name != "out_codes"},
    }


def output_bytes(shape: LayerShape, output: str) -> int:
    """Bytes of a layer's `out`: BF16, or the codes of Q8_1."""
    return shape.tokens * shape.hidden * (1 if output == "q8_1" else _BF16_BYTES)


def _q8_1_bytes(stage: str, elements: int) -> dict[str, int]:
    halves = elements // Q8_1.block * HALF_BYTES
    return {f"{stage}_codes": elements, f"{stage}_d": halves, f"{stage}_s": halves}


def integer_steps(
    shape: LayerShape,
    path: str,
    buffers: LayerBuffers,
    *,
    variant: str = "gpt_oss",
    quantization: str,
    output: str,
    multiprocessors: int,
) -> tuple[LaunchStep, ...]:
    """The launches of a layer in order; none for no tokens.

    Args:
        shape: sizes; at most 8 tokens, 32 choices of each, and `refmoe.cuda.dp4a.MAX_K` hidden or intermediate
            elements, as many as fit the product's shared memory.
        path: "dp4a" or "llama_cpp".
        buffers: with scales of weights linear, as checkpoints have them, and what `integer_workspace_bytes` lists.
            Ready tokens are `x`, int8 codes [T, H], and `input_sf`, their FP16 scales [T, H / 32]; the sums of blocks
            are nothing that MXFP4 weights need. An output in Q8_1 is `out`, int8 codes [T, H], and in the workspace its
            scales and sums, FP16 `out_d` and `out_s` [T, H / 32].
        variant: of the activation, "gpt_oss" or "silu".
        quantization: "separate", a launch of its own, or of llama_cpp "ready": the tokens are Q8_1.
        output: "bf16", or of llama_cpp "q8_1".
        multiprocessors: of the device.

    Raises:
        ArgumentError: another path or variant; a quantization or an output that the path does not have; ready tokens
            without scales, or scales of others; sizes that `check_layer` refuses.
    """
    _check_path(path, quantization, output)
    one_of("variant", variant, VARIANTS)
    check_layer(shape)
    if (buffers.input_sf is None) == (quantization == "ready"):
        found = "None" if quantization == "ready" else "scales of tokens that are not quantized"
        raise ArgumentError("input_sf", f"{found} with {quantization} tokens", "scales with ready tokens alone")
    if shape.tokens == 0:
        return ()
    first, *others = _Planner(shape, path, buffers, variant, quantization, output, multiprocessors).steps()
    # Each but the first may start before the one in front of it has ended. The first waits for all that comes before
    # the layer, so that its inputs are there for all launches.
    return (first, *(replace(step, plan=replace(step.plan, programmatic=True)) for step in others))


def check_layer(shape: LayerShape) -> None:
    """Refuse a layer that its launches cannot run, in the words of the layer.

    Raises:
        ArgumentError: `x`, `topk_ids`, `gate_up` or `down`, what was found and what is needed.
    """
    if shape.tokens > MAX_TOKENS:
        raise ArgumentError("x", f"{shape.tokens} tokens", f"at most {MAX_TOKENS}: more are for a GEMM")
    if shape.top_k > MAX_TOP_K:
        raise ArgumentError("topk_ids", f"k = {shape.top_k}", f"k from 1 to {MAX_TOP_K}")
    _check_product("gate_up", shape, 2 * shape.intermediate, shape.hidden)
    _check_product("down", shape, shape.hidden, shape.intermediate)


def _check_product(weights: str, shape: LayerShape, n: int, k: int) -> None:
    """The GEMV's own checks of its sizes, on arrays that take no memory."""
    packed = np.broadcast_to(np.uint8(0), (shape.experts, n, k // 2))
    try:
        check_sizes(packed, np.zeros((shape.tokens, shape.top_k), np.int32), shape.first_expert)
    except ArgumentError as error:
        name = weights if error.argument == "weights" else error.argument
        raise ArgumentError(name, error.found, error.needed) from None


def _check_path(path: str, quantization: str, output: str) -> None:
    one_of("path", path, tuple(OUTPUTS))
    path_steps(path, quantization, output)


@dataclass(frozen=True)
class _Planner:
    shape: LayerShape
    path: str
    buffers: LayerBuffers
    variant: str
    quantization: str
    output: str
    multiprocessors: int

    def steps(self) -> Iterator[LaunchStep]:
        yield self._permute()
        if self.quantization == "separate":
            yield self._quantize()
        yield self._product("gemm1", "quantize", 2 * self.shape.intermediate, self.shape.hidden)
        yield self._activation()
        yield self._product("gemm2", "activation", self.shape.hidden, self.shape.intermediate)
        yield self._finalize_q8_1() if self.output == "q8_1" else self._finalize()

    def _conversions(self, stage: str) -> tuple[str, ...]:
        steps = path_steps(self.path, self.quantization, self.output)
        return next(step.conversions for step in steps if step.stage == stage)

    def _q8_1(self, stage: str) -> tuple[Buffer, Buffer, Buffer]:
        space = self.buffers.workspace
        return space[f"{stage}_codes"], space[f"{stage}_d"], space[f"{stage}_s"]

    def _permute(self) -> LaunchStep:
        space, shape = self.buffers.workspace, self.shape
        maps = MapBuffers(space["offsets"], space["permuted_to_unpermuted"], space["unpermuted_to_permuted"])
        plan = permute_plan(
            self.buffers.topk_ids,
            maps,
            tokens=shape.tokens,
            top_k=shape.top_k,
            experts=shape.experts,
            first_expert=shape.first_expert,
        )
        size = shape.rows * _INT32_BYTES
        writes = {
            "offsets": (shape.experts + 1) * _INT64_BYTES,
            "permuted_to_unpermuted": size,
            "unpermuted_to_permuted": size,
        }
        return LaunchStep("permute", plan, (), tuple(writes), lambda load: Traffic({"topk_ids": size}, writes))

    def _quantize(self) -> LaunchStep:
        shape = self.shape
        plan = q8_1_quantize_plan(
            q8_1_quantize_kernel("bf16", QUANTIZER),
            self.buffers.x,
            *self._q8_1("quantize"),
            rows=shape.tokens,
            k=shape.hidden,
            multiprocessors=self.multiprocessors,
        )
        reads = {"x": shape.tokens * shape.hidden * _BF16_BYTES}
        writes = _q8_1_bytes("quantize", shape.tokens * shape.hidden)
        conversions = self._conversions("quantize")
        return LaunchStep("quantize", plan, conversions, tuple(writes), lambda load: Traffic(reads, writes))

    def _product(self, stage: str, source: str, n: int, k: int) -> LaunchStep:
        """gemm1 reads a row a token and adds its bias; gemm2 a row a choice, and its bias is finalize's."""
        shape, space, buffers = self.shape, self.buffers.workspace, self.buffers
        first = stage == "gemm1"
        weights = "gate_up" if first else "down"
        alpha, bias = getattr(buffers, f"{weights}_alpha"), buffers.gate_up_bias if first else None
        ready = first and self.quantization == "ready"
        codes, d = (buffers.x, buffers.input_sf) if ready else self._q8_1(source)[:2]
        codes_name, d_name = ("x", "input_sf") if ready else (f"{source}_codes", f"{source}_d")
        plan = dp4a_gemv_plan(
            OUTPUTS[self.path],
            codes,
            d,
            getattr(buffers, weights),
            getattr(buffers, f"{weights}_scales"),
            buffers.topk_ids,
            space["unpermuted_to_permuted"],
            alpha,
            bias,
            space[f"{stage}_out"],
            size=GemvSize(shape.tokens, shape.top_k, shape.experts, shape.first_expert, n, k),
            input_by_choice=not first,
        )

        def traffic(load: Load) -> Traffic:
            """Of all tokens, though one none of whose experts are on this rank is not read."""
            rows = (shape.tokens if load.used else 0) if first else load.used
            reads = {
                weights: load.active * n * k // 2,
                f"{weights}_scales": load.active * n * k // Q8_1.block,
                codes_name: rows * k,
                d_name: rows * k // Q8_1.block * HALF_BYTES,
                "topk_ids": shape.rows * _INT32_BYTES,
                "unpermuted_to_permuted": load.used * _INT32_BYTES,
            }
            if alpha is not None:
                reads[f"{weights}_alpha"] = load.active * _FP32_BYTES
            if bias is not None:
                reads["gate_up_bias"] = load.active * n * _BF16_BYTES
            return Traffic(reads, {f"{stage}_out": load.used * n * _BYTES[OUTPUTS[self.path]]})

        return LaunchStep(stage, plan, self._conversions(stage), (f"{stage}_out",), traffic)

    def _activation(self) -> LaunchStep:
        shape, space, buffers = self.shape, self.buffers.workspace, self.buffers
        plan = swiglu_q8_1_plan(
            swiglu_q8_1_kernel(self.variant, OUTPUTS[self.path], QUANTIZER),
            space["gemm1_out"],
            space["offsets"],
            (buffers.swiglu_alpha, buffers.swiglu_beta, buffers.swiglu_limit),
            *self._q8_1("activation"),
            rows=shape.rows,
            width=shape.intermediate,
            experts=shape.experts,
            multiprocessors=self.multiprocessors,
        )

        def traffic(load: Load) -> Traffic:
            # A row compares itself with the ends of all experts.
            reads = {
                "gemm1_out": load.used * 2 * shape.intermediate * _BYTES[OUTPUTS[self.path]],
                "offsets": shape.experts * _INT64_BYTES,
            }
            for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit"):
                if getattr(buffers, name) is not None:
                    reads[name] = load.active * _FP32_BYTES
            return Traffic(reads, _q8_1_bytes("activation", load.used * shape.intermediate))

        outputs = tuple(_q8_1_bytes("activation", 0))
        return LaunchStep("activation", plan, self._conversions("activation"), outputs, traffic)

    def _finalize(self) -> LaunchStep:
        shape, space, buffers = self.shape, self.buffers.workspace, self.buffers
        plan = finalize_plan(
            finalize_kernel(OUTPUTS[self.path], "bf16"),
            space["gemm2_out"],
            space["unpermuted_to_permuted"],
            buffers.topk_weights,
            None if buffers.down_bias is None else buffers.topk_ids,
            buffers.down_bias,
            buffers.out,
            tokens=shape.tokens,
            top_k=shape.top_k,
            width=shape.hidden,
            first_expert=shape.first_expert,
            multiprocessors=self.multiprocessors,
        )

        def traffic(load: Load) -> Traffic:
            return Traffic(self._summed(load), {"out": output_bytes(shape, self.output)})

        return LaunchStep("finalize", plan, self._conversions("finalize"), ("out",), traffic)

    def _finalize_q8_1(self) -> LaunchStep:
        shape, space, buffers = self.shape, self.buffers.workspace, self.buffers
        plan = finalize_q8_1_plan(
            finalize_q8_1_kernel(OUTPUTS[self.path], QUANTIZER),
            space["gemm2_out"],
            space["unpermuted_to_permuted"],
            buffers.topk_weights,
            None if buffers.down_bias is None else buffers.topk_ids,
            buffers.down_bias,
            buffers.out,
            space["out_d"],
            space["out_s"],
            tokens=shape.tokens,
            top_k=shape.top_k,
            width=shape.hidden,
            first_expert=shape.first_expert,
            multiprocessors=self.multiprocessors,
        )
        sizes = _q8_1_bytes("out", shape.tokens * shape.hidden)
        writes = {"out": sizes.pop("out_codes"), **sizes}
        conversions = self._conversions("finalize")
        return LaunchStep(
            "finalize", plan, conversions, tuple(writes), lambda load: Traffic(self._summed(load), writes)
        )

    def _summed(self, load: Load) -> dict[str, int]:
        """What either finalize reads."""
        shape, maps = self.shape, self.shape.rows * _INT32_BYTES
        reads = {
            "gemm2_out": load.used * shape.hidden * _BYTES[OUTPUTS[self.path]],
            "unpermuted_to_permuted": maps,
            "topk_weights": shape.rows * _FP32_BYTES,
        }
        if self.buffers.down_bias is not None:
            reads |= {"topk_ids": maps, "down_bias": load.active * shape.hidden * _BF16_BYTES}
        return reads
