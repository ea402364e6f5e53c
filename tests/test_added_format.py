"""A number format is added by what one or two files hold; this adds some to a copy of the package, and uses them there.

The element format E3M2 (of OCP's MXFP6, 6 bits) needs a record, and so does its MX format, in `refmoe.formats`. E5M2 is
there already: an MX format of it needs one record more. The scale format UE5M3 has a rule of its own: it needs
a module of its format's name in `refmoe.reference` as well.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import refmoe

PACKAGE = Path(refmoe.__file__).parent

#: What is put in front of a line of refmoe/formats.py.
RECORDS = {
    "BF16 = Format(": (
        'E3M2 = Format("e3m2", 6, 3, 2, 3, Specials.NONE, nan_code=None)\n'
        'UE5M3 = Format("ue5m3", 8, 5, 3, 15, Specials.ALL_ONES_NAN, nan_code=0xFF, signed=False)\n'
    ),
    'NVFP4 = MXFormat("nvfp4"': (
        'MXFP6 = MXFormat("mxfp6", E3M2)\nMXE5M2 = MXFormat("mxfp8_e5m2", E5M2)\n'
        'TOYFP4 = MXFormat("toyfp4", E2M1, UE5M3, 16)\n'
    ),
}
#: Lists of refmoe/formats.py, with what they begin with then.
LISTS = {
    "for fmt in (E4M3, ": "for fmt in (E3M2, UE5M3, E4M3, ",
    "for each in (MXFP8, ": "for each in (MXFP6, MXE5M2, TOYFP4, MXFP8, ",
}

#: refmoe/reference/toyfp4.py
RULE = '''
"""Quantization to the toy format: a block's scale is the largest magnitude over 6, to the nearest UE5M3, not 0."""

from __future__ import annotations

import numpy as np

from refmoe.formats import E2M1, TOYFP4, UE5M3
from refmoe.reference.quantize import checked_blocks
from refmoe.reference.tensor import MXTensor

POLICY = "nearest"


def quantize_toyfp4(x):
    """The tensor of FP32 [..., K]; a block that is not finite has a NaN scale."""
    blocks = checked_blocks(x, TOYFP4.block).astype(np.float64)
    steps = UE5M3.values()[: UE5M3.max_code + 1]
    amax = np.abs(blocks).max(axis=1)
    scales = np.abs(steps[None, 1:] - np.nan_to_num(amax)[:, None] / float(E2M1.max)).argmin(axis=1) + 1
    scales[~np.isfinite(amax)] = UE5M3.nan_code
    with np.errstate(invalid="ignore"):
        scaled = np.nan_to_num(blocks / UE5M3.values()[scales][:, None])
    magnitudes = E2M1.values()[: E2M1.max_code + 1]
    codes = np.abs(magnitudes - np.abs(scaled)[..., None]).argmin(axis=2) | np.signbit(scaled) << 3
    shape = (*x.shape[:-1], -1)
    codes = codes.astype(np.uint8).reshape(x.shape)
    return MXTensor.of_elements(codes, scales.astype(np.uint8).reshape(shape), "toyfp4")
'''

SCRIPT = """
import json

import numpy as np

import refmoe
from refmoe.errors import ArgumentError
from refmoe.families.stages import Codes, Scales
from refmoe.formats import E3M2, FORMATS, FP32, MX_FORMATS, UE5M3
from refmoe.numbers_as_text import compared_text, number_text
from refmoe.policies import detect_policy
from refmoe.policy import ScaleMode
from refmoe.reference.scalar.numbers import decode
from refmoe.reference.scalar.quantize import dequantize_block, quantize_block

draw = np.random.default_rng(5)
x = (draw.standard_normal((9, 64)) * 2.0 ** draw.integers(-140, 120, (9, 1))).astype(np.float32)
x[3, 5], x[4, 40], x[5] = np.nan, -np.inf, 0


def as_defined(format, mode):
    '''Whether codes, scales and values of every block are those of the definition, which knows no format by name.'''
    element = MX_FORMATS[format].element
    tensor = refmoe.quantize(x, format, policy=f"{mode.value}/exact")
    values = refmoe.dequantize(tensor).view(np.uint32)
    for row in range(len(x)):
        for block in range(2):
            part = slice(32 * block, 32 * block + 32)
            numbers = [decode(int(bits), FP32) for bits in x[row, part].view(np.uint32)]
            due = quantize_block(numbers, element, mode)
            if due.scale != tensor.scales[row, block] or list(due.codes) != tensor.elements[row, part].tolist():
                return False
            if dequantize_block(due, element) != values[row, part].tolist():
                return False
    return True


def refusal(format):
    try:
        refmoe.quantize(x, format)
    except ArgumentError as error:
        return str(error)


small = (draw.standard_normal((8, 64)) * 2.0 ** draw.integers(-8, 8, (8, 1))).astype(np.float32)
evens = [refmoe.quantize(x, format, policy="even") for format in ("mxfp6", "mxfp8_e5m2")]
tensor = refmoe.quantize(small, "toyfp4")
back = refmoe.dequantize(tensor)
print(json.dumps({
    "package": refmoe.__file__,
    "names": list(FORMATS),
    "defined": {f"{of} {mode.value}": as_defined(of, mode) for of in ("mxfp6", "mxfp8_e5m2") for mode in ScaleMode},
    "detected": [detect_policy(x, even.codes, even.scales, even.format).names for even in evens],
    "limits": [float(E3M2.max), float(E3M2.min), float(UE5M3.max), UE5M3.encode(1)],
    "numbers": [number_text(0x06, E3M2), compared_text(0x21, 0x20, E3M2), number_text(UE5M3.encode(1), UE5M3)],
    "stages": [
        Codes("codes", (8, 64), None, 8, element=E3M2).describe(65, 0x21, 0x20)[0],
        Scales("scales", "linear", 8, 4, scale=UE5M3).describe(0, 0x78, 0x79)[0],
    ],
    "printed": str(refmoe.formats),
    "refusal": refusal("mxfp7"),
    "error": float(np.linalg.norm(back - small) / np.linalg.norm(small)),
    "shapes": [tensor.codes.shape, tensor.scales.shape, tensor.shape],
    "poisoned": bool(np.isnan(refmoe.dequantize(refmoe.quantize(x, "toyfp4"))[3, :16]).all()),
}))
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of refmoe that has two formats more."""
    root = tmp_path_factory.mktemp("copied")
    shutil.copytree(PACKAGE, root / "refmoe")
    path = root / "refmoe" / "formats.py"
    text = path.read_text()
    for before, record in RECORDS.items():
        assert text.count(f"\n{before}") == 1
        text = text.replace(f"\n{before}", f"\n{record}{before}")
    for list_, longer in LISTS.items():
        assert text.count(list_) == 1
        text = text.replace(list_, longer)
    path.write_text(text)
    (root / "refmoe" / "reference" / "toyfp4.py").write_text(RULE.lstrip())
    return root


def python(root: Path, *arguments: str, status: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"}
    run = subprocess.run([sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True)
    assert run.returncode == status, run.stdout + run.stderr
    return run.stdout + run.stderr


@pytest.fixture(scope="module")
def found(copied: Path) -> dict[str, Any]:
    """What the other Python says of the formats."""
    (copied / "script.py").write_text(SCRIPT)
    said: dict[str, Any] = json.loads(python(copied, "script.py"))
    assert Path(said["package"]).is_relative_to(copied)
    return said


def test_they_are_listed_and_printed(found: dict[str, Any]) -> None:
    assert found["names"][:2] == ["e3m2", "ue5m3"]
    assert "e3m2        6         3         2     3  28            0.0625        none" in found["printed"]
    assert "mxfp6    e3m2 codes, 1 a byte; 32 share a scale of e8m0" in found["printed"]
    assert "toyfp4   e2m1 codes, 2 a byte; 16 share a scale of ue5m3" in found["printed"]
    assert found["refusal"] == "format: found str 'mxfp7'; needed mxfp6, mxfp8_e5m2, toyfp4, mxfp8, mxfp4 or nvfp4"


def test_codes_have_values_and_words(found: dict[str, Any]) -> None:
    assert found["limits"] == [28, 0.0625, 114688, 0x78]
    assert found["numbers"] == ["0x06 (0.375)", "kernel 0x21 (-0.0625) reference 0x20 (-0), 1 ulp", "0x78 (1)"]
    assert found["stages"] == [
        "block (1, 0) lane 1: kernel 0x21 (-0.0625) reference 0x20 (-0), 1 ulp",
        "block (0, 0): kernel 0x78 (1) reference 0x79 (1.125), 1 ulp",
    ]


def test_the_element_format_is_quantized_by_every_mode_as_the_definition_says(found: dict[str, Any]) -> None:
    assert len(found["defined"]) == 12
    assert all(found["defined"].values())
    assert found["detected"] == [["even/exact"]] * 2


def test_the_scale_format_is_quantized_by_its_module_and_dequantized_by_its_record(found: dict[str, Any]) -> None:
    assert found["shapes"] == [[8, 32], [8, 4], [8, 64]]
    assert 0.01 < found["error"] < 0.15
    assert found["poisoned"]


def test_a_command_takes_the_element_format_and_lists_it(copied: Path) -> None:
    compare = "-m", "refmoe", "policy", "compare", "gaussian:m8k64", "--format"
    assert "gaussian:bf16:m8k64:seed7: [8, 64] to mxfp6" in python(copied, *compare, "mxfp6")
    assert "needed mxfp6 or mxfp8_e5m2 or mxfp8 or mxfp4" in python(copied, *compare, "mxfp7", status=2)
