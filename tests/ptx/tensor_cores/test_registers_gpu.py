"""Which kernels wait for ever for registers on a chip: each has a process of its own, which is killed if it waits."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.tensor_cores.register_roles import CASES

pytestmark = pytest.mark.gpu
SECONDS = 10
NO_DEVICE = 3

#: Launches the module of its input with so many threads.
LAUNCH = """
import ctypes, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit(3)
def call(name, *arguments):
    assert getattr(cuda, name)(*arguments) == 0, name
device, context, module, kernel, out = ctypes.c_int(), *(ctypes.c_void_p() for _ in range(3)), ctypes.c_uint64()
if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
    sys.exit(3)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", ctypes.byref(module), sys.stdin.buffer.read())
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"k")
call("cuMemAlloc_v2", ctypes.byref(out), 4)
arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(out), ctypes.c_void_p))
call("cuLaunchKernel", kernel, 1, 1, 1, int(sys.argv[1]), 1, 1, 0, None, arguments, None)
print("launched", flush=True)
call("cuCtxSynchronize")
print("ended", flush=True)
"""


@pytest.mark.parametrize("name", CASES)
def test_a_chip_waits_for_registers_that_nobody_gives_back(name: str) -> None:
    case = CASES[name]
    command = [sys.executable, "-c", LAUNCH, str(case.threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            said, errors = process.communicate(case.text().encode(), SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            said, errors = process.communicate()
    if process.returncode == NO_DEVICE:
        pytest.skip("no CUDA device")
    assert said.decode().split() == (["launched"] if case.waits else ["launched", "ended"]), errors.decode()
