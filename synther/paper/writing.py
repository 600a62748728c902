"""An experiment's table as files: Markdown for people, JSON for machines, pictures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from synther.durable import replacing
from synther.folder import write_object
from synther.paper.drawing import draw
from synther.paper.findings import Finding
from synther.paper.tables import Table
from synther.plots import markdown

_PEAKS = "The highest mean of an evaluation, and when: what stopping in time, by hindsight, would have given."


def write(table: Table, out: Path, origin: dict[str, str]) -> list[Path]:
    """`NAME.md`, `NAME.json` and the pictures into `out`; returns what was written."""
    full = {**origin, **_trained(table.found.values())}
    name = table.experiment.name
    write_object(out / f"{name}.json", table.to_json(full))
    with replacing(out / f"{name}.md") as beside:
        beside.write_text(markdown_of(table, full))
    return [out / f"{name}.md", out / f"{name}.json", *draw(table, out)]


def markdown_of(table: Table, origin: dict[str, str]) -> str:
    notes = [f"- {note}" for note in table.notes()]
    title = f"# {table.experiment.label or table.experiment.name}: {table.experiment.about}"
    peaks = table.peaks()
    below = [*markdown.table(peaks), "", _PEAKS, ""] if peaks else []
    return "\n".join([title, "", *markdown.head(origin), "", *markdown.table(table.lines()), "", *notes, "", *below])


def _trained(found: Iterable[Finding]) -> dict[str, str]:
    """With which commands, by which version, on which machines, one a line."""
    facts: dict[str, dict[str, None]] = {"trained by": {}, "trained with": {}, "trained on": {}}
    for finding in found:
        origin = {} if finding.result is None else finding.result.origin
        told = (finding.facts.get("command"), origin.get("synther"), origin.get("machine"))
        for seen, text in zip(facts.values(), told, strict=True):
            if text:
                seen[text] = None
    return {name: "\n".join(seen) for name, seen in facts.items() if seen}
