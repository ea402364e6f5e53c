"""The DP4A product on a GPU, at the sizes of gpt-oss, beside a pure read of its bytes and a BF16 product."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from refmoe.bench.gpu.kernels import BF16_BYTES, GPT_OSS_120B
from refmoe.bench.gpu.timing import Calls, Contender, contender, drawn_bytes, empty, read
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.dp4a import GemvSize, dp4a_gemv_plan
from refmoe.cuda.launch import LaunchPlan
from refmoe.cuda.q8_1 import q8_1_quantize_kernel, q8_1_quantize_plan
from refmoe.formats import Q8_1

HIDDEN, TOP_K = GPT_OSS_120B.hidden, GPT_OSS_120B.top_k
WEIGHT_ROWS = (5760, 2880)  # of gpt-oss's two GEMMs
TOKENS = (1, 4, 8)
VARIANT = "llama_cpp_mmvq"


def groups(device: CudaDevice, floors: CudaDevice, *, peers: bool = True) -> list[list[Contender | Calls]]:
    """For each matrix and number of tokens the product beside its floor; then the quantizer of its activations.

    Every choice of a token is an expert of its own, as of 128 experts nearly all are: M tokens read 4 M experts. The
    floor of a group is a pure read of the bytes that the product reads. With `peers` torch's product is timed, too.
    """
    compared: list[list[Contender | Calls]] = []
    for n in WEIGHT_ROWS:
        for tokens in TOKENS:
            product = _dp4a(device, tokens, n)
            theirs = [_bmm(device, tokens, n)] if peers else []
            compared.append([read(floors, product.traffic), product, *theirs])
    return [*compared, [empty(floors), *(_quantize(device, tokens) for tokens in TOKENS)]]


def _dp4a(device: CudaDevice, tokens: int, n: int) -> Contender:
    experts, blocks = tokens * TOP_K, HIDDEN // Q8_1.block
    size = GemvSize(tokens, TOP_K, experts, 0, n, HIDDEN)
    traffic = experts * n * (HIDDEN // 2 + blocks) + tokens * (HIDDEN + blocks * BF16_BYTES) + experts * n * BF16_BYTES

    def launches(seed: int) -> list[LaunchPlan]:
        ids = np.random.default_rng(seed).permutation(experts).reshape(tokens, TOP_K).astype(np.int32)
        plan = dp4a_gemv_plan(
            "bf16",
            drawn_bytes(device, seed, (tokens, HIDDEN), 0, 256),
            device.upload("d", np.full((tokens, blocks), 0.02, np.float16)),
            drawn_bytes(device, seed + 1, (experts, n, HIDDEN // 2), 0, 256),
            drawn_bytes(device, seed + 2, (experts, n, blocks), 118, 124),
            device.upload("topk_ids", ids),
            None,
            None,
            None,
            device.output("out", (experts, n * BF16_BYTES), 0),
            size=size,
            input_by_choice=False,
        )
        return [plan]

    return contender(device, f"DP4A, {experts} experts {n} x {HIDDEN}, M = {tokens}", traffic, launches)


def _bmm(device: CudaDevice, tokens: int, n: int) -> Calls:
    """torch.bmm of the same experts, one activation each, whose weights are BF16 already."""
    torch, experts = device.torch, tokens * TOP_K
    traffic = experts * (n * HIDDEN + HIDDEN + n) * BF16_BYTES
    calls = []
    for seed in range(2):  # each alone is larger than the L2 cache
        generator = torch.Generator(device="cuda").manual_seed(seed)
        options = {"dtype": torch.bfloat16, "device": "cuda", "generator": generator}
        weights, x = torch.randn((experts, n, HIDDEN), **options), torch.randn((experts, HIDDEN, 1), **options)
        out = torch.empty((experts, n, 1), dtype=torch.bfloat16, device="cuda")
        calls.append(lambda weights=weights, x=x, out=out: torch.bmm(weights, x, out=out))
    return Calls(f"torch.bmm in BF16, {experts} experts {n} x {HIDDEN}, M = {tokens}", traffic, calls)


def _quantize(device: CudaDevice, tokens: int) -> Contender:
    blocks = HIDDEN // Q8_1.block
    traffic = tokens * (HIDDEN * BF16_BYTES + blocks * Q8_1.block_bytes)

    def launches(seed: int) -> list[LaunchPlan]:
        values = np.random.default_rng(seed).standard_normal((tokens, HIDDEN), np.float32)
        plan = q8_1_quantize_plan(
            q8_1_quantize_kernel("bf16", VARIANT),
            device.upload("x", values.astype(ml_dtypes.bfloat16)),
            device.output("codes", (tokens, HIDDEN), 0),
            device.output("d", (tokens, blocks * BF16_BYTES), 0),
            device.output("s", (tokens, blocks * BF16_BYTES), 0),
            rows=tokens,
            k=HIDDEN,
            multiprocessors=device.multiprocessors,
        )
        return [plan]

    return contender(device, f"quantize {tokens} x {HIDDEN} bf16 to Q8_1", traffic, launches)
