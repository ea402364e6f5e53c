"""What the search for races costs: four kernels on the executor, with all checks and with all but that one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from refmoe import ptx
from refmoe.bench.executor import GEMM_N, GEMM_TILE, SEED, K, executor_with, gemm_operands
from refmoe.bench.timing import machine, measure, verdict
from refmoe.cuda.gemm.kernel import grouped_gemm
from refmoe.cuda.quantize import quantize_mxfp8
from refmoe.cuda.routing import route
from refmoe.errors import RefmoeError
from refmoe.ptx import Checks

TARGETS = {"factor": 3.0}
"""With the search for races a kernel takes at most so many times as long as without."""

_EXPERTS, _THREADS = 128, 256
# The last block to arrive sums what the others left: a fence, an atomic, and a fence on the other side.
_REDUCTION = """
.version 8.7
.target sm_120a
.address_size 64
.visible .entry reduction(.param .u64 numbers, .param .u64 partial, .param .u64 count, .param .u64 total) {
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<12>;
    .shared .align 4 .b8 sums[1024];
    .shared .align 4 .b32 last;
    ld.param.u64 %rd1, [numbers];
    ld.param.u64 %rd2, [partial];
    ld.param.u64 %rd3, [count];
    ld.param.u64 %rd4, [total];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %nctaid.x;
    shl.b32 %r4, %r1, 2;
    mov.u32 %r5, sums;
    add.u32 %r5, %r5, %r4;
    mad.lo.u32 %r6, %r2, 2048, %r1;
    mul.wide.u32 %rd5, %r6, 4;
    add.u64 %rd5, %rd1, %rd5;
    mov.u32 %r7, 0;
    mov.u32 %r8, 0;
LOAD:
    ld.global.u32 %r9, [%rd5];
    add.u32 %r7, %r7, %r9;
    add.u64 %rd5, %rd5, 1024;
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p1, %r8, 8;
    @%p1 bra LOAD;
    st.shared.u32 [%r5], %r7;
    mov.u32 %r10, 128;
TREE:
    bar.sync 0;
    setp.ge.u32 %p1, %r1, %r10;
    @%p1 bra SKIP;
    mad.lo.u32 %r11, %r10, 4, %r5;
    ld.shared.u32 %r9, [%r11];
    ld.shared.u32 %r7, [%r5];
    add.u32 %r7, %r7, %r9;
    st.shared.u32 [%r5], %r7;
SKIP:
    shr.u32 %r10, %r10, 1;
    setp.ne.u32 %p1, %r10, 0;
    @%p1 bra TREE;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra ARRIVED;
    mul.wide.u32 %rd6, %r2, 4;
    add.u64 %rd6, %rd2, %rd6;
    st.global.u32 [%rd6], %r7;
    fence.acq_rel.gpu;
    atom.global.add.u32 %r12, [%rd3], 1;
    fence.acq_rel.gpu;
    st.shared.u32 [last], %r12;
ARRIVED:
    bar.sync 0;
    ld.shared.u32 %r12, [last];
    add.u32 %r12, %r12, 1;
    setp.ne.u32 %p3, %r12, %r3;
    @%p3 bra DONE;
    @%p2 bra DONE;
    mov.u32 %r7, 0;
    mov.u32 %r8, 0;
SUM:
    ld.global.u32 %r9, [%rd2];
    add.u32 %r7, %r7, %r9;
    add.u64 %rd2, %rd2, 4;
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p1, %r8, %r3;
    @%p1 bra SUM;
    st.global.u32 [%rd4], %r7;
DONE:
    ret;
}
"""


def run(*, tokens: int = 2048, rounds: int = 5) -> dict[str, Any]:
    """Quantization, the grouped GEMM, routing, and a reduction by the last of many blocks.

    MXFP8 quantization of BF16 [tokens, 2880]; the GEMM sm12x_gemm of 16 tokens and 2 experts of 5760 x 2880, MXFP8 by
    MXFP4; routing of float32 logits [tokens, 128] to 4 experts each; the sum of `tokens` x 2048 numbers, where each of
    `tokens` blocks leaves its sum and the last to arrive adds these. In each of `rounds` rounds every contender runs
    once, and once unmeasured before all.

    Returns:
        JSON-able: in `rows` for each kernel its `kernel`, the medians `all_checks_s` and `no_races_s`, and `factor`,
        the first by the second; `tokens` and `rounds`, `cores`, `versions`, `targets`, `reached` by kernel, and
        `all_reached`.

    Raises:
        RefmoeError: no nvcc, or a launch that differs in a byte.
    """
    rows: list[dict[str, Any]] = []
    for name, kernel in _kernels(tokens).items():
        contenders = {
            "all checks": partial(kernel, Checks()),
            "no races": partial(kernel, replace(Checks(), races=False)),
        }
        if len({contender() for contender in contenders.values()}) != 1:
            raise RefmoeError(f"bench races: {name}: results with and without the search differ")
        medians = {each: timing.median for each, timing in measure(contenders, rounds=rounds).items()}
        checked, unchecked = medians["all checks"], medians["no races"]
        row = {"kernel": name, "all_checks_s": checked, "no_races_s": unchecked, "factor": checked / unchecked}
        rows.append(row)
    reached = {row["kernel"]: row["factor"] <= TARGETS["factor"] for row in rows}
    return {
        "rows": rows,
        "tokens": tokens,
        "rounds": rounds,
        **machine(),
        **verdict(TARGETS, reached),
    }


def _kernels(rows: int) -> dict[str, Callable[[Checks], bytes]]:
    """By name, what runs a kernel with some checks: the bytes that it leaves."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((rows, K), np.float32).astype(ml_dtypes.bfloat16)
    logits = rng.standard_normal((rows, _EXPERTS), np.float32)
    operands = gemm_operands(np.array([0, 8, 16], np.int64), GEMM_N, K)
    numbers = rng.integers(0, 1000, rows * 2048).astype(np.uint32)
    module = ptx.Module.parse(_REDUCTION)

    def quantize(checks: Checks) -> bytes:
        made = quantize_mxfp8(x, device=executor_with(checks))
        return bytes(made.codes.tobytes() + made.scales.tobytes())

    def gemm(checks: Checks) -> bytes:
        return bytes(grouped_gemm(**operands, device=executor_with(checks), tile=GEMM_TILE, out_dtype="f32").tobytes())

    def routing(checks: Checks) -> bytes:
        made = route(logits, 4, _EXPERTS, device=executor_with(checks))
        return bytes(made.topk_ids.tobytes() + made.topk_weights.tobytes())

    def reduction(checks: Checks) -> bytes:
        partial_sums, count, total = np.zeros(rows, np.uint32), np.zeros(1, np.uint32), np.zeros(1, np.uint32)
        arguments = [numbers, partial_sums, count, total]
        ptx.launch(module, "reduction", (rows, 1, 1), (_THREADS, 1, 1), arguments, checks=checks)
        if int(total[0]) != int(numbers.sum(dtype=np.uint64) & np.uint64(0xFFFFFFFF)):
            raise RefmoeError(f"bench races: the reduction gives {int(total[0])}")
        return bytes(total.tobytes())

    return {"quantize": quantize, "gemm": gemm, "routing": routing, "reduction": reduction}
