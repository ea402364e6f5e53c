"""Words of evidence come from `refmoe/evidence.json` alone: a bundle that is merged into a copy changes all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.probe.executor_driver import ExecutorDriver

from refmoe.chips import Mma
from refmoe.evidence import Evidence, instruction_word, model_word, opcodes, read_evidence, target_word, weakest
from refmoe.probe.bundle import bundle_of, chosen, probe
from refmoe.probe.hosts import CudaBox
from refmoe.probe.instructions import BY_NAME, INSTRUCTIONS
from refmoe.probe.sentences import answered_sentence, chips_sentence, mxfp8_sentence, nvfp4_sentence, ran_sentence
from refmoe.reference.mma import MODELS
from refmoe.reference.mma.half import HALF_MODELS

ROOT = Path(__file__).parents[2]
MX = next(name for name in BY_NAME if "mxf8f6f4" in name and "e2m1.e4m3" in name)
F8F6F4 = next(name for name in BY_NAME if ".kind::f8f6f4" in name and "e2m1.e4m3" in name)
NVF4 = next(name for name in BY_NAME if "4X" in name)
MXF4 = [name for name in BY_NAME if "scale_vec::2X" in name]
FP4 = ("e2m1", "e4m3")


def chip(arch: str, verdict: str, model: str, *names: str, gpu: str = "NVIDIA X") -> dict[str, Any]:
    return {"gpu": gpu, "arch": arch, "instructions": {name: {"verdict": verdict, "model": model} for name in names}}


def answers(*chips: dict[str, Any]) -> dict[str, Any]:
    return {"chips": list(chips)}


def test_every_instruction_has_its_name_here_and_none_else() -> None:
    formats = {each for one in INSTRUCTIONS for each in (one.a, one.b)}
    named = [
        (name, mma, a, b, accumulator)
        for mma in Mma
        for a in formats
        for b in formats
        for accumulator in ("f32", "f16")
        for name in opcodes(mma, a, b, accumulator)
    ]
    asked = [(each.name, each.kind, each.a, each.b, each.accumulator) for each in INSTRUCTIONS]
    assert sorted(named, key=str) == sorted(asked, key=str)


def test_an_instruction_is_what_the_chips_of_its_target_answered() -> None:
    def word(*chips: dict[str, Any], target: str = "sm_120a") -> Evidence:
        return instruction_word(MX, target, "sm120", Evidence.EXTRAPOLATED, answers(*chips))

    holds, differs = (chip("sm_120a", verdict, "sm120", MX) for verdict in ("HOLDS", "DIFFERS"))
    assert word() is Evidence.EXTRAPOLATED
    assert word(holds) is Evidence.HARDWARE
    assert word(holds, target="sm_120") is Evidence.HARDWARE
    assert word(holds, target="sm_121a") is Evidence.EXTRAPOLATED
    assert word(holds, differs) is Evidence.CONTRADICTED
    assert word(chip("sm_120a", "HOLDS", "another", MX)) is Evidence.EXTRAPOLATED
    assert word(chip("sm_120a", "NO MODEL", "sm120", MX)) is Evidence.EXTRAPOLATED


def test_what_stands_for_two_instructions_is_the_weaker_of_them() -> None:
    def word(*names: str) -> Evidence:
        evidence = answers(chip("sm_120a", "HOLDS", "sm120_mxf4", *names))
        return target_word("sm_120a", Mma.SYNC_MXF4, ("e2m1", "e2m1"), Evidence.PUBLISHED, evidence=evidence)

    assert [word(), word(MXF4[0]), word(*MXF4)] == [Evidence.PUBLISHED, Evidence.PUBLISHED, Evidence.HARDWARE]


def test_a_model_is_what_the_best_of_its_chips_answered_unless_one_contradicts() -> None:
    def word(*chips: dict[str, Any]) -> Evidence:
        return model_word("sm120", FP4, Evidence.EXTRAPOLATED, answers(*chips))

    both = chip("sm_120a", "HOLDS", "sm120", MX, F8F6F4)
    assert word(chip("sm_120a", "HOLDS", "sm120", MX)) is Evidence.EXTRAPOLATED, "not every instruction of it answered"
    assert word(both) is Evidence.HARDWARE
    assert word(both, chip("sm_121a", "DIFFERS", "sm120", MX)) is Evidence.CONTRADICTED
    # Of another chip's instruction the model is a guess: its answers say nothing of the model itself.
    k8 = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"
    guess = answers(chip("sm_80", "DIFFERS", "sm90_mma_k8", k8))
    assert model_word("sm90_mma_k8", ("bf16", "bf16"), Evidence.EXTRAPOLATED, guess) is Evidence.EXTRAPOLATED


def test_models_say_what_the_committed_chips_answered() -> None:
    assert MODELS["sm90_mma_k4"].pair("tf32", "tf32").evidence is Evidence.HARDWARE
    assert MODELS["sm90_mma_fp8"].pair("e5m2", "e4m3").evidence is Evidence.HARDWARE
    evidence = read_evidence()
    for model in (*MODELS.values(), *HALF_MODELS.values()):
        for formats, pair in model.pairs.items():
            assert pair.evidence is model_word(model.name, formats, pair.assumed, evidence)
            # Nothing but the file makes a word of hardware.
            assert pair.assumed is not Evidence.HARDWARE
            assert model_word(model.name, formats, pair.assumed, answers()) is pair.assumed


def test_a_report_says_what_was_known_when_it_was_made_and_never_more() -> None:
    pair = MODELS["sm90_mma_k4"].pair("tf32", "tf32")
    assert pair.words == {"hardware-checked", "extrapolated"}
    assert MODELS["sm120"].words == {"published", "extrapolated"}
    assert type(pair)(4, Evidence.CONTRADICTED, Evidence.PUBLISHED).words == {"contradicted"}


def test_the_weakest_word_claims_least() -> None:
    assert weakest([Evidence.HARDWARE, Evidence.CONTRADICTED, Evidence.PUBLISHED]) is Evidence.CONTRADICTED
    assert weakest([Evidence.DEFINITION, Evidence.HARDWARE]) is Evidence.HARDWARE


def test_a_chip_that_answered_twice_is_counted_once() -> None:
    once = answers(chip("sm_120a", "HOLDS", "sm120", MX, F8F6F4, gpu="NVIDIA GeForce RTX 5090"))
    twice = {**once, "chips": [*once["chips"], *once["chips"]]}
    assert chips_sentence(twice) == chips_sentence(once)
    assert "1 chip has answered `refmoe probe` (NVIDIA GeForce RTX 5090): of 2 instructions" in chips_sentence(once)
    other = answers(chip("sm_120a", "DIFFERS", "sm120", MX, gpu="NVIDIA GeForce RTX 5090"))
    doubtful = {**once, "chips": [*once["chips"], *other["chips"]]}
    assert "of 2 instructions refmoe's model holds for 1, and differs for 1." in chips_sentence(doubtful)


def test_sentences_follow() -> None:
    none = answers()
    one = answers(chip("sm_120a", "HOLDS", "sm120", MX, F8F6F4, gpu="NVIDIA GeForce RTX 5090"))
    wrong = answers(chip("sm_121a", "DIFFERS", "sm120_nvf4", NVF4, gpu="NVIDIA GB10"))
    assert "SM120 and SM121 is **extrapolated**" in mxfp8_sentence(none)
    assert "SM120 is **hardware-checked**" in mxfp8_sentence(one)
    assert "SM121 is **extrapolated**" in mxfp8_sentence(one)
    assert "SM121 is **contradicted**: a chip answered" in nvfp4_sentence(wrong)
    assert answered_sentence(none) == "**No SM12x chip has answered yet.**"
    assert answered_sentence(one) == "**Of the SM12x chips, 1 has answered: NVIDIA GeForce RTX 5090.**"
    assert ran_sentence(none, []) == "**Nothing has run on a real SM120 or SM121 yet.**"
    assert "Tensor cores of one have answered" in ran_sentence(one, [])
    assert ran_sentence(one, ["NVIDIA GB10"]) == "**Kernels have run on NVIDIA GB10.**"


# --- a bundle of an RTX 5090, merged into a copy ----------------------------------------------------------------------

SCRIPT = """
import json
from refmoe import ptx
from refmoe.families.gemm.family import ASSUMPTION as mxfp8
from refmoe.families.nvfp4_gemm.family import ASSUMPTION as nvfp4
from refmoe.probe.instructions import BY_NAME
from refmoe.probe.hosts import ExecutorBox
from refmoe.probe.kernels import ENTRY, arguments, ptx_text
from refmoe.probe.vectors import Batch, mixture
from refmoe.reference.backends import BACKENDS

each = BY_NAME[OPCODE]
arrays, tiles = arguments(each, Batch.of(mixture(each, 8, 1)))
found = {}
for target in ("sm_120a", "sm_121a"):
    module = ptx.Module.parse(ptx_text(each, target), name="m")
    launched = ptx.launch(module, ENTRY, grid=(tiles, 1, 1), block=(32, 1, 1), args=arrays)
    found[target] = dict(launched.models)
print(json.dumps({
    "launches": found, "cases": [mxfp8.evidence, nvfp4.evidence], "texts": [mxfp8.text, nvfp4.text],
    "backends": [BACKENDS[name].accumulation["sm_120a"].evidence.value for name in ("cutlass", "nvfp4")],
}))
"""


def python(root: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"}
    run = subprocess.run([sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def words(root: Path) -> dict[str, Any]:
    (root / "script.py").write_text(SCRIPT.replace("OPCODE", repr(MX)))
    found: dict[str, Any] = json.loads(python(root, "script.py"))
    return found


def test_a_merged_bundle_changes_every_word(tmp_path: Path) -> None:
    if not (ROOT / "reports").is_dir():
        pytest.skip("an installed refmoe has no pages")
    for name in ("refmoe", "docs", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "reports").symlink_to(ROOT / "reports")
    before = words(tmp_path)
    assert before["launches"] == {"sm_120a": {"sm120": "extrapolated"}, "sm_121a": {"sm120": "extrapolated"}}
    assert (before["cases"], before["backends"]) == (["extrapolated", "published"], ["extrapolated", "published"])

    box = CudaBox(ExecutorDriver((12, 0), "NVIDIA GeForce RTX 5090"))
    left_out = [("parity", "not wanted"), ("benchmarks", "not wanted")]
    document = bundle_of(
        box, probe(box, chosen([MX, F8F6F4, NVF4], box.target)), left_out=left_out, seconds={"probes": 1.0}
    )
    (tmp_path / "bundle.json").write_text(json.dumps(document))
    python(tmp_path, "-m", "refmoe", "probe", "--merge", "bundle.json")
    python(tmp_path, "tools/readme.py")

    after = words(tmp_path)
    assert after["launches"] == {"sm_120a": {"sm120": "hardware-checked"}, "sm_121a": {"sm120": "extrapolated"}}
    assert after["cases"] == after["backends"] == ["hardware-checked"] * 2
    assert not any("answered yet" in text or "yet" in text for text in after["texts"])
    pages = {
        "README.md": ("NVIDIA GeForce RTX 5090", "Tensor cores of one have answered", "SM120 is **hardware-checked**"),
        "docs/guides/probe.md": ("**Of the SM12x chips, 1 has answered: NVIDIA GeForce RTX 5090.**", f"`{MX}`"),
        "docs/guides/reports.md": ("SM120 is **hardware-checked**",),
        "docs/families/gemm.md": ("SM120 is **hardware-checked**", "SM121 is **extrapolated**"),
        "docs/families/nvfp4_gemm.md": ("SM120 is **hardware-checked**",),
        "docs/guides/evidence.md": ("model sm120: hardware-checked", "model sm120_nvf4: hardware-checked"),
    }
    for page, wanted in pages.items():
        text, old = (tmp_path / page).read_text(), (ROOT / page).read_text()
        for each in wanted:
            assert each in text, page
        assert text != old, page
    # Of E4M3 x E4M3 the chip was not asked.
    assert "`sm120` is **published**, `sm90" in (tmp_path / "docs/families/deepseek_gemm.md").read_text()
    assert (
        "model sm120: published, sm90_mma_fp8: hardware-checked" in (tmp_path / "docs/guides/evidence.md").read_text()
    )
    assert "Nothing has run on a real" not in (tmp_path / "README.md").read_text()
