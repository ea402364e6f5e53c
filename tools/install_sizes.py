"""Measure what the owner of a GPU installs for `refmoe probe`, and write it to docs/install.json: `make sizes`.

Each way is installed into a fresh environment, from files that were fetched before: the seconds are those of pip. The
pages take the figures from that file (`make readme`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

from refmoe.files import write_atomic
from refmoe.version import __version__

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "install.json"
#: What a probe imports of packages; each brings what it needs itself.
FIVE = ("numpy", "ml_dtypes", "pydantic", "typer", "cuda-bindings")

_PACKAGES = """
import json
from importlib import metadata
from pathlib import Path

found = {}
for each in metadata.distributions():
    files = (Path(str(each.locate_file(file))) for file in each.files or [])
    found[each.metadata["Name"]] = sum(path.stat().st_size for path in files if path.is_file())
print(json.dumps(found))
"""


def main() -> int:
    """Measure; exit status 1 if pip fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, help="the wheel that `make wheel` built; built if left out")
    wheel = parser.parse_args().wheel
    with tempfile.TemporaryDirectory() as scratch:
        try:
            if wheel is None:
                _run(sys.executable, ROOT / "tools" / "wheel.py", "--output", scratch)
                (wheel,) = Path(scratch).glob("refmoe-*.whl")
            wheel_bytes = wheel.stat().st_size
            installs = [
                _measured("whole", Path(scratch) / "whole", [[f"{wheel}[probe]"]]),
                _measured("five", Path(scratch) / "five", [list(FIVE), ["--no-deps", str(wheel)]]),
            ]
        except subprocess.CalledProcessError as error:
            print(error.stderr or error, file=sys.stderr)
            return 1
    document = {
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "refmoe": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "wheel_bytes": wheel_bytes,
        "installs": installs,
    }
    write_atomic(TARGET, json.dumps(document, indent=1) + "\n")
    for each in installs:
        print(
            f"{each['name']}: {len(each['packages'])} packages, {each['bytes'] / 1e6:.0f} MB on the disk, "
            f"{each['fetched_bytes'] / 1e6:.0f} MB to fetch, {each['seconds']:.0f} s"
        )
    return 0


def _measured(name: str, place: Path, calls: list[list[str]]) -> dict[str, Any]:
    """One way to install, as calls of pip, in a fresh environment below `place`."""
    venv.create(place / "venv", with_pip=True)
    python, files = place / "venv" / "bin" / "python", place / "files"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    for call in calls:
        _run(*pip, "download", "--only-binary", ":all:", "--dest", files, *call)
    before = json.loads(_run(python, "-c", _PACKAGES))
    start = time.perf_counter()
    for call in calls:
        # Modules are compiled when they are first imported, and most never are.
        _run(*pip, "install", "--no-compile", "--no-index", "--find-links", files, *call)
    seconds = time.perf_counter() - start
    packages = {each: size for each, size in json.loads(_run(python, "-c", _PACKAGES)).items() if each not in before}
    return {
        "name": name,
        "seconds": round(seconds, 1),
        "bytes": sum(packages.values()),
        "fetched_bytes": sum(path.stat().st_size for path in files.iterdir()),
        "packages": dict(sorted(packages.items(), key=lambda item: -item[1])),
    }


def _run(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
