"""The command without packages that it needs: one sentence that names what to install, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.verify import CASE, result, write_document

ROOT = Path(__file__).parent.parent
KERNEL = ROOT / "tests" / "data" / "triton_e4m3_e4m3.ptx"

#: Runs every command line of its input, a JSON list, in one process without one package; prints (status, output) each.
SCRIPT = """
import contextlib, io, json, sys
sys.modules[sys.argv[1]] = None
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
    "torch": {"conformance", "stress", "bench"},
    "cuda": {"conformance", "stress", "bench"},
    "safetensors": set(),
    "cutlass_library": {"cutlass"},
    "pytest": set(),
    "triton": set(),
}
INSTALL = {"torch": "'refmoe[cuda]'", "cuda": "'refmoe[cuda]'", "cutlass_library": "'nvidia-cutlass"}


@pytest.mark.parametrize("package", NEEDED)
def test_a_missing_package_ends_in_a_sentence(package: str, tmp_path: Path) -> None:
    write_document(tmp_path / "a.json", [result()])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, package],
        input=json.dumps(COMMANDS),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "CUDA_VISIBLE_DEVICES": "",
        },
    )
    assert done.returncode == 0, done.stderr
    asked = set()
    for arguments, (status, text) in zip(COMMANDS, json.loads(done.stdout), strict=True):
        assert "Traceback" not in text
        if f"pip install {INSTALL.get(package, package)}" in text:
            asked.add(arguments[0])
            if arguments[0] != "doctor":
                assert status != 0
                assert len(text.splitlines()[0]) < 200
    assert asked >= NEEDED[package]


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
