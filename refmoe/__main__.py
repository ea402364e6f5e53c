"""The `refmoe` command, also as `python -m refmoe`. A package that is not installed ends it in one sentence."""

from __future__ import annotations

import sys

#: What to install for a module that is no dependency of refmoe, or whose package has another name.
_PACKAGES = {
    "cuda": "'refmoe[cuda]'",
    "gfloat": "'refmoe[oracles]'",
    "gguf": "'refmoe[oracles]'",
    "hypothesis": "'refmoe[test]'",
    "mpmath": "'refmoe[oracles]'",
    "pytest": "'refmoe[test]'",
    "torch": "'refmoe[cuda]'",
    "torchao": "'refmoe[oracles]'",
    "transformers": "'refmoe[oracles]'",
    "triton": "'refmoe[triton]'",
}


def main() -> None:
    """Run the command line."""
    try:
        from refmoe.cli import main as command_line

        command_line()
    except ModuleNotFoundError as error:
        module = (error.name or "refmoe").partition(".")[0]
        if module == "refmoe":
            raise
        print(f"refmoe: {module} is not installed: pip install {_PACKAGES.get(module, module)}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
