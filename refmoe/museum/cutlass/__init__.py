"""CUTLASS's own grouped GEMM for SM12x: built from its headers, launched by its host code, on the executor or a GPU."""

from refmoe.museum.cutlass.builds import Build, Built, build, cubin, find_built, gpu_library, static_assertions
from refmoe.museum.cutlass.gemm import Prepared, execute, grouped_gemm, host_launch, prepare
from refmoe.museum.cutlass.headers import CutlassMissing, Headers, find_headers
from refmoe.museum.cutlass.host import Description, HostError, HostLaunch, HostLibrary, Operands, describe_built
from refmoe.museum.cutlass.layouts import fragment_layouts, scale_layouts
from refmoe.museum.cutlass.refusals import refused

__all__ = [
    "Build",
    "Built",
    "CutlassMissing",
    "Description",
    "Headers",
    "HostError",
    "HostLaunch",
    "HostLibrary",
    "Operands",
    "Prepared",
    "build",
    "cubin",
    "describe_built",
    "execute",
    "find_built",
    "find_headers",
    "fragment_layouts",
    "gpu_library",
    "grouped_gemm",
    "host_launch",
    "prepare",
    "refused",
    "scale_layouts",
    "static_assertions",
]
