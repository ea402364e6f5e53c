"""The command without packages that it needs: one sentence that names what to install, never a traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.selection.thinned import thinned
from support.verify import CASE, result, write_document

from refmoe.native import cache as native_cache
from refmoe.views.doctor import NEEDED as NEEDED_PACKAGES
from refmoe.views.doctor import OPTIONAL

ROOT = Path(__file__).parent.parent
KERNEL = ROOT / "tests" / "data" / "triton_e4m3_e4m3.ptx"

#: Runs every command line of its input, a JSON list, in one process that lacks packages; prints (status, output) each.
SCRIPT = """
import contextlib, functools, io, json, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
with contextlib.suppress(ImportError):
    # Every line would make all commands anew.
    import typer.main
    typer.main.get_command = functools.cache(typer.main.get_command)
from refmoe.__main__ import main
found = []
for arguments in json.load(sys.stdin):
    sys.argv = ["refmoe", *arguments]
    text, status = io.StringIO(), 0
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            main()
        except SystemExit as end:
            status = end.code
    found.append((status, text.getvalue()))
print(json.dumps(found))
"""

COMMANDS = (
    ["--help"],
    ["parity", "--help"],
    ["doctor"],
    ["layout", "8x4", "--rows", "8", "--picture", "layout.svg"],
    ["tiles"],
    ["flow"],
    ["policy", "compare", "gaussian:m4k64", "--picture", "policy.svg"],
    ["run", str(KERNEL), "--list"],
    ["gate", "a.json"],
    ["report", "a.json", "--html", "a.html", "--markdown", "a.md"],
    ["conformance"],
    ["stress"],
    ["bench", "gpu"],
    ["parity", "--case", str(CASE.on("cuda")), "--report", "b.json"],
    ["cutlass"],
)

#: What each package is needed for at least: the commands that say so, by their first word.
NEEDED = {
    "typer": {arguments[0] for arguments in COMMANDS},
    "numpy": {arguments[0] for arguments in COMMANDS},
    "ml_dtypes": {"doctor", "layout", "policy", "gate"},
    "pydantic": {"gate", "report", "parity"},
    "rich": {"tiles", "flow", "conformance", "stress"},
    "matplotlib": {"layout", "policy"},
    "jinja2": {"report"},
    "torch": {"conformance", "stress"},
    "cuda": {"conformance", "stress", "bench"},
    "cutlass_library": {"cutlass"},
    "safetensors,pytest,triton": set(),  # none of these commands needs any of them
}
INSTALL = {
    "torch": "'refmoe[cuda]'",
    "cuda": "'refmoe[cuda]'",
    "matplotlib": "'refmoe[pictures]'",
    "cutlass_library": "'nvidia-cutlass",
}


@pytest.mark.parametrize(
    ("package", "every"),
    [
        # A process for each takes seconds.
        *thinned(((package, False) for package in NEEDED), 4),
        *(pytest.param(package, True, marks=pytest.mark.slow) for package in NEEDED),
    ],
)
def test_a_missing_package_ends_in_a_sentence(package: str, every: bool, tmp_path: Path) -> None:
    # Those that need the package; with `every`, those that do without it as well.
    needed = NEEDED[package] or {"layout", "policy"}
    commands = [arguments for arguments in COMMANDS if every or arguments[0] in needed]
    write_document(tmp_path / "a.json", [result()])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, package],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "REFMOE_CACHE_DIR": str(native_cache.folder().parent),  # each package anew would compile for seconds
            "CUDA_VISIBLE_DEVICES": "",
        },
    )
    assert done.returncode == 0, done.stderr
    asked = set()
    for arguments, (status, text) in zip(commands, json.loads(done.stdout), strict=True):
        assert "Traceback" not in text
        if f"pip install {INSTALL.get(package, package)}" in text:
            asked.add(arguments[0])
            if arguments[0] != "doctor":
                assert status != 0
                assert len(text.splitlines()[0]) < 200
    assert asked >= NEEDED[package]


def test_doctor_names_every_missing_package(tmp_path: Path) -> None:
    missing = [*NEEDED_PACKAGES, *OPTIONAL, "torch"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(missing)],
        input=json.dumps([["doctor"]]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    ((status, text),) = json.loads(done.stdout)
    lines = text.splitlines()
    assert status == 1
    assert all(f"missing {name}  not installed: pip install {name}" in lines for name in NEEDED_PACKAGES), text
    for name, (use, install) in OPTIONAL.items():
        assert f"absent  {name}  not installed: pip install {install} (only {use})" in lines
    assert "missing nvcc  not looked for, since numpy is not installed" in lines
    assert lines[-1] == "`refmoe parity` cannot run."
    listed = re.search(r"\ndependencies = \[(.*?)\n\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert listed is not None
    named = set(re.findall(r'^ +"(\w+)', listed[1], re.MULTILINE))
    assert named == {*NEEDED_PACKAGES, "jinja2", "ninja"}


@pytest.mark.parametrize("package", ["llvmlite", "pydantic"])
def test_doctor_goes_on_behind_a_missing_package(package: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, package],
        input=json.dumps([["doctor"]]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    ((status, text),) = json.loads(done.stdout)
    assert status == 1
    assert f"{package}  not installed: pip install {package}" in text
    rows = ("numpy", "nvcc", "g++", "ninja", "kernel cache", "CUTLASS headers", "DeepGEMM headers", "CuTe DSL", "GPU")
    assert all(f" {name}  " in text for name in rows), text


def test_a_cluster_without_its_package_ends_in_a_sentence_before_anything_runs(tmp_path: Path) -> None:
    cluster = ["--cluster", "tcp://127.0.0.1:1"]
    commands = [["mutate", *cluster], ["parity", *cluster], ["parity", "--level", "exhaustive", *cluster]]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "distributed"],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    said = "refmoe: distributed is not installed: pip install 'refmoe[cluster]'\n"
    assert json.loads(done.stdout) == [[1, said]] * 3
    assert not list(tmp_path.iterdir())


def test_what_is_broken_inside_refmoe_is_no_missing_package(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "refmoe.ptx"],
        input=json.dumps([["run", str(KERNEL), "--list"]]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "refmoe", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_imports_nothing_heavy() -> None:
    heavy = {"torch", "matplotlib", "pydantic", "typer", "rich", "pytest"}
    code = f"import sys, refmoe; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


#: Sends this process Ctrl-C when the named module is first imported, then runs the command line.
INTERRUPT = """
import os, signal, sys
module = sys.argv.pop(1)
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from refmoe.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["refmoe.cli", "numpy", "refmoe.cli.show", "refmoe.catalog", "refmoe.museum"])
def test_ctrl_c_is_one_word_wherever_it_comes(module: str, tmp_path: Path) -> None:
    """While the command line is imported, and in a command before its first case."""
    command = [sys.executable, "-c", INTERRUPT, module, "parity", "--level", "quick", "--suite", "expand"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_of_a_terminal_reaches_the_workers_too_and_they_are_silent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "refmoe", "parity", "--level", "quick", "--suite", "routing", "--jobs", "2"]
    run = subprocess.Popen(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    if not children.exists():
        run.kill()
        pytest.skip("this machine does not list the children of a process")
    # The tracker of multiprocessing and two workers, which are about to import what they need.
    while run.poll() is None and len(children.read_text().split()) < 3:
        time.sleep(0.01)
    workers = children.read_text().split()
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "Traceback" not in out + err
    assert "interrupted" in out + err
    end = time.monotonic() + 10
    while any(map(is_running, workers)) and time.monotonic() < end:
        time.sleep(0.01)  # the tracker ends after its parent
    assert not any(map(is_running, workers))


def is_running(process: str) -> bool:
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False
