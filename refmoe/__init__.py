"""refmoe: bit-exact references and production kernels for mixture-of-experts layers, proven equal byte by byte."""

from __future__ import annotations

__version__ = "0.1.0"
