"""Memory: the plan for the real models, and one layer of gpt-oss-20b's true shapes measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import write_header

from refmoe.errors import ArgumentError
from refmoe.models import GptOssConfig, memory_plan
from refmoe.models.schema import huggingface_tensors
from refmoe.models.tensor_file import DTYPES

GIB = 1 << 30
#: One layer of gpt-oss-20b: 32 experts of 2880 x 2880, all attention; few tokens, which no layer sees.
ONE_LAYER = GptOssConfig(num_hidden_layers=1, vocab_size=256)

MEASURE = """
import json, resource, sys
import numpy as np
from refmoe.models import Decoder, open_checkpoint
from refmoe.reference.moe.float64 import moe_float64

touched = []

def every_expert(layer, x, weights):
    touched.append(sum(int(part.sum(dtype=np.int64)) for part in (weights.gate_up.codes, weights.gate_up.scales,
                                                                  weights.down.codes, weights.down.scales)))
    return moe_float64(x, weights).astype(x.dtype)

decoder = Decoder(open_checkpoint(sys.argv[1]), moe=every_expert)
state = decoder.new_state(1)
logits = decoder.step(np.array([1]), state).logits
kept = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
# Not ru_maxrss: it remembers how large the process was that this one was forked from.
peak = 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
print(json.dumps({"peak": peak, "kept": kept, "finite": bool(np.isfinite(logits).all()), "touched": touched[0] > 0}))
"""


def write_layer(folder: Path, config: GptOssConfig) -> None:
    """A checkpoint of a megabyte of random bytes, over and over: drawing half a gigabyte would take longer."""
    tensors = huggingface_tensors(config)
    header, end = {}, 0
    for name, spec in tensors.items():
        size = int(np.prod(spec.shape)) * DTYPES[spec.dtype].itemsize
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [end, end + size]}
        end += size
    folder.joinpath("config.json").write_text(json.dumps(config.to_huggingface()))
    write_header(folder / "model.safetensors", header, b"")
    random = np.random.default_rng(0)
    codes = random.integers(0, 256, 1 << 20, np.uint8).tobytes()
    scales = random.integers(117, 120, 1 << 20, np.uint8).tobytes()
    dense = (random.standard_normal(1 << 19) / 50).astype(DTYPES["BF16"]).tobytes()
    with (folder / "model.safetensors").open("ab") as file:
        for name, entry in header.items():
            begin, stop = entry["data_offsets"]
            pattern = codes if name.endswith("_blocks") else scales if name.endswith("_scales") else dense
            for start in range(begin, stop, 1 << 20):
                file.write(pattern[: stop - start])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the process's size from /proc")
def test_a_layer_of_the_true_shapes_stays_within_its_plan(tmp_path: Path) -> None:
    write_layer(tmp_path, ONE_LAYER)
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr
    measured, plan = json.loads(run.stdout), memory_plan(ONE_LAYER, positions=1)
    experts = (tmp_path / "model.safetensors").stat().st_size - plan.attention
    assert measured["finite"]
    assert measured["touched"]
    # All experts were in the map at once, and none is any more.
    assert experts < measured["peak"] < plan.peak < 8 * GIB
    assert measured["kept"] < plan.process


def test_gpt_oss_20b_fits_a_laptop() -> None:
    plan = memory_plan(GptOssConfig())
    assert plan.checkpoint == 13_761_264_768
    assert plan.peak < 2 * GIB
    assert memory_plan(GptOssConfig(), positions=131072).peak < 8 * GIB
    assert memory_plan(GptOssConfig(), sequences=8, prompt=256).peak < 8 * GIB


def test_the_items_of_the_plan() -> None:
    """Worked by hand for gpt-oss-20b, one sequence of 4096 positions."""
    plan = memory_plan(GptOssConfig(), positions=4096)
    assert plan.logits == 201088 * 2880 * 2 + 201088 * 4
    # 12 layers keep 4096 positions, 12 keep 128; keys and values of 8 x 64 in BF16, old and new.
    assert plan.caches == 2 * 2 * (12 * 4096 + 12 * 128) * 8 * 64 * 2
    codes = 32 * (5760 * 2880 + 2880 * 2880) // 2
    rows = 4 * (2 * 2880 + 3 * 2880) * 8
    assert plan.experts == codes + codes // 16 + 32 * (5760 + 2880) * 2 + 5760 * 2880 * 12 + rows
    assert plan.peak == plan.process + plan.caches + plan.activations + plan.logits
    assert memory_plan(GptOssConfig(), dtype=np.float64).caches == 4 * plan.caches


def test_only_the_largest_part_counts() -> None:
    """Twice the layers: twice the checkpoint and the caches, and no more of anything else that is large."""
    small, large = (memory_plan(GptOssConfig(num_hidden_layers=count)) for count in (24, 48))
    assert large.checkpoint > 1.8 * small.checkpoint
    assert large.peak - small.peak < 2 * small.caches


@pytest.mark.parametrize(
    "arguments", [{"sequences": 0}, {"positions": -1}, {"prompt": 0}, {"prompt": 9, "positions": 8}]
)
def test_refusals(arguments: dict[str, int]) -> None:
    with pytest.raises(ArgumentError):
        memory_plan(GptOssConfig(), **arguments)  # type: ignore[arg-type]
