"""Tests of your own kernels: byte for byte against refmoe's references, on its cases, with its report.

`check` runs a kernel on a level of cases. `kernel` registers a function under a contract, and `refmoe_cases` makes a
pytest test of each of its cases. The plugin gives a test its case and writes `--refmoe-report=PATH`; pytest finds it by
itself once refmoe is installed. `assert_bit_exact` and `assert_within_bound` need none of these. The guide is
docs/guides/testing.md.
"""

from __future__ import annotations

from refmoe.testing.assertions import assert_bit_exact, assert_within_bound
from refmoe.testing.bounds import gemm_bound
from refmoe.testing.cases import Checked, RefmoeCase, check, repro
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
    "repro",
]
