"""Build the wheel with the PTX of every production kernel and the floors, for machines without nvcc: `make wheel`.

Prints where it is, and how large.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from refmoe.driver.packaged import pack

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Build it; exit status 1 if pip fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the wheel")
    parser.add_argument(
        "--offline", action="store_true", help="build with this Python's own setuptools instead of a fetched one"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        packed = pack(Path(scratch) / "ptx")
        # Of a copy: setuptools leaves its folders beside the sources, and takes along what lies in them.
        tree = Path(scratch) / "tree"
        tree.mkdir()
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy2(ROOT / name, tree)
        shutil.copytree(ROOT / "refmoe", tree / "refmoe", ignore=shutil.ignore_patterns("__pycache__"))
        options = ["--no-build-isolation", "--no-index"] if arguments.offline else []
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        made = Path(scratch) / "made"
        environment = {**os.environ, "REFMOE_PTX": str(Path(scratch) / "ptx")}
        command = [*pip, "wheel", "--no-deps", *options, "--wheel-dir", str(made), str(tree)]
        done = subprocess.run(command, env=environment)
        if done.returncode != 0:
            return 1
        (wheel,) = made.glob("refmoe-*.whl")
        arguments.output.mkdir(parents=True, exist_ok=True)
        target = arguments.output / wheel.name
        shutil.move(wheel, target)
    print(
        f"{target}: {target.stat().st_size / 1e6:.1f} MB, with {packed.texts} PTX texts "
        f"({packed.text_bytes / 1e6:.0f} MB in {packed.file_bytes / 1e6:.1f})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
