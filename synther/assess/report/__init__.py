"""The report of an assessment: one HTML file that needs nothing else, neither a network nor a script to be read."""

from __future__ import annotations

import os

from synther.assess.assessment import Assessment
from synther.assess.report.page import page
from synther.durable import replacing


def write(assessment: Assessment, path: str | os.PathLike[str]) -> None:
    """Write the page that shows `assessment`; parts that it does not have are left out."""
    with replacing(path) as unfinished:
        unfinished.write_text(page(assessment), encoding="utf-8")
