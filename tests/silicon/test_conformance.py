"""The run that holds the executor's instructions against a GPU, without one: operands, kernels, counts, document."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.selection.thinned import thinned
from support.toolchain import PTXAS
from typer.testing import CliRunner

from refmoe import catalog, ptx
from refmoe.cli import app
from refmoe.cuda.device import DeviceUnavailable
from refmoe.ptx import isa
from refmoe.reports import conformance as report
from refmoe.reports.documents import digest_of
from refmoe.reports.gate import check_reports
from refmoe.silicon import conformance
from refmoe.silicon.opcodes import known_opcodes
from refmoe.silicon.operands import EXHAUSTIVE, LANES, operands
from refmoe.silicon.probes import Probe, all_probes, module_text

PROBES = {probe.name: probe for probe in all_probes()}
SOME = (
    "sub.cc.u32", "subc.cc.u64", "cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.f16x2.e4m3x2", "setp.eq.and.f16x2", "div.u32",
    "lop3.b32 0xE8", "lop3.or.b32 0x1B", "cvt.s8.s32", "ex2.approx.f32", "atom.global.add.f32", "red.shared.add.f32",
    "atom.shared.cas.b16", "red.global.add.noftz.bf16x2", "shfl.sync.up.b32", "match.all.sync.b64",
    "redux.sync.min.s32", "vote.sync.uni.pred",
)  # fmt: skip

CALCULATIONS: dict[str, Callable[..., Any]] = {
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1 / a,
}


def finite(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.view(np.float32).astype(np.float64)


# --- operands -------------------------------------------------------------------------------------------------------


def test_operands_are_the_same_each_time() -> None:
    for first, second in zip(operands("fma.rn.f32", ("b32",) * 3), operands("fma.rn.f32", ("b32",) * 3), strict=True):
        assert np.array_equal(first, second)


def test_sixteen_and_eight_bits_are_exhaustive() -> None:
    (halves,) = operands("cvt.f32.f16", ("b16",))
    assert len(np.unique(halves)) == EXHAUSTIVE
    (codes,) = operands("cvt.f32.u8", ("b8",))
    assert len(np.unique(codes)) == 256


def gaps_below_the_least_normal_number(name: str, mode: str) -> list[Fraction]:
    """How far the exact results that `mode` can round away from zero lie below 2^-126, in units of 2^-150: under 4."""
    calculate = CALCULATIONS[name]
    x = [finite(v) for v in operands(f"{name}.{mode}.ftz.f32", ("b32",) * len(signature(calculate).parameters))]
    with np.errstate(all="ignore"):
        near = np.abs(np.abs(calculate(*x)) * 2.0**126 - 1) < 2.0**-21
    near &= np.all([np.abs(v) >= 2.0**-126 for v in x], axis=0)
    exact = [calculate(*row) for row in zip(*(map(Fraction, v[near].tolist()) for v in x), strict=True)]
    gaps = [2**24 - abs(e) * 2**150 for e in exact if mode == "rn" or (e < 0) == (mode == "rm")]
    return [gap for gap in gaps if 0 < gap < 4]


@pytest.mark.parametrize("mode", ["rn", "rm", "rp"])
@pytest.mark.parametrize("name", CALCULATIONS)
def test_operands_reach_the_least_normal_number_from_below(name: str, mode: str) -> None:
    if (name, mode) == ("rcp", "rn"):
        return  # no reciprocal lies within 2^-25 of it
    gaps = gaps_below_the_least_normal_number(name, mode)
    # Numbers of f32 are 2 units apart here, numbers of 24 bits 1 unit: where the results reach 2^-126 in each.
    if mode == "rn":
        subnormal, normal = [gap <= 1 for gap in gaps], [gap <= Fraction(1, 2) for gap in gaps]
    else:
        subnormal, normal = [gap < 2 for gap in gaps], [gap < 1 for gap in gaps]
    assert sum(subnormal) - sum(normal) > 5  # .ftz flushes these
    if name in ("mul", "fma"):  # quotients and reciprocals of 24 bits come no nearer
        assert sum(normal) > 5  # and keeps these


def test_operands_of_fma_tell_one_rounding_from_two() -> None:
    sources = operands("fma.rn.f32", ("b32",) * 3)
    with np.errstate(all="ignore"):
        a, b, c = (finite(x) for x in sources)
        twice = (a * b + c).astype(np.float32).view(np.uint32)
        found = isa.resolve("fma.rn.f32").function(*sources)
    assert ((found != twice) & ~np.isnan(found.view(np.float32))).sum() > 5


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "fma", "rcp"])
def test_operands_overflow_in_one_mode_and_not_in_another(name: str) -> None:
    sources = operands(f"{name}.rn.f32", isa.resolve(f"{name}.rn.f32").sources)
    with np.errstate(all="ignore"):
        up, down = (isa.resolve(f"{name}.{mode}.f32").function(*sources) for mode in ("rp", "rz"))
    assert ((up == 0x7F800000) & (down == 0x7F7FFFFF)).sum() > 5


@pytest.mark.parametrize("name", ["e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2"])
def test_operands_stand_on_every_boundary_of_a_narrow_format(name: str) -> None:
    operation = isa.resolve(f"cvt.rn.satfinite.{name}.f32")
    low = operands(operation.opcode, operation.sources)[1]
    low = np.unique(low[low < 0x7F800000])
    codes = operation.function(np.zeros_like(low), low)
    # A code's upper end is there if the next number has the next code.
    ends = (np.diff(low) == 1) & (np.diff(codes.astype(np.int64)) != 0)
    assert codes[:-1][ends].tolist() == list(range(int(codes.max())))


def test_half_of_the_selectors_are_in_their_range() -> None:
    position, length = operands("bfe.u64", ("b64", "b32", "b32"))[1:]
    assert ((position < 72) & (length < 72)).sum() >= LANES // 2
    assert (position > 255).any()


# --- kernels --------------------------------------------------------------------------------------------------------


def run_pair(name: str) -> tuple[Probe, list[np.ndarray], list[np.ndarray]]:
    probe = PROBES[name]
    module = ptx.Module.parse(module_text([probe], "sm_90a"), name="probe.ptx")
    sources = operands(probe.name, probe.sources)
    return probe, sources, conformance.run_on_executor(module, "k0", probe, sources)


@pytest.mark.parametrize("name", thinned(SOME, 3))
def test_a_probe_runs_its_instruction_on_every_lane(name: str) -> None:
    probe, sources, results = run_pair(name)
    outcome = conformance.compare(probe, sources, results, [result.copy() for result in results])
    assert (outcome.differing, outcome.open_differing, outcome.examples) == (0, 0, ())
    assert outcome.lanes == len(sources[0])
    assert any(len(np.unique(result)) > 1 for result in results)


def test_a_probe_computes_what_the_table_says() -> None:
    _, (a, b, carry), (result, flag) = run_pair("subc.cc.u32")
    wanted, wanted_flag = isa.resolve("subc.cc.u32").function(a, b, carry)
    assert np.array_equal(result, wanted)
    assert np.array_equal(flag, wanted_flag)


def test_addition_in_memory_flushes_in_global_memory_only() -> None:
    _, (old, operand), (new, returned) = run_pair("atom.global.add.f32")
    assert np.array_equal(returned, old)
    with np.errstate(all="ignore"):
        assert np.array_equal(new, isa.resolve("add.rn.ftz.f32").function(old, operand))
    _, (old, operand), (new,) = run_pair("red.shared.add.f32")
    with np.errstate(all="ignore"):
        assert np.array_equal(new, isa.resolve("add.rn.f32").function(old, operand))
    assert ((new & 0x7F800000 == 0) & (new & 0x7FFFFF != 0)).any()


def test_ptxas_takes_every_probe_but_those_of_later_architectures() -> None:
    if PTXAS is None:
        pytest.skip("no ptxas")
    probes = [PROBES[name] for name in SOME] + [PROBES["cvt.rn.satfinite.e2m1x2.f32"]]
    probes += [probe for probe in PROBES.values() if probe.name.split(".")[0] in ("atom", "red", "match", "redux")]
    legal, refused, cubin = conformance._assemble(probes, "sm_90a")
    assert refused == ["cvt.rn.satfinite.e2m1x2.f32"]
    assert len(legal) == len(probes) - 1
    assert cubin.startswith(b"\x7fELF")


def test_every_instruction_of_the_table_is_probed() -> None:
    assert {name.split()[0] for name in PROBES} >= set(known_opcodes())


# --- counts ---------------------------------------------------------------------------------------------------------


def test_a_wrong_claimed_lane_and_a_wrong_open_one_are_counted_apart() -> None:
    probe, sources, results = run_pair("div.u32")
    silicon = results[0].copy()
    claimed = np.flatnonzero(sources[1] != 0)[5]
    silicon[claimed] ^= 1
    silicon[sources[1] == 0] ^= 1
    outcome = conformance.compare(probe, sources, [silicon], results)
    zeros = int((sources[1] == 0).sum())
    assert zeros
    assert (outcome.differing, outcome.open_lanes, outcome.open_differing) == (1, zeros, zeros)
    (example,) = outcome.examples
    assert example == (
        f"operands {sources[0][claimed]:#x} {sources[1][claimed]:#x}: "
        f"GPU {silicon[claimed]:#x}, executor {results[0][claimed]:#x}"
    )


# --- the document, the gate, the command ----------------------------------------------------------------------------


def document(differing: int = 0, **changes: Any) -> dict[str, Any]:
    good = conformance.Outcome("add.u32", 8, 0, 0, 0, ())
    bad = conformance.Outcome("sub.u32", 8, differing, 0, 0, ("operands 0x1 0x2: GPU 0x0, executor 0xffffffff",))
    made = conformance.document_of([good, bad], ["add.f32x2"], gpu="a GPU", arch="sm_90a")
    changed = {**made, **changes}
    return {**changed, "digest": digest_of(changed)} if changes else made


def refusals(tmp_path: Path, content: dict[str, Any]) -> list[str]:
    path = tmp_path / "conformance.json"
    path.write_text(json.dumps(content))
    return list(check_reports([path], None, catalog).refusals)


@pytest.fixture
def of_two_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate takes a run of two instructions on eight lanes each."""
    monkeypatch.setattr(report, "INSTRUCTIONS", range(2, 3))
    monkeypatch.setattr(report, "LANES", 8)


def test_the_gate_refuses_a_run_of_two_instructions(tmp_path: Path) -> None:
    assert any("says that 2 instructions ran; needed 2,000 and more" in text for text in refusals(tmp_path, document()))


@pytest.mark.usefixtures("of_two_instructions")
def test_the_gate_takes_a_run_without_differences(tmp_path: Path) -> None:
    assert [text for text in refusals(tmp_path, document()) if not text.startswith("no report in")] == []


@pytest.mark.usefixtures("of_two_instructions")
def test_the_gate_refuses_differing_instructions(tmp_path: Path) -> None:
    (sentence,) = refusals(tmp_path, document(differing=3))
    assert "1 instructions differ on a GPU: sub.u32" in sentence


@pytest.mark.usefixtures("of_two_instructions")
def test_the_gate_refuses_a_run_of_other_sources(tmp_path: Path) -> None:
    (sentence,) = refusals(tmp_path, document(isa_sha256="5a" * 32))
    assert "the executor's instructions changed since they were held against a GPU" in sentence


def test_the_gate_refuses_an_edited_run(tmp_path: Path) -> None:
    edited = {**document(differing=3), "differing_opcodes": 0, "rows": []}
    (sentence,) = refusals(tmp_path, edited)
    assert "edited after it was made" in sentence


def test_the_gate_refuses_a_run_of_nothing(tmp_path: Path) -> None:
    sentence = refusals(tmp_path, document(opcodes=0))[0]
    assert "holds no instruction" in sentence
    without = {key: value for key, value in document().items() if key != "rows"}
    (sentence,) = refusals(tmp_path, {**without, "digest": digest_of(without)})
    assert "has no rows" in sentence


def invoke(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], *arguments: str) -> Any:
    monkeypatch.setattr(conformance, "run", run)
    return CliRunner().invoke(app, ["conformance", *arguments])


def test_the_command_says_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.json"
    found = invoke(monkeypatch, lambda progress: document(differing=3), "--report", str(path))
    assert found.exit_code == 1
    assert "MISMATCH sub.u32: 3 of 8 lanes differ; operands 0x1 0x2: GPU 0x0, executor 0xffffffff" in found.output
    assert json.loads(path.read_text()) == document(differing=3)
    found = invoke(monkeypatch, lambda progress: document())
    assert found.exit_code == 0
    assert "2 instructions on a GPU (sm_90a), 16 lanes: 0 differ" in found.output


def test_the_command_without_a_gpu_ran_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(progress: Any) -> Any:
        raise DeviceUnavailable("torch sees no CUDA device")

    found = invoke(monkeypatch, absent)
    assert (found.exit_code, found.output) == (3, "SKIPPED torch sees no CUDA device\n")
    assert invoke(monkeypatch, absent, "--device", "ptx").exit_code == 2
