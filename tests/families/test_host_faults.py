"""Faults planted by hand in the host code that launches kernels: the case that sees each, at the default level.

Faults of CUDA sources are patches (refmoe/families/mutants). Host code is Python: a fault is put in place in a fork of
this process.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from refmoe.catalog import list_cases, parse_case
from refmoe.mutation import host
from refmoe.mutation.forked import forked
from refmoe.mutation.reach import HOST
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.runner import run_case


class HostFault(NamedTuple):
    """What stands in a file of refmoe/cuda, what somebody writes in its place, and the case that then fails."""

    name: str
    file: str
    sound: str
    planted: str
    case: str


FAULTS = (
    HostFault(
        "the edge policy of BF16 alone in a quantize launch",
        "moe/launches.py",
        '(options.dtype, options.mode, options.edge, "linear")',
        '(options.dtype, options.mode, options.edge if options.dtype == "bf16" else "exact", "linear")',
        "moe:fp16:m3k64n32e3t1:odd:variant=silu:mode=floor:edge=flashinfer:poison=0x7F:seed7@ptx",
    ),
    HostFault(
        "an output for no tokens is not looked at",
        "moe/call.py",
        '_expect("output", given.output, "bfloat16", (tokens, hidden))',
        '_expect("output", given.output, "bfloat16", (tokens, hidden)) if tokens else None',
        "moe:bf16:m0k64n32e4t2:gaussian:path=fused:params=distinct:bias=distinct:global_scales=distinct:entry=output:"
        "first_expert=4:ranks=2:poison=0x7F:wrong=output-dtype:seed7@ptx",
    ),
    HostFault(
        "no room for a grid behind the last tile",
        "gemm/grouped.py",
        'check_int32("codes", most_tiles + multiprocessors,',
        'check_int32("codes", most_tiles,',
        "sm12x_gemm:f32:m5k64n16e3:gaussian:alpha=distinct:bias=distinct:wrong=codes-most_tiles:seed7@ptx",
    ),
    HostFault(
        "no room for a tile behind the last row of block FP8",
        "block_fp8.py",
        "(x.shape[0] if x.ndim else 0) + TILE_ROWS",
        "(x.shape[0] if x.ndim else 0)",
        "block_fp8_quantize:bf16:m2k64:gaussian:wrong=x-most_rows:seed7@ptx",
    ),
    HostFault(
        "no room for a tile behind the last row of a DeepSeek product",
        "deepseek_gemm.py",
        "shape.rows + WGMMA.tiles_m[-1]",
        "shape.rows",
        "deepseek_gemm:bf16:m5k256n128e2:near:rows=2-3:tile_m=8:wrong=tokens-most_rows:seed7@ptx",
    ),
    HostFault(
        "tiles of a DeepSeek product counted once",
        "deepseek_gemm.py",
        'check_int32("tokens", 2 * grid',
        'check_int32("tokens", grid',
        "deepseek_gemm:bf16:m5k256n128e2:near:rows=2-3:tile_m=8:wrong=tokens-most_tiles:seed7@ptx",
    ),
    HostFault(
        "no room for a grid behind the last row",
        "arguments.py",
        "most = INT32_MAX - MAX_GRID",
        "most = INT32_MAX",
        "mxfp8_quantize:bf16:m2k64:gaussian:wrong=x-most_rows:seed7@ptx",
    ),
    HostFault(
        "rows of scales counted without their padding",
        "activation.py",
        'check_int32("offsets", scale_rows',
        'check_int32("offsets", rows',
        "activation:bf16:m5k64e3:gaussian:params=distinct:bias=distinct:wrong=offsets-of_many_experts:seed7@ptx",
    ),
    HostFault(
        "the mode of an activation of BF16 alone",
        "moe/launches.py",
        "swiglu_kernel(options.variant, options.mode,",
        'swiglu_kernel(options.variant, options.mode if options.dtype == "bf16" else "rceil",',
        "moe:fp16:m6k96n96e3t3:gaussian:variant=silu:mode=floor:edge=flashinfer:bias=distinct:global_scales=distinct:"
        "tp_rank=1:min_latency=yes:entry=function:first_expert=3:ranks=2:poison=0x7F:seed7@ptx",
    ),
    HostFault(
        "limits beside alphas alone",
        "moe/launches.py",
        "buffers.swiglu_beta, buffers.swiglu_limit),",
        "buffers.swiglu_beta, buffers.swiglu_limit if buffers.swiglu_alpha is not None else None),",
        "moe:bf16:m6k96n96e3t3:gaussian:params=limit:bias=second:global_scales=first:entry=function:ranks=2:poison=0x7F:"
        "seed7@ptx",
    ),
    HostFault(
        "a factor of the second product beside one of the first alone",
        "moe/launches.py",
        "buffers.gate_up_alpha if first else",
        "buffers.gate_up_alpha if first or buffers.gate_up_alpha is None else",
        "moe:fp16:m6k96n96e3t3:gaussian:path=fused:mode=floor:params=distinct:bias=second:global_scales=second:"
        "tp_rank=1:entry=output:first_expert=3:ranks=2:poison=0x7F:seed7@ptx",
    ),
    HostFault(
        "SiLU where a chain neither begins nor ends alone",
        "moe/integer.py",
        "swiglu_q8_1_kernel(self.variant,",
        'swiglu_q8_1_kernel(self.variant if (self.quantization, self.output) != ("ready", "bf16") else "gpt_oss",',
        "integer_moe:q8_1:m6k96n96e3t3:gaussian:path=llama_cpp:variant=silu:bias=first:ranks=2:poison=0x7F:seed7@ptx",
    ),
    HostFault(
        "the router's kernel for the experts of this rank",
        "moe/deepseek.py",
        "deepseek_route_kernel(options.logits, shape.all_experts,",
        "deepseek_route_kernel(options.logits, shape.experts,",
        "deepseek_moe:bf16:m3k128n128e66t4:gaussian:groups=10:top_groups=4:shared=none:first_expert=66:ranks=5:"
        "poison=0x7F:seed7@ptx",
    ),
    HostFault(
        "scales of a layer without a shared expert always FP32",
        "moe/deepseek.py",
        'deepseek_expand_kernel("bf16", rules.quantizer, rules.scales)',
        'deepseek_expand_kernel("bf16", rules.quantizer, rules.scales if shared else "fp32")',
        "deepseek_moe:bf16:m7k256n128e4t2:gaussian:router=given:rule=trtllm:policy=exact:scales=ue8m0:order=bf16:"
        "shared=none:layout=mn_major:entry=function:first_expert=4:ranks=2:poison=0x7F:seed7@ptx",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_of_host_code_is_seen(fault: HostFault) -> None:
    case = parse_case(fault.case)
    assert case in list_cases("default", [case.family.name])
    text = (HOST / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.sound) == 1

    def planted() -> bool:
        host.put_in_place(fault.file, text.replace(fault.sound, fault.planted))
        return run_case(Kernel(case.family, Devices()), case).fails

    assert not run_case(Kernel(case.family, Devices()), case).fails
    assert forked(planted, seconds=120)
