"""refmoe: bit-exact references and production kernels for mixture-of-experts layers, proven equal byte by byte.

    quantize, dequantize    to MXFP8 or MXFP4 by the policy of any system, and back
    MXTensor                element codes and block scales that belong together
    formats                 element and scale formats; print it
    policies                how systems choose scales; print it
    families                the kernel families: problems that a kernel can be held against; print it
    check                   hold a kernel of yours against a family, byte for byte
    invariant               whether a token's bytes depend on the batch that it is in
    repro                   run the one case of a repro string
    run_ptx                 run any PTX kernel without a GPU, every access checked
    testing                 the same checks in pytest
    reference               what every result is, in NumPy: quantization, layouts, GEMMs, routing, whole layers
    cuda                    the functions that launch refmoe's own kernels, on the executor or a GPU
    cute                    CuTe DSL kernels on the executor: compiled, their host code run
    ptx                     the executor: modules, launches, checks, traces
    models                  checkpoints and the decoder
    drift                   paths of a model side by side over decode steps

Each is imported when it is first asked for, so that `import refmoe` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from refmoe.version import __version__

if TYPE_CHECKING:
    from refmoe import cuda, cute, drift, families, formats, models, policies, ptx, reference, testing
    from refmoe.batching import invariant
    from refmoe.ptx import run_ptx
    from refmoe.reference import MXTensor, dequantize, quantize
    from refmoe.testing import check, repro

__all__ = [
    "MXTensor",
    "__version__",
    "check",
    "cuda",
    "cute",
    "dequantize",
    "drift",
    "families",
    "formats",
    "invariant",
    "models",
    "policies",
    "ptx",
    "quantize",
    "reference",
    "repro",
    "run_ptx",
    "testing",
]

#: Where each name comes from; the others are modules.
_HOMES = {
    "MXTensor": "refmoe.reference",
    "check": "refmoe.testing",
    "dequantize": "refmoe.reference",
    "invariant": "refmoe.batching",
    "quantize": "refmoe.reference",
    "repro": "refmoe.testing",
    "run_ptx": "refmoe.ptx",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'refmoe' has no attribute {name!r}")
    if name not in _HOMES:
        return importlib.import_module(f"refmoe.{name}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
