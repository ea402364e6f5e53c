"""CuTe DSL kernels on the executor: compiled by NVIDIA's own compiler, launched by their own host code, without a GPU.

>>> import refmoe.cute                                                             # doctest: +SKIP
>>> program = refmoe.cute.compile(my_function, x, y, Float32(2.0))                 # doctest: +SKIP
>>> program.launch(x, y, 3.0)                                                      # doctest: +SKIP
"""

from refmoe.cute.host import HostLaunch
from refmoe.cute.package import PYPI_REQUIREMENT, CompileError, CuteMissing, HostError, check_package
from refmoe.cute.program import Program, compile, execute
from refmoe.cute.tensors import GpuBuffer, GpuMemory, Tensor, tensor

__all__ = [
    "PYPI_REQUIREMENT",
    "CompileError",
    "CuteMissing",
    "GpuBuffer",
    "GpuMemory",
    "HostError",
    "HostLaunch",
    "Program",
    "Tensor",
    "check_package",
    "compile",
    "execute",
    "tensor",
]
