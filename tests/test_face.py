from __future__ import annotations

import subprocess
import sys


def test_import_stays_light() -> None:
    code = "import refmoe, sys; print([m for m in ('torch', 'matplotlib', 'pydantic', 'typer') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
