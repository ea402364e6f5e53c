"""CUTLASS's own grouped GEMM for SM12x: built from its headers, launched by its host code, on the executor or a GPU."""

from refmoe.museum.cutlass.builds import Build, Built, build, cubin, find_built, static_assertions
from refmoe.museum.cutlass.gemm import Prepared, grouped_gemm, host_launch, prepare
from refmoe.museum.cutlass.headers import CutlassMissing, find_headers
from refmoe.museum.cutlass.host import CutlassHostError, HostLibrary, describe_built
from refmoe.museum.cutlass.layouts import fragment_layouts, scale_layouts
from refmoe.museum.cutlass.refusals import refused

__all__ = [
    "Build",
    "Built",
    "CutlassHostError",
    "CutlassMissing",
    "HostLibrary",
    "Prepared",
    "build",
    "cubin",
    "describe_built",
    "find_built",
    "find_headers",
    "fragment_layouts",
    "grouped_gemm",
    "host_launch",
    "prepare",
    "refused",
    "scale_layouts",
    "static_assertions",
]
