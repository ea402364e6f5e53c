"""A whole MoE layer as a list of launches: which kernel, on which buffers, in which order, moving which bytes.

Nothing here depends on what a device buffer holds, so a plan can be made before the routing is known, captured in a
CUDA graph and replayed. The tile of the GEMMs is chosen for as many tokens as an expert can have; a tile decides how
fast a GEMM is and never what it computes.

    fused      permute   expand (quantizes)   gemm1   activation   gemm2   finalize
    separate   permute   quantize   expand    gemm1   activation   gemm2   finalize
    ready      permute   expand (copies)      gemm1   activation   gemm2   finalize
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from refmoe.cuda.activation import VARIANTS, swiglu_kernel, swiglu_quantize_plan
from refmoe.cuda.arguments import (
    GROUP_BLOCKS,
    expanded_scale_rows,
    k_groups,
    one_of,
    scale_buffer_bytes,
)
from refmoe.cuda.expand import INPUT_SF_LAYOUTS, expand_kernel, expand_plan
from refmoe.cuda.finalize import finalize_kernel, finalize_plan
from refmoe.cuda.gemm.choice import choose_tile
from refmoe.cuda.gemm.grouped import GemmShape
from refmoe.cuda.gemm.kernel import GEMM
from refmoe.cuda.gemm.tile import SCALE_LAYOUT, SCALE_ROWS
from refmoe.cuda.launch import Buffer, LaunchPlan
from refmoe.cuda.quantize import EDGES, MODES, mxfp8_quantize_kernel, mxfp8_quantize_plan
from refmoe.cuda.routing import MapBuffers, permute_plan
from refmoe.errors import ArgumentError
from refmoe.formats import MX_BLOCK
from refmoe.reference.moe.paths import QUANTIZATIONS

#: Intermediates of which launches read bytes that none wrote: a GEMM copies the scales of four rows of an atom at once,
#: and what it gets of rows that no token has decides nothing.
READ_WHOLE = frozenset({"expand_scales", "activation_scales"})

_BF16_BYTES, _INT32_BYTES, _INT64_BYTES, _FP32_BYTES = 2, 4, 8, 4


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a layer on one rank.

    Attributes:
        tokens: T.
        top_k: experts of a token.
        experts: E, those of this rank.
        hidden: H, a multiple of 32.
        intermediate: I, a multiple of 32; of this rank's slice under tensor parallelism.
        first_expert: the id of the first of this rank's experts.

    Raises:
        ArgumentError: a size that is none of these.
    """

    tokens: int
    top_k: int
    experts: int
    hidden: int
    intermediate: int
    first_expert: int = 0

    def __post_init__(self) -> None:
        for name, least in (("tokens", 0), ("top_k", 1), ("experts", 1), ("first_expert", 0)):
            if getattr(self, name) < least:
                raise ArgumentError(name, str(getattr(self, name)), f"at least {least}")
        for name in ("hidden", "intermediate"):
            size = getattr(self, name)
            if size < 1 or size % MX_BLOCK:
                raise ArgumentError(name, str(size), f"a positive multiple of {MX_BLOCK}")

    @property
    def rows(self) -> int:
        """Rows of the expanded tokens, those that stay unused on this rank included."""
        return self.tokens * self.top_k


@dataclass(frozen=True)
class LayerOptions:
    """What is computed, where there is a choice.

    Attributes:
        quantization: "fused" in expand, "separate", or "ready": the tokens come as MXFP8.
        dtype: of the tokens, "bf16" or "fp16"; "mxfp8" if they are ready.
        variant: of the activation, "gpt_oss" or "silu".
        mode: scale mode, "rceil" or "floor".
        edge: edge policy, "exact" or "flashinfer".
        input_sf_layout: of ready tokens' scales, "linear" or "128x4".
        min_latency: take the static rule's narrow tiles.

    Raises:
        ArgumentError: any other word.
    """

    quantization: str = "fused"
    dtype: str = "bf16"
    variant: str = "gpt_oss"
    mode: str = "rceil"
    edge: str = "exact"
    input_sf_layout: str = "linear"
    min_latency: bool = False

    def __post_init__(self) -> None:
        one_of("quantization", self.quantization, QUANTIZATIONS)
        one_of("dtype", self.dtype, ("mxfp8",) if self.quantization == "ready" else ("bf16", "fp16"))
        one_of("variant", self.variant, VARIANTS)
        one_of("mode", self.mode, MODES)
        one_of("edge", self.edge, EDGES)
        one_of("input_sf_layout", self.input_sf_layout, INPUT_SF_LAYOUTS)


@dataclass(frozen=True)
class LayerBuffers:
    """Every buffer of a layer. Scales are in 128x4, an expert's weights from a row multiple of 128 on.

    Every buffer starts at a multiple of 16 bytes, that of the kernels' widest access: vector loads and stores of 16
    bytes, and bulk copies of weights, which take nothing less. What `cudaMalloc` and torch's allocator give starts at a
    multiple of 256; a slice of a tensor may not. No plan looks at an address. `refmoe.cuda.moe.operators` refuses a
    tensor that starts elsewhere, and the executor faults at the first access.

    Attributes:
        x: [T, H] BF16 or FP16, or E4M3 codes; int8 codes of Q8_1 on a path by integer products.
        input_sf: scales of ready tokens; None of others.
        topk_ids: int32 [T, k].
        topk_weights: float32 [T, k].
        gate_up, gate_up_scales: packed E2M1 [E, 2 I, H / 2] and its scales.
        down, down_scales: packed E2M1 [E, H, I / 2] and its scales.
        gate_up_alpha, down_alpha: float32 [E], factors of the GEMMs' sums, or None.
        gate_up_bias, down_bias: BF16 [E, 2 I], [E, H], or None.
        swiglu_alpha, swiglu_beta, swiglu_limit: float32 [E], or None for gpt-oss's figures.
        out: BF16 [T, H], or int8 codes of Q8_1.
        workspace: by name, of `workspace_bytes`; a part of one allocation starts at a multiple of 16 bytes too.
    """

    x: Buffer
    input_sf: Buffer | None
    topk_ids: Buffer
    topk_weights: Buffer
    gate_up: Buffer
    gate_up_scales: Buffer
    down: Buffer
    down_scales: Buffer
    gate_up_alpha: Buffer | None
    down_alpha: Buffer | None
    gate_up_bias: Buffer | None
    down_bias: Buffer | None
    swiglu_alpha: Buffer | None
    swiglu_beta: Buffer | None
    swiglu_limit: Buffer | None
    out: Buffer
    workspace: Mapping[str, Buffer]


@dataclass(frozen=True)
class Traffic:
    """Bytes that a launch reads and writes, each counted once, by the names of `LayerBuffers` and of its workspace."""

    reads: Mapping[str, int]
    writes: Mapping[str, int]

    @property
    def read(self) -> int:
        """Bytes read."""
        return sum(self.reads.values())

    @property
    def written(self) -> int:
        """Bytes written."""
        return sum(self.writes.values())


@dataclass(frozen=True)
class LaunchStep:
    """One launch of a layer.

    Attributes:
        stage: permute, quantize, expand, gemm1, activation, gemm2 or finalize.
        plan: the launch.
        conversions: what becomes of the activations' numbers, in order: "BF16 -> MXFP8".
        outputs: names of the buffers that it writes.
        moves: `traffic` for the rows of each of this rank's experts.
    """

    stage: str
    plan: LaunchPlan
    conversions: tuple[str, ...]
    outputs: tuple[str, ...]
    moves: Callable[[Load], Traffic]

    def traffic(self, rows_per_expert: Sequence[int]) -> Traffic:
        """The bytes that it touches if this rank's experts have so many rows each.

        What the executor counts when it runs the launch (tests/cuda/moe/test_traffic.py). Caches see more, since
        several CTAs read the same bytes; memory sees this much if a cache holds what they share.
        """
        return self.moves(Load(tuple(int(rows) for rows in rows_per_expert)))


@dataclass(frozen=True)
class Load:
    """What the traffic of a layer depends on beside its sizes: the rows of each expert."""

    rows: tuple[int, ...]

    @property
    def used(self) -> int:
        """Rows that an expert of this rank has."""
        return sum(self.rows)

    @property
    def active(self) -> int:
        """Experts with rows."""
        return sum(rows > 0 for rows in self.rows)

    @property
    def atoms(self) -> int:
        """Atoms of `SCALE_ROWS` rows in which they have scales."""
        return sum(-(-rows // SCALE_ROWS) for rows in self.rows)


def workspace_bytes(shape: LayerShape, options: LayerOptions) -> Mapping[str, int]:
    """Bytes of each intermediate buffer, by name; they may hold anything before the first launch."""
    rows = shape.rows
    scale_rows = expanded_scale_rows(rows, shape.experts)
    sizes = {
        "offsets": (shape.experts + 1) * _INT64_BYTES,
        "permuted_to_unpermuted": rows * _INT32_BYTES,
        "unpermuted_to_permuted": rows * _INT32_BYTES,
        "expand_codes": rows * shape.hidden,
        "expand_scales": scale_rows * k_groups(shape.hidden) * GROUP_BLOCKS,
        "gemm1_out": rows * 2 * shape.intermediate * _BF16_BYTES,
        "activation_codes": rows * shape.intermediate,
        "activation_scales": scale_rows * k_groups(shape.intermediate) * GROUP_BLOCKS,
        "gemm2_out": rows * shape.hidden * _BF16_BYTES,
    }
    if options.quantization == "separate":
        sizes["quantize_codes"] = shape.tokens * shape.hidden
        sizes["quantize_scales"] = scale_buffer_bytes(shape.tokens, shape.hidden, "linear")
    return sizes


def layer_steps(
    shape: LayerShape, options: LayerOptions, buffers: LayerBuffers, *, multiprocessors: int, arch: str
) -> tuple[LaunchStep, ...]:
    """The launches of a layer in order; none for no tokens.

    Args:
        shape: sizes.
        options: what is computed.
        buffers: with `workspace_bytes(shape, options)` in its workspace.
        multiprocessors: of the device.
        arch: of the device.

    Raises:
        ArgumentError: a tile that `arch` does not have.
    """
    if shape.tokens == 0:
        return ()
    return tuple(_Planner(shape, options, buffers, multiprocessors, arch).steps())


@dataclass(frozen=True)
class _Planner:
    shape: LayerShape
    options: LayerOptions
    buffers: LayerBuffers
    multiprocessors: int
    arch: str

    def steps(self) -> Iterator[LaunchStep]:
        yield self._permute()
        if self.options.quantization == "separate":
            yield self._quantize()
        yield self._expand()
        yield self._gemm("gemm1", "expand", 2 * self.shape.intermediate, self.shape.hidden)
        yield self._activation()
        yield self._gemm("gemm2", "activation", self.shape.hidden, self.shape.intermediate)
        yield self._finalize()

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
        maps_bytes = shape.rows * _INT32_BYTES
        traffic = Traffic(
            {"topk_ids": maps_bytes},
            {
                "offsets": (shape.experts + 1) * _INT64_BYTES,
                "permuted_to_unpermuted": maps_bytes,
                "unpermuted_to_permuted": maps_bytes,
            },
        )
        return LaunchStep("permute", plan, (), tuple(traffic.writes), lambda load: traffic)

    def _quantize(self) -> LaunchStep:
        options, space = self.options, self.buffers.workspace
        plan = mxfp8_quantize_plan(
            mxfp8_quantize_kernel(options.dtype, options.mode, options.edge, "linear"),
            self.buffers.x,
            space["quantize_codes"],
            space["quantize_scales"],
            rows=self.shape.tokens,
            k=self.shape.hidden,
            multiprocessors=self.multiprocessors,
        )
        elements = self.shape.tokens * self.shape.hidden
        traffic = Traffic(
            {"x": elements * _BF16_BYTES},
            {"quantize_codes": elements, "quantize_scales": elements // MX_BLOCK},
        )
        return LaunchStep(
            "quantize", plan, (f"{options.dtype.upper()} -> MXFP8",), tuple(traffic.writes), lambda load: traffic
        )

    def _expand(self) -> LaunchStep:
        options, space, shape = self.options, self.buffers.workspace, self.shape
        x, input_sf = self.buffers.x, self.buffers.input_sf
        conversions: tuple[str, ...] = ()
        if options.quantization == "fused":
            kind = f"{options.dtype}_{options.mode}_{options.edge}"
            conversions = (f"{options.dtype.upper()} -> MXFP8",)
        elif options.quantization == "separate":
            kind = "mxfp8_linear"
            x, input_sf = space["quantize_codes"], space["quantize_scales"]
        else:
            kind = f"mxfp8_{options.input_sf_layout}"
        plan = expand_plan(
            expand_kernel(kind, SCALE_LAYOUT),
            x,
            input_sf,
            self.buffers.topk_ids,
            space["unpermuted_to_permuted"],
            space["offsets"],
            space["expand_codes"],
            space["expand_scales"],
            tokens=shape.tokens,
            top_k=shape.top_k,
            k=shape.hidden,
            first_expert=shape.first_expert,
            multiprocessors=self.multiprocessors,
        )
        return LaunchStep("expand", plan, conversions, ("expand_codes", "expand_scales"), self._expand_traffic)

    def _expand_traffic(self, load: Load) -> Traffic:
        """Every token's row once, one of another rank's experts too: nothing waits to know."""
        shape, options = self.shape, self.options
        separate, ready = options.quantization == "separate", options.quantization == "ready"
        elements = shape.tokens * shape.hidden
        reads = {"quantize_codes" if separate else "x": elements * (1 if separate or ready else _BF16_BYTES)}
        if separate or ready:
            reads["quantize_scales" if separate else "input_sf"] = elements // MX_BLOCK
        reads["topk_ids"] = reads["unpermuted_to_permuted"] = shape.rows * _INT32_BYTES
        # The row of a token alone is its expert's first. A choice of another rank looks up the first expert.
        first = load.used < shape.rows and not load.rows[0]
        reads["offsets"] = (load.active + first) * _INT64_BYTES if shape.tokens > 1 else 0
        return Traffic(reads, self._quantized("expand", load, shape.hidden))

    def _quantized(self, stage: str, load: Load, width: int) -> dict[str, int]:
        """Codes and scales of the rows in use, padded columns of the scales included."""
        return {f"{stage}_codes": load.used * width, f"{stage}_scales": load.used * k_groups(width) * GROUP_BLOCKS}

    def _gemm(self, stage: str, source: str, n: int, k: int) -> LaunchStep:
        """gemm1 adds its bias; that of gemm2 is finalize's, which adds it in FP32 before it weights."""
        shape, space, buffers = self.shape, self.buffers.workspace, self.buffers
        first = stage == "gemm1"
        # A token has an expert once at most, so no expert has more rows than there are tokens.
        tile, stages = choose_tile(shape.tokens, self.arch, min_latency=self.options.min_latency)
        operands = (
            buffers.gate_up if first else buffers.down,
            buffers.gate_up_scales if first else buffers.down_scales,
            space[f"{source}_codes"],
            space[f"{source}_scales"],
            space["offsets"],
            buffers.gate_up_alpha if first else buffers.down_alpha,
            buffers.gate_up_bias if first else None,
        )
        plan = GEMM.plan(
            tile,
            "bf16",
            stages,
            operands,
            space[f"{stage}_out"],
            GemmShape(shape.rows, shape.experts, n, k),
            multiprocessors=self.multiprocessors,
        )

        def traffic(load: Load) -> Traffic:
            weights, alpha = ("gate_up", "gate_up_alpha") if first else ("down", "down_alpha")
            reads = {
                weights: load.active * n * k // 2,
                f"{weights}_scales": load.active * scale_buffer_bytes(n, k, SCALE_LAYOUT),
                f"{source}_codes": load.used * k,
                # Whole atoms, whatever the rows in them.
                f"{source}_scales": load.atoms * scale_buffer_bytes(1, k, SCALE_LAYOUT),
                "offsets": (shape.experts + 1) * _INT64_BYTES,
            }
            if operands[5] is not None:
                reads[alpha] = load.active * _FP32_BYTES
            if operands[6] is not None:
                reads["gate_up_bias"] = load.active * n * _BF16_BYTES
            return Traffic(reads, {f"{stage}_out": load.used * n * _BF16_BYTES})

        return LaunchStep(stage, plan, ("MXFP8 x MXFP4 -> FP32", "FP32 -> BF16"), (f"{stage}_out",), traffic)

    def _activation(self) -> LaunchStep:
        options, space, buffers = self.options, self.buffers.workspace, self.buffers
        plan = swiglu_quantize_plan(
            swiglu_kernel(options.variant, options.mode, options.edge, SCALE_LAYOUT),
            space["gemm1_out"],
            space["offsets"],
            None,
            (buffers.swiglu_alpha, buffers.swiglu_beta, buffers.swiglu_limit),
            space["activation_codes"],
            space["activation_scales"],
            rows=self.shape.rows,
            width=self.shape.intermediate,
            experts=self.shape.experts,
            multiprocessors=self.multiprocessors,
        )
        outputs = ("activation_codes", "activation_scales")
        return LaunchStep("activation", plan, ("BF16 -> FP32", "FP32 -> MXFP8"), outputs, self._activation_traffic)

    def _activation_traffic(self, load: Load) -> Traffic:
        shape, buffers = self.shape, self.buffers
        # A row compares itself with the ends of all experts, and reads the beginning of its own; without rows the last
        # end is all that is read.
        offsets = shape.experts + bool(load.rows[0]) if load.used else 1
        reads = {"gemm1_out": load.used * 2 * shape.intermediate * _BF16_BYTES, "offsets": offsets * _INT64_BYTES}
        for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit"):
            if getattr(buffers, name) is not None:
                reads[name] = load.active * _FP32_BYTES
        return Traffic(reads, self._quantized("activation", load, shape.intermediate))

    def _finalize(self) -> LaunchStep:
        shape, space, buffers = self.shape, self.buffers.workspace, self.buffers
        plan = finalize_plan(
            finalize_kernel("bf16", "bf16"),
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
        return LaunchStep("finalize", plan, ("BF16 -> FP32", "FP32 -> BF16"), ("out",), self._finalize_traffic)

    def _finalize_traffic(self, load: Load) -> Traffic:
        shape, maps_bytes = self.shape, self.shape.rows * _INT32_BYTES
        row_bytes = shape.hidden * _BF16_BYTES
        reads = {
            "gemm2_out": load.used * row_bytes,
            "unpermuted_to_permuted": maps_bytes,
            "topk_weights": shape.rows * _FP32_BYTES,
        }
        if self.buffers.down_bias is not None:
            reads |= {"topk_ids": maps_bytes, "down_bias": load.active * row_bytes}
        return Traffic(reads, {"out": shape.tokens * row_bytes})
