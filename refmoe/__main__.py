"""The `refmoe` command, also as `python -m refmoe`.

A package that is not installed ends it in one sentence, and Ctrl-C in one word.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

#: Exit status after Ctrl-C, as shells have it.
_INTERRUPTED = 130

#: What to install for a module that is no dependency of refmoe, or whose package has another name.
_PACKAGES = {
    "cuda": "'refmoe[cuda]'",
    "distributed": "'refmoe[cluster]'",
    "gfloat": "'refmoe[oracles]'",
    "gguf": "'refmoe[oracles]'",
    "hypothesis": "'refmoe[test]'",
    "matplotlib": "'refmoe[pictures]'",
    "mpmath": "'refmoe[oracles]'",
    "pytest": "'refmoe[test]'",
    "torch": "'refmoe[cuda]'",
    "torchao": "'refmoe[oracles]'",
    "transformers": "'refmoe[oracles]'",
    "triton": "'refmoe[triton]'",
}


def main() -> None:
    """Run the command line."""
    # Nothing is open yet that would have to be closed, and an exception in the middle of an import may become another.
    usual = signal.signal(signal.SIGINT, _interrupted)
    try:
        from refmoe.cli import main as command_line

        signal.signal(signal.SIGINT, usual)
        command_line()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None
    except ModuleNotFoundError as error:
        module = (error.name or "refmoe").partition(".")[0]
        if module == "refmoe":
            raise
        if sys.argv[1:] == ["doctor"]:
            _doctor()
        print(f"refmoe: {module} is not installed: pip install {_PACKAGES.get(module, module)}", file=sys.stderr)
        raise SystemExit(1) from None


def _doctor() -> NoReturn:
    """`refmoe doctor` where a package of the command line is missing: it says which, and what else is."""
    from refmoe.views.doctor import examine, plain_text

    print(plain_text(examine()), end="")
    raise SystemExit(1)


def _interrupted(signal: int, frame: FrameType | None) -> None:
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
