"""The HTML page of reports: one file, no network, no script; the verdict first, then the reason.

    text = page_text([read_source(path) for path in paths])

`sources` reads documents, `parity` and `others` make sections of them, `heatmap` and `curves` their pictures, and
refmoe/reports/html/templates lays them out.
"""

from __future__ import annotations

from refmoe.reports.html.render import MAX_BYTES, page_of, page_text
from refmoe.reports.html.sources import Source, parity_reports, read_source

__all__ = ["MAX_BYTES", "Source", "page_of", "page_text", "parity_reports", "read_source"]
