"""The tables that commands print: columns of text under bold headings, without lines."""

from __future__ import annotations

from rich.table import Table


def plain_table(*headings: str, wrap: bool = False) -> Table:
    """An empty table with a column for each heading.

    Args:
        headings: "tile" is a column of text, ">tile" one aligned to the right, "~tile" one of long text, which is
            folded where the terminal ends.
        wrap: whether the other columns may also be broken between words.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        if heading.startswith("~"):
            table.add_column(heading[1:], overflow="fold")
        else:
            right = heading.startswith(">")
            table.add_column(heading[right:], justify="right" if right else "left", no_wrap=not wrap)
    return table
