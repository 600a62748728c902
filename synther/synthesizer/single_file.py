"""Write generated rows to a single file of any format and size, in constant memory."""

from __future__ import annotations

import logging
from pathlib import Path

from synther import formats
from synther.data.transitions import Transitions
from synther.durable import partial_folder
from synther.folder import only_writer
from synther.progress import Progress
from synther.synthesizer.picking import Picking
from synther.synthesizer.shards import Dress
from synther.synthesizer.spool import Spool, Unspooled

log = logging.getLogger(__name__)

SPOOLED_BLOCKS = 16
"""Number of blocks that are saved together. After an interruption, fewer blocks than these are generated again."""
PREVIEW_ROWS = 100_000
"""Maximum number of rows that a call returns as a preview."""


def write_file(final: Path, count: int, seed: int, picking: Picking, dress: Dress, progress: Progress) -> Transitions:
    """Collect the rows in a folder next to `final`, then write them to `final`. Return the first rows.

    If the folder has rows from an interrupted call, continue after them.
    """
    with only_writer(partial_folder(final)):
        spool = Spool(partial_folder(final), picking.identity(count, seed))
        _gather(spool, count, seed, picking, progress)
        with progress.phase("write", count) as phase:
            rows = Unspooled(spool, dress, phase.advance, keep=PREVIEW_ROWS)
            formats.write(rows, final)
        spool.remove()
        return rows.first()


def _gather(spool: Spool, count: int, seed: int, picking: Picking, progress: Progress) -> None:
    if spool.count:
        log.info("continuing after %d rows in %s", len(spool), spool.folder)
    gathered: list[Transitions] = []
    with progress.phase("sample", count, len(spool)) as phase:
        for block in picking.blocks(count, seed, spool.count * SPOOLED_BLOCKS, len(spool)):
            gathered.append(block)
            phase.advance(len(block))
            if len(gathered) == SPOOLED_BLOCKS:
                spool.append(Transitions.concatenate(gathered))
                gathered = []
    if gathered:
        spool.append(Transitions.concatenate(gathered))
