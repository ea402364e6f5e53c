"""A GPU through the driver alone, with the executor in the driver's place; on a GPU the driver itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="no cuda-bindings")

from support.probe.kernel_driver import KernelDriver, Status
from support.toolchain import hide_nvcc

from refmoe.catalog import parse_case
from refmoe.cuda.device import CudaDevice, DeviceUnavailable
from refmoe.cuda.launch import Entry
from refmoe.cuda.toolchain import CSRC, find_toolchain
from refmoe.driver import DriverDevice, device, opened, packaged
from refmoe.driver.packaged import entries_in, pack, packaged_ptx
from refmoe.errors import RefmoeError
from refmoe.families.family import LaunchFailed
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

SOURCES = ("quantize", "expand", "routing", "finalize")
#: One with several launches, one with many entries and numbers among its arguments, one with empty buffers.
CASES = (
    "mxfp8_quantize:bf16:m16k416:boundary-mantissas:seed7@cuda",
    "expand:bf16:m9k416e16t2:gaussian:output=copy:routing=empty-experts:poison=0x7F:seed7@cuda",
    "routing:f32:m16e40t4:wide:poison=0x7F:seed7@cuda",
    "mxfp8_quantize:bf16:m0k2880:gaussian:layout=8x4:seed7@cuda",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PTX of some sources, as a wheel has it."""
    folder = tmp_path_factory.mktemp("made") / "ptx"
    pack(folder, find_toolchain(), [CSRC / f"{name}.cu" for name in SOURCES])
    return folder


@pytest.fixture
def bare(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without nvcc and without torch, whose package has PTX."""
    hide_nvcc(monkeypatch, tmp_path)
    monkeypatch.setattr(packaged, "FOLDER", made)
    monkeypatch.setattr(device, "_has_torch", lambda: False)


def with_driver(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    monkeypatch.setattr(device, "_driver", lambda: driver)


@pytest.mark.parametrize("text", CASES)
def test_cases_of_a_gpu_run_on_ptx_of_the_package(text: str, bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = KernelDriver()
    with_driver(monkeypatch, driver)
    case = parse_case(text, "sm_120a")
    kernel = Kernel(case.family, Devices())
    result = run_case(kernel, case)
    assert result.verdict is Verdict.PASS, result.reason
    assert (result.device, result.arch) == ("cuda", "sm_120a")
    assert result.compiler == packaged.compiler_line()
    assert all(".target sm_120a" in text for text in driver.loaded)
    assert not driver.memory  # all that was allocated was freed


def test_a_wrong_kernel_is_found(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that are compared are those that came back from the driver's memory."""

    class Spoils(KernelDriver):
        def cuMemcpyDtoH(self, target: int, place: int, size: int) -> tuple[Any, ...]:
            self.memory[int(place)][-1] ^= 1
            return super().cuMemcpyDtoH(target, place, size)

    with_driver(monkeypatch, Spoils())
    case = parse_case(CASES[0], "sm_120a")
    assert run_case(Kernel(case.family, Devices()), case).verdict is Verdict.MISMATCH


def test_each_entry_is_loaded_once_and_alone(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = KernelDriver((12, 1))
    with_driver(monkeypatch, driver)
    devices = Devices()
    for text in CASES[:1] * 3:
        case = parse_case(text, "sm_121a")
        assert run_case(Kernel(case.family, devices), case).verdict is Verdict.PASS
    # The first one shows that the driver takes PTX of the package at all.
    first, launched = (entries_in(text) for text in driver.loaded)
    assert first == entries_in(packaged_ptx(CSRC / "quantize.cu", "sm_121a"))[:1]
    assert launched == ["refmoe_mxfp8_quantize_bf16_rceil_exact_linear"]


def test_memory_holds_what_it_is_given(bare: None) -> None:
    gpu = DriverDevice(driver=KernelDriver())
    array = np.arange(48, dtype=np.uint8).reshape(4, 12)[:, ::2]  # not contiguous
    with pytest.raises(ValueError, match="contiguous"):
        array.view(np.uint16)
    buffer = gpu.upload("x", array)
    assert np.array_equal(gpu.download(buffer), array)
    assert gpu.download(gpu.output("y", (3, 5), 0xA5)).tolist() == [[0xA5] * 5] * 3
    empty = gpu.output("z", (0, 5), 1)
    assert empty.data_ptr() == 0
    assert gpu.download(empty).shape == (0, 5)


def test_a_launch_that_fails_has_the_drivers_words(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(KernelDriver):
        def cuLaunchKernelEx(self, *given: Any) -> tuple[Any, ...]:
            return (Status.CUDA_ERROR_LAUNCH_FAILED,)

    with_driver(monkeypatch, Fails())
    case = parse_case(CASES[0], "sm_120a")
    result = run_case(Kernel(case.family, Devices()), case)
    assert result.verdict is Verdict.ERROR
    assert "cuLaunchKernelEx failed: CUDA_ERROR_LAUNCH_FAILED" in str(result.reason)
    assert isinstance(result.error, RefmoeError | LaunchFailed)


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (
            KernelDriver(version=12080),
            "the driver runs CUDA 12.8, and the PTX in this package needs the driver of CUDA",
        ),
        (KernelDriver((8, 0)), "NVIDIA Toy is sm_80; kernels are built for sm_90a, sm_120a, sm_121a"),
        (
            KernelDriver(init=Status.CUDA_ERROR_NO_DEVICE),
            "the CUDA driver cannot be used: cuInit failed: CUDA_ERROR_NO",
        ),
    ],
)
def test_what_a_machine_lacks_is_said_in_a_sentence(
    driver: KernelDriver, said: str, bare: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver(monkeypatch, driver)
    case = parse_case(CASES[0])
    devices = Devices()
    for _ in range(2):  # and to the next case the same
        result = run_case(Kernel(case.family, devices), case)
        assert result.verdict is Verdict.SKIPPED
        assert said in str(result.reason)


def test_another_gpu_than_the_one_asked_for_is_said(bare: None) -> None:
    with pytest.raises(DeviceUnavailable, match="NVIDIA Toy is sm_120a; asked for sm_90a"):
        DriverDevice("sm_90a", driver=KernelDriver())


def test_a_machine_without_a_driver_is_said(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLibrary(KernelDriver):
        def cuInit(self, flags: int) -> tuple[Any, ...]:
            raise RuntimeError("Failed to dlopen libcuda.so.1")  # as cuda-bindings does

    with pytest.raises(DeviceUnavailable, match=r"no NVIDIA driver: libcuda\.so\.1 is not found"):
        DriverDevice(driver=NoLibrary())


def test_what_needs_torch_says_so(bare: None) -> None:
    with pytest.raises(DeviceUnavailable, match="needs torch"):
        DriverDevice(driver=KernelDriver()).torch  # noqa: B018


def test_ptx_of_other_sources_never_reaches_a_gpu(bare: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = KernelDriver()
    with_driver(monkeypatch, driver)
    csrc = Path(shutil.copytree(CSRC, tmp_path / "csrc"))
    (csrc / "warp.cuh").write_text((csrc / "warp.cuh").read_text() + "\n")
    case = parse_case(CASES[0], "sm_120a")
    result = run_case(Kernel(case.family, Devices(csrc=csrc)), case)
    assert result.verdict is Verdict.SKIPPED
    assert "made of another source" in str(result.reason)
    assert not driver.loaded


@pytest.mark.gpu
@pytest.mark.parametrize("text", CASES)
def test_a_gpu_runs_ptx_of_the_package(text: str, bare: None) -> None:
    try:
        gpu = opened("cuda")
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    assert isinstance(gpu, DriverDevice)
    case = parse_case(text, gpu.arch)
    result = run_case(Kernel(case.family, Devices()), case)
    assert result.verdict is Verdict.PASS, result.reason


def test_with_nvcc_and_torch_it_is_torchs_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(device, "DriverDevice", None)
    try:
        assert type(opened("cuda")) is CudaDevice
    except DeviceUnavailable as error:
        assert "torch sees no CUDA device" in str(error)  # noqa: PT017


def test_torch_without_nvcc_is_not_enough_for_torchs_device(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_has_torch", lambda: True)
    with_driver(monkeypatch, KernelDriver())
    assert type(opened("cuda")) is DriverDevice


def test_nvcc_without_torch_gives_the_driver_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Takes(KernelDriver):
        def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
            self.images = [*getattr(self, "images", []), image]
            return Status.CUDA_SUCCESS, None

    monkeypatch.setattr(device, "_has_torch", lambda: False)
    driver = Takes()
    with_driver(monkeypatch, driver)
    gpu = opened("cuda")
    assert isinstance(gpu, DriverDevice)
    gpu.function(Entry("quantize", "refmoe_mxfp8_quantize_bf16_rceil_exact_linear"))
    gpu.function(Entry("quantize", "refmoe_mxfp8_quantize_bf16_rceil_exact_8x4"))
    (image,) = driver.images  # a source whole, as nvcc assembled it
    assert image.startswith(b"\x7fELF")
