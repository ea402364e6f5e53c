"""The GPU's benchmarks through the driver alone, with the executor and a clock of its own in the driver's place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="no cuda-bindings")

from support.probe.graph_driver import GraphDriver, Status
from support.toolchain import NVCC, hide_nvcc

from refmoe.bench import gpu
from refmoe.bench.gpu import gemv, timing
from refmoe.bench.gpu.kernels import MoeSizes, activation, expand, finalize, quantize, quantize_then_expand, route, sort
from refmoe.bench.gpu.timing import ROUNDS, Contender, clocks, empty, floor_device, gpu_device, interleaved, time_groups
from refmoe.catalog import source_sha256
from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda.device import CudaDevice, DeviceUnavailable
from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.cuda.toolchain import CSRC
from refmoe.driver import DriverDevice, device, packaged
from refmoe.driver.packaged import FLOORS, entries_in, pack, packaged_ptx, packed_sources
from refmoe.errors import RefmoeError
from refmoe.probe.parts import _benchmarks
from refmoe.recomputed.bench import refusals
from refmoe.reports import environment
from refmoe.reports.bench import BENCH
from refmoe.reports.documents import digest_of

pytestmark = pytest.mark.skipif(NVCC is None, reason="no nvcc")

SOURCES = ("quantize", "expand", "routing", "activation", "finalize", "dp4a", "q8_1")
SMALL = MoeSizes("small", 96, 64, 8, 2, "gpt_oss", biased=True)
TOKENS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PTX of what is timed, as a wheel has it."""
    folder = tmp_path_factory.mktemp("made") / "ptx"
    pack(folder, sources=[*(CSRC / f"{name}.cu" for name in SOURCES), FLOORS])
    return folder


@pytest.fixture
def driver(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> GraphDriver:
    """The driver of a machine without nvcc and without torch, whose package has PTX."""
    hide_nvcc(monkeypatch, tmp_path)
    monkeypatch.setattr(packaged, "FOLDER", made)
    monkeypatch.setattr(device, "_has_torch", lambda: False)
    return with_driver(monkeypatch, GraphDriver())


def with_driver(monkeypatch: pytest.MonkeyPatch, driver: Any) -> Any:
    monkeypatch.setattr(device, "_driver", lambda: driver)
    return driver


def few_sets(monkeypatch: pytest.MonkeyPatch, sets: int) -> None:
    """As if the L2 cache was so small that so many sets are enough."""
    monkeypatch.setattr(timing, "MAX_BUFFER_SETS", sets)


def test_a_wheel_has_the_floors(made: Path) -> None:
    assert packed_sources() == [*sorted(CSRC.glob("*.cu")), FLOORS]
    for arch in KERNEL_ARCHS:
        entries = entries_in(packaged_ptx(FLOORS, arch, made))
        assert entries.count("refmoe_bench_empty") == 1
        assert {f"refmoe_bench_{name}" for name in ("copy", "gather", "read")} < set(entries)
        # Nobody's install grows by them.
        assert (made / f"floors.{arch}.ptx.xz").stat().st_size < 4096


def test_graphs_are_captured_replayed_and_timed_in_turn(driver: GraphDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"refmoe_bench_empty": 2.0, "refmoe_bench_copy": 7.0}
    driver.cost = costs.__getitem__
    few_sets(monkeypatch, 3)
    device_ = gpu_device()
    floors = floor_device(device_)
    group = [empty(floors), timing.copy(floors, 960, writes=1)]
    driver.calls.clear()
    samples = interleaved(device_, group, 10)
    assert samples == [[pytest.approx(2.0)] * ROUNDS, [pytest.approx(7.0)] * ROUNDS]
    # Ten nodes of one set of buffers, nine of three sets, and each of the sets was launched before.
    assert driver.clock == pytest.approx(2 + 3 * 7 + (ROUNDS + 1) * (10 * 2 + 9 * 7))
    assert driver.order == [0, 1] + [0, 1] * ROUNDS
    graph = ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphDestroy", "cuGraphLaunch"]
    timed = ["cuEventRecord", "cuGraphLaunch", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"]
    told = [name for name in driver.calls if name.startswith(("cuStream", "cuGraph", "cuEvent", "cuCtxS"))]
    told = [name for name in told if not name.endswith(("Destroy", "SetCurrent")) or name == "cuGraphDestroy"]
    assert told == ["cuEventCreate"] * 2 + ["cuCtxSynchronize", *graph] * 2 + timed * 2 * ROUNDS
    # Neither graphs nor events outlive their use.
    assert driver.graphs == [None, None]
    assert driver.events == [None, None]
    assert not driver.captured


def test_a_graph_has_a_node_for_each_launch_of_a_run(driver: GraphDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[str]] = []

    class Keeps(GraphDriver):
        def cuGraphInstantiate(self, graph: str, flags: int) -> tuple[Any, ...]:
            kept.append(self.captured[graph])
            return super().cuGraphInstantiate(graph, flags)

    with_driver(monkeypatch, Keeps())
    few_sets(monkeypatch, 2)
    device_ = gpu_device()
    pair = quantize_then_expand(device_, SMALL, TOKENS, "pair")
    ((time, *_),) = interleaved(device_, [pair], 6)
    assert len(kept[0]) == 6 * 2
    first, second = kept[0][:2]
    assert kept[0] == [first, second] * 6
    assert ("quantize" in first, "expand" in second) == (True, True)
    # A run is two launches of a microsecond each.
    assert time == pytest.approx(2.0)


def test_a_whole_group_runs_on_the_packages_ptx(driver: GraphDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches in front of the capture are carried out, so that wrong buffers would be found."""
    few_sets(monkeypatch, 2)
    driver.cost = lambda entry: 1.0 if entry == "refmoe_bench_empty" else 3.0
    device_ = gpu_device()
    kinds = (route, sort, activation, finalize)
    rows = time_groups(
        device_,
        [
            [
                empty(floor_device(device_)),
                quantize(device_, SMALL, TOKENS, "128x4"),
                expand(device_, SMALL, TOKENS, "expand"),
                *(make(device_, SMALL, TOKENS) for make in kinds),
            ]
        ],
    )
    assert len(rows) == 3 + len(kinds)
    assert [row["ratio_to_floor"] for row in rows[:3]] == [1.0, 3.0, 3.0]
    assert all(len(row["repetitions"]) == ROUNDS for row in rows)
    assert {row["name"] for row in rows} >= {"an empty kernel", "quantize 4 x 96 bf16, 128x4 scales"}
    assert not driver.memory  # all that was allocated was freed


def test_what_is_drawn_has_its_size_and_its_distribution(driver: GraphDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_BLOCK_BYTES", 4096)
    device_ = gpu_device()
    assert isinstance(device_, DriverDevice)
    normal = device_.download(timing.drawn_normal(device_, (30, 100), 5, scale=3))
    assert normal.shape == (30, 200)
    values = normal.view(ml_dtypes.bfloat16).astype(np.float32).ravel()
    assert values.std() == pytest.approx(3, rel=0.1)
    assert np.array_equal(values[:2048][: 3000 - 2048], values[2048:])
    drawn = device_.download(timing.drawn_bytes(device_, 5, (3, 5, 1000), 118, 124)).ravel()
    assert set(drawn.tolist()) == set(range(118, 124))
    assert np.array_equal(drawn, np.resize(drawn[:4096], 15000))
    assert np.array_equal(drawn, device_.download(timing.drawn_bytes(device_, 5, (15000,), 118, 124)))
    assert not np.array_equal(drawn, device_.download(timing.drawn_bytes(device_, 6, (15000,), 118, 124)))
    assert driver.calls.count("cuMemcpyDtoD") > 3
    assert device_.download(device_.repeated((0, 3), np.zeros(4, np.uint8))).shape == (0, 3)


@pytest.mark.parametrize("fails", ["cuCtxSynchronize", "cuLaunchKernelEx", "cuGraphInstantiate"])
def test_what_fails_is_named(fails: str, driver: GraphDriver) -> None:
    device_ = gpu_device()
    good = empty(floor_device(device_))
    bad = Contender("the culprit", 0, device_, [[LaunchPlan(Entry("quantize", ENTRY), 1, 32, (None, None, None, 0))]])
    driver.executes = False
    entered = False
    launch = driver.cuLaunchKernelEx

    def launched(config: Any, function: Any, arguments: Any, extra: int) -> tuple[Any, ...]:
        nonlocal entered
        entered |= function[1] == ENTRY
        return (
            (Status.CUDA_ERROR_LAUNCH_FAILED,)
            if entered and fails == "cuLaunchKernelEx"
            else launch(config, function, arguments, extra)
        )

    driver.cuLaunchKernelEx = launched  # type: ignore[method-assign]
    if fails != "cuLaunchKernelEx":
        whole = getattr(driver, fails)
        setattr(driver, fails, lambda *given: (Status.CUDA_ERROR_LAUNCH_FAILED,) if entered else whole(*given))
    with pytest.raises(RefmoeError, match=f"^the culprit: {fails} failed: CUDA_ERROR_LAUNCH_FAILED"):
        interleaved(device_, [good, bad])
    assert not driver.captured


ENTRY = "refmoe_mxfp8_quantize_bf16_rceil_exact_linear"


def test_a_failure_within_a_capture_ends_it(driver: GraphDriver) -> None:
    device_ = gpu_device()
    driver.executes = False

    class Turns(Contender):
        def enqueue(self, turn: int) -> None:
            if turn:
                raise RefmoeError("no more")
            super().enqueue(turn)

    one = empty(floor_device(device_))
    with pytest.raises(RefmoeError, match=r"^late: no more$"):
        interleaved(device_, [Turns("late", 0, one.device, one.sets)])
    assert not driver.capturing


def test_what_tells_of_the_machine_is_not_a_contenders(driver: GraphDriver) -> None:
    class Old(Contender):
        def enqueue(self, turn: int) -> None:
            raise DeviceUnavailable("update the driver")

    device_ = gpu_device()
    with pytest.raises(DeviceUnavailable, match=r"^update the driver$"):
        interleaved(device_, [Old("x", 0, device_, [[]])])


def test_the_legacy_stream_is_not_captured(driver: GraphDriver) -> None:
    plain = DriverDevice(driver=driver)
    with pytest.raises(RefmoeError, match=r"^an empty kernel: cuStreamBeginCapture failed: .*UNSUPPORTED"):
        interleaved(plain, [empty(floor_device(plain))])


def test_clocks_need_no_torch(driver: GraphDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver.executes = False
    monkeypatch.setattr(timing, "_BUSY_LAUNCHES", 5)
    monkeypatch.setattr(timing, "ROTATING_BYTES", 1 << 16)
    floors = floor_device(gpu_device())
    assert clocks(floors) == ""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 1980 MHz, 3201 MHz\n")
    smi.chmod(0o755)
    before = driver.clock
    assert clocks(floors) == "SM 1980 MHz, memory 3201 MHz, under load"
    assert driver.clock - before == 5
    assert driver.calls[-1] != "cuLaunchKernelEx"


@pytest.fixture
def document(driver: GraphDriver, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of `refmoe bench gpu` on a machine without torch, on which nothing is carried out."""
    driver.gpu = "NVIDIA GeForce RTX 5090"
    monkeypatch.setattr(environment, "_gpu", lambda: (driver.gpu, "CUDA 13.0"))
    driver.executes = False
    driver.cost = lambda entry: 1000.0
    few_sets(monkeypatch, 1)
    monkeypatch.setattr(gpu, "SIZES", SMALL)
    monkeypatch.setattr(gpu, "PREFILL_TOKENS", 64)
    monkeypatch.setattr(gemv, "WEIGHT_ROWS", (64,))
    found: dict[str, Any] = json.loads(json.dumps(gpu.run()))
    return found


def test_the_whole_benchmark_says_what_is_left_out(document: dict[str, Any]) -> None:
    assert (document["gpu"], document["arch"], document["clocks"]) == ("NVIDIA GeForce RTX 5090", "sm_120a", "")
    assert document["absent"].keys() == {"torch.bmm", "whole layers"}
    assert all("torch" in reason for reason in document["absent"].values())
    names = [row["name"] for row in document["rows"]]
    assert any(name.startswith("DP4A") for name in names)
    assert not any(name.startswith(("torch", "layer")) for name in names)
    assert [each.text for each in refusals(document)] == []
    signed = {**document, "digest": digest_of(document)}
    assert BENCH.check(Path("x.json"), signed, source_sha256) == []
    machine = {key: document[key] for key in ("gpu", "arch", "environment")}
    assert list(_benchmarks({"device": "cuda", **machine, "benchmarks": signed})) == []
    other = {**signed, "clocks": "idle"}
    assert any("edited" in each for each in _benchmarks({"device": "cuda", **machine, "benchmarks": other}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.pop("absent"), "torch.bmm: has no row, and nothing says why"),
        (lambda d: d["absent"].pop("torch.bmm"), "absent.torch.bmm: is not there"),
        (lambda d: d.update(absent=["torch.bmm"]), "absent: says"),
        (lambda d: d["absent"].update(DP4A="too slow"), "absent.DP4A: is there, and is none of its figures"),
        (lambda d: d["rows"][1].update(name="torch.bmm in BF16"), "torch.bmm: has rows, and is said to be absent"),
    ],
)
def test_what_is_left_out_without_a_word_is_refused(change: Any, said: str, document: dict[str, Any]) -> None:
    change(document)
    assert said in "\n".join(each.text for each in refusals(document))


def test_a_machine_with_torch_and_nvcc_has_torchs_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torchs(CudaDevice):
        def __init__(self, arch: str | None = None, csrc: Path = CSRC) -> None:
            self.csrc = csrc

    monkeypatch.setattr(device, "open_device", lambda name, arch, csrc: Torchs(arch, csrc))
    monkeypatch.setattr(device, "_has_torch", lambda: True)
    monkeypatch.setattr(timing, "CudaDevice", Torchs)
    found = gpu_device()
    assert type(found) is Torchs
    assert timing.has_torch(found)
    assert (found.csrc, floor_device(found).csrc, floor_device().csrc) == (CSRC, FLOORS.parent, FLOORS.parent)
