"""The views of a layout say what the specification says, stay short, and are written whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from refmoe.errors import ArgumentError
from refmoe.reference.scalar import layout as scalar
from refmoe.views.layout import layout_text
from refmoe.views.layout_picture import draw_layout


def offset_table(text: str) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the table of byte offsets."""
    part = next(part for part in text.split("\n\n") if part.startswith("byte offset"))
    header, *lines = part.split("\n")[1:]
    return header.replace("scale row", "scale_row").split(), [line.split() for line in lines]


def byte_table(text: str) -> dict[int, str]:
    """Who lives in each byte."""
    part = next(part for part in text.split("\n\n") if part.startswith("row.K-block"))
    owners = {}
    for line in part.rstrip("\n").split("\n")[2:]:
        first, *labels = line.split()
        if first != "...":
            owners.update({int(first) + i: label for i, label in enumerate(labels)})
    return owners


@pytest.mark.parametrize("layout", ["128x4", "8x4", "linear"])
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (9, 5), (130, 6), (128, 8), (8192, 90)])
def test_both_tables_are_the_specification(layout: str, rows: int, blocks: int) -> None:
    text = layout_text(layout, rows, blocks)
    assert f"{scalar.scale_size(layout, rows, blocks)} bytes" in text
    header, lines = offset_table(text)
    seen = 0
    for row, *cells in lines:
        for name, cell in zip(header[1:], cells, strict=True):
            if "..." not in (row, name):
                b = int(name[2:])
                offset = scalar.scale_offset(layout, int(row), b, blocks)
                assert cell == (str(offset) if b < blocks else f"({offset})")
                seen += 1
    assert seen >= min(rows, 5) * min(blocks, 5)
    for byte, label in byte_table(text).items():
        if "." in label:
            m, b = map(int, label.split("."))
            assert scalar.scale_offset(layout, m, b, blocks) == byte
            assert m < rows
            assert b < blocks


def test_the_first_tile_whole() -> None:
    # 16 bytes hold rows i, i + 32, i + 64, i + 96; there is no fourth K-block, and no row from 40 on.
    owners = byte_table(layout_text("128x4", 40, 3))
    assert [owners[byte] for byte in range(16)] == ["0.0", "0.1", "0.2", "0", "32.0", "32.1", "32.2", "0", *"-" * 8]


def test_experts_by_hand() -> None:
    # 3, 0 and 6 rows: bases align128(0), align128(3 + 127), align128(3 + 254), capacity align128(9 + 381).
    text = layout_text("128x4", 9, 4, offsets=[0, 3, 3, 9])
    table = [line.split() for line in text.split("\n\n")[1].split("\n")[2:]]
    assert table == [
        ["0", "0", "3", "0", "0..2", "3..255"],
        ["1", "3", "0", "256", "none", "256..383"],
        ["2", "3", "6", "384", "384..389", "390..511"],
    ]
    header, lines = offset_table(text)
    assert header[:3] == ["row", "scale_row", "b=0"]
    assert [line[:3] for line in lines[2:4]] == [["2", "2", "32"], ["3", "384", "1536"]]


def test_grouped_linear_rows_are_whole_words() -> None:
    _, lines = offset_table(layout_text("linear", 2, 6, offsets=[0, 2]))
    assert [line[2] for line in lines] == ["0", "8"]


@pytest.mark.parametrize(
    ("layout", "rows", "blocks", "offsets"),
    [
        ("128x4", 2**22, 500, None),
        ("linear", 1, 2**31 - 1, None),
        ("8x4", 30000, 224, None),
        ("128x4", 300, 90, [*range(200), *range(200, 301, 4)]),
    ],
)
def test_large_layouts_stay_short(layout: str, rows: int, blocks: int, offsets: list[int] | None) -> None:
    lines = layout_text(layout, rows, blocks, offsets=offsets).split("\n")
    assert len(lines) < 80
    assert max(map(len, lines)) <= 125


def test_the_formula_can_be_evaluated() -> None:
    for layout in ("128x4", "8x4", "linear"):
        text = layout_text(layout, 300, 11)
        found = re.search(r"^offset  (.*?)    ", text, re.MULTILINE)
        assert found
        for m in (0, 7, 8, 31, 32, 127, 128, 299):
            for b in range(11):
                assert eval(found[1], {"m": m, "b": b}) == scalar.scale_offset(layout, m, b, 11)


@pytest.mark.parametrize(("rows", "blocks"), [(0, 4), (4, 0), (0, 0)])
def test_empty_layouts(rows: int, blocks: int) -> None:
    assert "buffer  0 bytes" in layout_text("128x4", rows, blocks)


def test_text_needs_no_matplotlib() -> None:
    program = (
        "import sys; from refmoe.views.layout import layout_text; layout_text('8x4', 9, 5); "
        "sys.exit(any(name.split('.')[0] in ('matplotlib', 'torch') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_png(tmp_path: Path) -> None:
    path = draw_layout("8x4", 9, 6, tmp_path / "new" / "layout.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [file.name for file in path.parent.iterdir()] == ["layout.png"]


def test_svg_is_the_same_every_time(tmp_path: Path) -> None:
    first = draw_layout("128x4", 5, 4, tmp_path / "a.svg", offsets=[0, 2, 2, 5])
    second = draw_layout("128x4", 5, 4, tmp_path / "b.SVG", offsets=[0, 2, 2, 5])
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"<?xml")
    # Text is drawn as paths, its source kept in comments: the last row, and the base of the third expert.
    assert "<!-- 4.3 -->" in first.read_text()
    assert "base row 256" in first.read_text()


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("layout", {"layout": "4x4"}),
        ("rows", {"rows": -1}),
        ("rows", {"rows": 0}),
        ("rows", {"rows": 2**31}),
        ("blocks", {"blocks": 0}),
        ("blocks", {"blocks": 1.5}),
        ("offsets", {"offsets": [0, 3]}),
        ("offsets", {"offsets": [0, 5, 4]}),
        ("offsets", {"offsets": [0, -4]}),
        ("offsets", {"offsets": [4]}),
        ("path", {"path": "layout.jpg"}),
        ("path", {"path": "layout"}),
    ],
)
def test_refusal_names_the_argument(tmp_path: Path, argument: str, change: dict) -> None:
    arguments = {"layout": "128x4", "rows": 4, "blocks": 4, "path": "layout.png"} | change
    path = tmp_path / arguments.pop("path")
    with pytest.raises(ArgumentError) as caught:
        draw_layout(**arguments, path=path)
    assert caught.value.argument == argument
    assert not list(tmp_path.iterdir())
