"""Make the lists of kernel families, in docs/index.md, docs/guides/testing.md and mkdocs.yml, from the families.

    python tools/families.py            rewrite what stands between `families: NAME` and `end`
    python tools/families.py --check    fail if that would change anything

`make readme` and `make gate` run these.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from refmoe.families import FAMILIES, Family
from refmoe.files import write_atomic

ROOT = Path(__file__).resolve().parent.parent
FILES = ("docs/index.md", "docs/guides/testing.md", "mkdocs.yml")
_FIRST, _LAST = r"^ *(?:<!--|#) families: (\w+)(?: -->)?\n", r"^ *(?:<!--|#) end(?: -->)?$"
_LIST = re.compile(rf"({_FIRST}).*?({_LAST})", re.DOTALL | re.MULTILINE)


def main() -> int:
    """Rewrite or check the lists; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a list would change")
    check = parser.parse_args().check
    stale = 0
    for name in FILES:
        text = (ROOT / name).read_text()
        filled = _LIST.sub(_fill, text)
        if not check:
            write_atomic(ROOT / name, filled)
        elif filled != text:
            print(f"{name} does not list the families that there are: run `make readme`")
            stale = 1
    return stale


def pages() -> dict[str, Family]:
    """The families by the name of their page, which says what the family is called in reports."""
    found = {}
    for path in (ROOT / "docs" / "families").glob("*.md"):
        called = re.search(r"this family is called `(\w+)`", path.read_text())
        if called is None or called[1] not in FAMILIES:
            raise SystemExit(f"{path.name}: needed the sentence that this family is called NAME, with a family's name")
        found[called[1]] = path.stem
    return {found[name]: family for name, family in FAMILIES.items() if name in found}


def _fill(match: re.Match[str]) -> str:
    return match[1] + "".join(f"{line}\n" for line in LISTS[match[2]]()) + match[3]


def _pages() -> list[str]:
    head = ["| page | family in reports | what its kernels compute |", "|---|---|---|"]
    return head + [
        f"| [{page}](families/{page}.md) | `{family.name}` | {family.about} |" for page, family in pages().items()
    ]


def _contracts() -> list[str]:
    head = ["| family | inputs | settings | outputs |", "|---|---|---|---|"]
    rows = []
    for page, family in pages().items():
        contract = family.contract
        names = (contract.inputs, contract.settings, contract.outputs)
        cells = " | ".join(f"`{' '.join(each)}`" for each in names)
        rows.append(f"| [`{family.name}`](../families/{page}.md) | {cells} |")
    return head + rows


def _navigation() -> list[str]:
    return [f"      - {page}: families/{page}.md" for page in pages()]


#: By the name of a list what makes its lines.
LISTS = {"pages": _pages, "contracts": _contracts, "navigation": _navigation}

if __name__ == "__main__":
    sys.exit(main())
