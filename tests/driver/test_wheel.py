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
from refmoe.driver.packaged import packaged_ptx, without_places

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
    assert f"with {57} PTX texts" in done.stdout
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


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the wheel and what refmoe[probe] needs, and nothing else."""
    place = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    (site,) = (place / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for each in distributions(requirements_of(wheel), {"probe"}).values():
        for top in {file.parts[0] for file in each.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            target = Path(str(each.locate_file(top)))
            if target.exists() and not (site / top).exists():
                (site / top).symlink_to(target)
    return place / "venv" / "bin" / "python"


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
    targets = [Target(source, arch, "ptx") for source in sorted(CSRC.glob("*.cu")) for arch in KERNEL_ARCHS]
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
    assert refmoe(alone, tmp_path, "bench", "gpu").stderr.startswith("refmoe: the cuda device needs torch")


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


def test_the_five_packages_are_all_that_a_probe_imports(wheel: Path) -> None:
    """Those of the page, and nothing that any of them does not need itself."""
    page = (ROOT / "docs" / "guides" / "probe.md").read_text()
    assert f"pip install {' '.join(FIVE)}" in page
    known = distributions(list(FIVE), set())
    code = "import sys, refmoe.cli.probe, refmoe.cli, refmoe.probe.hosts, refmoe.probe.bundle, cuda.bindings.driver\n"
    code += "print(*{each.partition('.')[0] for each in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    owners = metadata.packages_distributions()
    needed = {name.lower() for module in done.stdout.split() for name in owners.get(module, ())}
    assert needed - {"refmoe", "setuptools"} <= known.keys()
