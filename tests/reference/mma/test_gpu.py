"""FP16 accumulators on the GPU of this machine, bit for bit; the shipped silicon vectors hold none of them."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tensor_cores.f16_accumulator_data import CLASSES, Operands, draw

from refmoe.cuda.device import CudaDevice, DeviceUnavailable
from refmoe.cuda.toolchain import find_toolchain
from refmoe.reference.mma import MODELS, AccumulationModel, tensor_core_mma

pytestmark = pytest.mark.gpu

NAME = "sm90_mma_f16acc"
INSTRUCTIONS = 512
"""Of each class of data; each has 128 outputs."""

# One warp a CTA, one instruction a warp; the operands lie in memory as the lanes' registers.
PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry probe(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)
{
    .reg .b32 %r<12>;
    .reg .b64 %a, %b, %c, %d, %offset;
    .reg .u32 %lane, %cta;
    ld.param.u64 %a, [pa];
    ld.param.u64 %b, [pb];
    ld.param.u64 %c, [pc];
    ld.param.u64 %d, [pd];
    mov.u32 %lane, %tid.x;
    mov.u32 %cta, %ctaid.x;
    mad.lo.u32 %lane, %cta, 32, %lane;
    mul.wide.u32 %offset, %lane, 16;
    add.u64 %a, %a, %offset;
    mul.wide.u32 %offset, %lane, 8;
    add.u64 %b, %b, %offset;
    add.u64 %c, %c, %offset;
    add.u64 %d, %d, %offset;
    ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%a];
    ld.global.v2.b32 {%r4, %r5}, [%b];
    ld.global.v2.b32 {%r6, %r7}, [%c];
    mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16
        {%r8, %r9}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7};
    st.global.v2.b32 [%d], {%r8, %r9};
    ret;
}
"""


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    try:
        return CudaDevice("sm_90a")
    except DeviceUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def probe(device: CudaDevice, tmp_path_factory: pytest.TempPathFactory) -> Any:
    module = device.call("cuModuleLoadData", assemble(tmp_path_factory.mktemp("probe")).read_bytes())
    return device.call("cuModuleGetFunction", module, b"probe")


def assemble(folder: Path) -> Path:
    """The cubin of the probe."""
    source, cubin = folder / "probe.ptx", folder / "probe.cubin"
    source.write_text(PTX)
    ptxas = find_toolchain().nvcc.resolve().parent / "ptxas"
    subprocess.run([ptxas, "-arch=sm_90a", source, "-o", cubin], check=True)
    return cubin


def rows_of(n: int) -> np.ndarray:
    """The rows of C, or of A by pairs of K, by lane and register (PTX ISA, matrix fragments of mma.m16n8k16)."""
    lane = np.arange(32)[:, None]
    return lane // 4 + 8 * np.arange(n)[None, :]


def fragments(given: Operands) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a [n, 32, 4], b [n, 32, 2] and c [n, 32, 2] as uint32: what each lane's registers hold, two FP16 in each."""
    pair = np.arange(32)[:, None] % 4
    a, b, c = (np.ascontiguousarray(x).view(np.uint32) for x in (given.a, given.b, given.c.astype(np.float16)))
    register = np.arange(4)[None, :]
    return (
        a[:, rows_of(2)[:, register[0] % 2], pair + 4 * (register // 2)],
        b[:, np.arange(32)[:, None] // 4, pair + 4 * np.arange(2)[None, :]],
        c[:, rows_of(2), pair],
    )


def on_gpu(device: CudaDevice, probe: Any, given: Operands) -> np.ndarray:
    """d [n, 16, 8] as FP16 bits."""
    n = given.a.shape[0]
    inputs = [device.upload("fragments", np.ascontiguousarray(x)) for x in fragments(given)]
    result = device.output("d", (n * 32 * 8,), 0xA5)
    values = tuple(tensor.data_ptr() for tensor in (*inputs, result))
    stream = device.torch.cuda.current_stream().cuda_stream
    shape = (n, 1, 1, 32, 1, 1, 0)
    device.call("cuLaunchKernel", probe, *shape, stream, (values, (ctypes.c_void_p,) * 4), 0)
    device.torch.cuda.synchronize()
    registers = device.download(result).view(np.uint32).reshape(n, 32, 2)
    d = np.empty((n, 16, 4), np.uint32)
    d[:, rows_of(2), np.arange(32)[:, None] % 4] = registers
    return d.view(np.uint16)


def modelled(given: Operands, model: AccumulationModel) -> np.ndarray:
    """d [n, 16, 8] as FP16 bits; NaN is 0x7FFF."""
    d = tensor_core_mma(given.a, given.b, given.c, model=model, a_format="f16", b_format="f16")
    with np.errstate(invalid="ignore"):
        bits = d.astype(np.float16).view(np.uint16)
    bits[np.isnan(d)] = 0x7FFF
    return bits


@pytest.mark.parametrize("name", CLASSES)
def test_the_model_is_silicon(device: CudaDevice, probe: Any, name: str) -> None:
    given = draw(name, 7, INSTRUCTIONS)
    silicon, model = on_gpu(device, probe, given), modelled(given, MODELS[NAME])
    differing = np.argwhere(silicon != model)
    shown = [f"{at.tolist()}: GPU {silicon[tuple(at)]:#06x}, model {model[tuple(at)]:#06x}" for at in differing[:5]]
    assert not len(differing), f"{len(differing)} of {silicon.size} outputs differ; {shown}"


@pytest.mark.parametrize("fault", [{"align_bits": 24}, {"align_bits": 26}, {"to_nearest": False}], ids=str)
def test_another_model_is_not_silicon(device: CudaDevice, probe: Any, fault: dict[str, Any]) -> None:
    given = draw("cancelling", 7, INSTRUCTIONS)
    wrong = replace(MODELS[NAME], **fault)
    assert (on_gpu(device, probe, given) != modelled(given, wrong)).any()
