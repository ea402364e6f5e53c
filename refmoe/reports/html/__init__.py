"""The HTML page of documents: one file, no network, no script; the verdict first, then the reason.

    text = page_text([read_source(path) for path in paths])

`page` reads the documents and lays out their sections with the templates beside it. Each kind of document has a module
of its name here that makes a `section` of it; `heatmap` and `curves` draw.
"""

from __future__ import annotations

from refmoe.reports.html.page import MAX_BYTES, Source, page_of, page_text, read_source

__all__ = ["MAX_BYTES", "Source", "page_of", "page_text", "read_source"]
