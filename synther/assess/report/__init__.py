"""Write the report of an assessment as one HTML file. It needs no network, and can be read without JavaScript.

`page.py` puts the page together. Each section has its own module: `verdict`, `measures`, `columns`, `correlations`,
`diversity`, `steps` and `efforts`. They use the building blocks in `markup`, `tables`, `chart`, `axes` and `histogram`.
"""

from __future__ import annotations

import os

from synther.assess.assessment import Assessment
from synther.assess.report.page import page
from synther.durable import replacing


def write(assessment: Assessment, path: str | os.PathLike[str]) -> None:
    """Write the HTML page of `assessment` to `path`. Sections without data are left out."""
    with replacing(path) as unfinished:
        unfinished.write_text(page(assessment), encoding="utf-8")
