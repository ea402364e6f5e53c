"""Kernels on a GPU without nvcc and without torch: PTX that is in the package, and the driver's API alone."""

from __future__ import annotations

from refmoe.driver.device import DriverDevice, opened
from refmoe.driver.packaged import PackagedPtxError, compiler_in_use

__all__ = ["DriverDevice", "PackagedPtxError", "compiler_in_use", "opened"]
