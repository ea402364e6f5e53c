"""The wheel that `make wheel` builds: what is in it, how large it is with all that it needs, and that it runs alone."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.toolchain import NVCC

from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda.toolchain import CSRC, Target, build
from refmoe.driver.packaged import packaged_ptx, packed_sources, without_places

ROOT = Path(__file__).parents[2]
CASES = ["parity", "--level", "quick", "--suite", "mxfp8_quantize"]
#: What `refmoe probe` imports of packages, and what those need: see docs/guides/probe.md.
FIVE = ("numpy", "ml_dtypes", "pydantic", "typer", "cuda-bindings")
#: Megabytes on the disk, without compiled modules: of the wheel's file, of all, and of the smaller install.
LARGEST_WHEEL, LARGEST, LARGEST_SMALL = 10, 310, 140

pytestmark = [
    # All kernels are compiled for all architectures, which takes minutes where nothing is kept.
    pytest.mark.slow,
    pytest.mark.skipif(NVCC is None, reason="no nvcc"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, ROOT / "tools" / "wheel.py", "--offline", "--output", folder]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    assert f"with {60} PTX texts" in done.stdout
    return found


def needed_by(requirements: list[str], extras: set[str]) -> Iterator[metadata.Distribution]:
    """The installed distributions that requirements name, with all that those need; some of them twice."""
    for text in requirements:
        each = Requirement(text)
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found = metadata.distribution(each.name)
            yield found
            yield from needed_by(found.requires or [], set(each.extras))


def distributions(requirements: list[str], extras: set[str]) -> dict[str, metadata.Distribution]:
    try:
        return {each.metadata["Name"].lower(): each for each in needed_by(requirements, extras)}
    except metadata.PackageNotFoundError as error:
        pytest.skip(f"not installed here: {error}")


def requirements_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []


def python_with(found: dict[str, metadata.Distribution], wheel: Path, place: Path) -> Path:
    """The Python of a fresh environment below `place` with the wheel and those distributions, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    (site,) = (place / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for each in found.values():
        for file in each.files or []:
            source = Path(str(each.locate_file(file)))
            if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
                continue
            # A file each: several distributions share the folder `cuda`.
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(source)
    return place / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel and what refmoe[probe] needs."""
    found = distributions(requirements_of(wheel), {"probe"})
    return python_with(found, wheel, tmp_path_factory.mktemp("alone"))


def refmoe(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in an environment without any program on PATH."""
    environment = {"PATH": str(folder / "none"), "HOME": str(folder), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    command = [python, "-m", "refmoe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def megabytes(found: dict[str, metadata.Distribution]) -> float:
    """Of all their files but compiled modules."""
    files = (Path(str(each.locate_file(file))) for each in found.values() for file in each.files or [])
    return sum(path.stat().st_size for path in files if path.suffix != ".pyc" and path.is_file()) / 1e6


def test_it_has_the_ptx_of_every_kernel_and_it_is_what_nvcc_makes(alone: Path) -> None:
    (folder,) = alone.parents[1].glob("lib/python*/site-packages/refmoe/driver/ptx")
    targets = [Target(source, arch, "ptx") for source in packed_sources() for arch in KERNEL_ARCHS]
    assert {target.source.stem for target in targets} == {"floors", *(path.stem for path in CSRC.glob("*.cu"))}
    assert len(list(folder.iterdir())) == len(targets) + 1
    for target, path in build(targets).items():
        assert packaged_ptx(target.source, target.arch, folder) == without_places(path.read_text())


def test_it_runs_without_nvcc_and_torch(alone: Path, tmp_path: Path) -> None:
    done = refmoe(alone, tmp_path, *CASES, "--report", "a.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["summary"].keys() == {"PASS"}
    assert report["environment"]["nvcc"] == report["cases"][0]["compiler"]
    said = refmoe(alone, tmp_path, "doctor").stdout
    assert "absent  nvcc  no usable nvcc" in said
    assert f"ok      PTX  in the package, of {report['environment']['nvcc']}" in said
    assert "`refmoe parity` can run." in said
    # Where there is a GPU, it is timed: see tests/bench/test_gpu_driver.py.
    if (timed := refmoe(alone, tmp_path, "bench", "gpu")).returncode:
        assert timed.stderr.startswith(("refmoe: this machine has no NVIDIA driver", "refmoe: the driver sees no GPU"))


def test_a_machine_without_a_gpu_is_told_so(alone: Path, tmp_path: Path) -> None:
    done = refmoe(alone, tmp_path, "probe", "--device", "cuda", "--bundle", "x.json")
    if done.returncode == 0:
        pytest.skip("there is a GPU")
    assert done.returncode == 3
    assert done.stderr.startswith(("SKIPPED this machine has no NVIDIA driver", "SKIPPED the driver sees no GPU"))
    assert not (tmp_path / "x.json").exists()


def test_pictures_name_what_they_need(alone: Path, tmp_path: Path) -> None:
    done = refmoe(alone, tmp_path, "layout", "8x4", "--rows", "8", "--picture", "x.png")
    assert (done.returncode, done.stderr) == (
        1,
        "refmoe: matplotlib is not installed: pip install 'refmoe[pictures]'\n",
    )
    assert refmoe(alone, tmp_path, "layout", "8x4", "--rows", "8").returncode == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("driver/ptx/quantize.sm_120a.ptx.xz", "is damaged"),
        ("cuda/csrc/quantize.cu", "made of another source"),
    ],
)
def test_a_damaged_and_a_stale_file_are_refused(name: str, said: str, alone: Path, tmp_path: Path) -> None:
    (package,) = alone.parents[1].glob("lib/python*/site-packages/refmoe")
    path = package / name
    kept = path.read_bytes()
    path.write_bytes(kept + b"\n")
    try:
        done = refmoe(alone, tmp_path, *CASES, "--report", "a.json")
    finally:
        path.write_bytes(kept)
    assert said in done.stdout.replace("\n", " ")
    cases = json.loads((tmp_path / "a.json").read_text())["cases"]
    # Another architecture's text is another file, and the sources are everybody's.
    spoilt = {case["arch"] for case in cases if case["verdict"] == "SKIPPED"}
    assert spoilt == ({"sm_120a"} if "sm_120a" in name else set(KERNEL_ARCHS))
    assert {case["verdict"] for case in cases if case["arch"] not in spoilt} <= {"PASS"}
    assert done.returncode == (0 if "sm_120a" in name else 3)


def test_all_of_it_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST_WHEEL * 1e6
    with zipfile.ZipFile(wheel) as archive:
        own = sum(each.file_size for each in archive.infolist()) / 1e6
    every = distributions(requirements_of(wheel), {"probe"})
    assert not every.keys() & {"torch", "triton", "matplotlib", "nvidia-cuda-nvcc", "scipy"}
    assert own + megabytes(every) < LARGEST
    five = distributions(list(FIVE), set())
    assert "llvmlite" not in five
    assert own + megabytes(five) < LARGEST_SMALL


def test_the_five_packages_are_all_that_a_probe_imports(wheel: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "probe.md").read_text()
    assert f"pip install {' '.join(FIVE)}\n" in page
    python = python_with(distributions(list(FIVE), set()), wheel, tmp_path)
    code = """
import json, sys
from pathlib import Path
from refmoe.probe import bundle
from refmoe.probe.claims import model_answers
from refmoe.probe.hosts import CudaBox
from refmoe.reports.probe import read_bundle

class Box:
    name, target, chip, driver = "cuda", "sm_120a", "NVIDIA Toy", "CUDA 13.0"

def ask_twice(box, instruction, vectors):
    found = model_answers(instruction, box.target, vectors)
    return found, list(found)

bundle.ask_twice = ask_twice
records = bundle.probe(Box(), bundle.chosen(None, "sm_120a")[::6])
parity, reason = bundle.made_by_command(["parity", "--device", "cuda", "--level", "quick"])
assert parity is None
left_out = [("parity", reason), ("benchmarks", "not wanted")]
document = bundle.bundle_of(Box(), records, left_out=left_out, seconds={"probes": 1.0})
Path("a.json").write_text(json.dumps(document))
read_bundle(Path("a.json"))
print(json.dumps([reason, [each["holds"] for each in records]]))
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reason, holds = json.loads(done.stdout)
    assert all(holds)
    assert "llvmlite is not installed" in reason
    said = refmoe(python, tmp_path, "probe", "--device", "cuda", "--bundle", "b.json")
    assert said.returncode in (0, 3), said.stderr
    shown = refmoe(python, tmp_path, "probe", "--table")
    assert "| instruction |" in shown.stdout
