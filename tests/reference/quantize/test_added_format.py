"""To add an MX format is to add its record to `MX_FORMATS`: everything else reads it there."""

from __future__ import annotations

import subprocess
import sys

ADDED = """
from types import MappingProxyType

import numpy as np

from refmoe import formats

added = formats.MXFormat("mxfp8_e5m2", formats.E5M2)
formats.MX_FORMATS = MappingProxyType({**formats.MX_FORMATS, added.name: added})

from refmoe.policies import compare_policies, detect_policy
from refmoe.policy import ScaleMode
from refmoe.reference import quantize
from refmoe.reference.scalar import decode, dequantize_block, quantize_block

rng = np.random.default_rng(0)
bits = rng.integers(0, 1 << 16, (120, 32)).astype(np.uint16)
bits[:40] = rng.integers(0, 1 << 10, (40, 32))
bits[40:100] = rng.integers(0x3000, 0x4800, (60, 32))
x = bits.view(formats.BF16.dtype)
for mode in ScaleMode:
    made = quantize(x, added.name, policy=mode.value)
    values = made.dequantize().view(np.uint32)
    for row, block in enumerate(bits):
        expected = quantize_block([decode(int(code), formats.BF16) for code in block], formats.E5M2, mode)
        assert expected.scale == made.scales[row, 0], (mode, row)
        assert list(expected.codes) == made.codes[row].tolist(), (mode, row)
        assert dequantize_block(expected, formats.E5M2) == values[row].tolist(), (mode, row)
even = quantize(x, added.name, policy="even")
assert detect_policy(x, even.codes, even.scales, added.name).names == ("even/exact",)
assert compare_policies(x, added.name, policies=["ocp", "rceil"]).format == added.name
"""


def test_a_format_is_added_by_its_record_alone() -> None:
    done = subprocess.run([sys.executable, "-c", ADDED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
