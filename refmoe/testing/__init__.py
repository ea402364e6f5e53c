"""Tests of your own kernels: byte for byte against refmoe's references, on its cases, with its report.

`assert_bit_exact` and `assert_within_bound` stand alone. `kernel` registers a function under a contract,
`refmoe_cases` makes a test of every case of that contract; the pytest plugin, which pytest finds by itself once refmoe
is installed, gives the test its case and writes `--refmoe-report=PATH`. docs/testing.md tells it at length.
"""

from __future__ import annotations

from refmoe.testing.assertions import assert_bit_exact, assert_within_bound
from refmoe.testing.bounds import gemm_bound
from refmoe.testing.check import Checked, RefmoeCase, check
from refmoe.testing.kernel import Unsupported, UserKernel, kernel
from refmoe.testing.parametrize import refmoe_cases

__all__ = [
    "Checked",
    "RefmoeCase",
    "Unsupported",
    "UserKernel",
    "assert_bit_exact",
    "assert_within_bound",
    "check",
    "gemm_bound",
    "kernel",
    "refmoe_cases",
]
