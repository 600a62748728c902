"""`python -m synther.replay.worker FOLDER`: the process of a refresh in the background."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

from synther.errors import SyntherError
from synther.replay.background import work

_NICENESS = 5  # the agent goes first where both want the same core


def _leave_with_parent(folder: Path) -> None:
    """The parent holds the other end of this pipe, and lets go of it in whatever way it ends."""
    os.read(0, 1)  # not sys.stdin, whose lock nobody could take when this process ends
    shutil.rmtree(folder, ignore_errors=True)  # nobody else is left to do so
    os._exit(1)


def main(folder: Path) -> None:
    threading.Thread(target=_leave_with_parent, args=(folder,), daemon=True).start()
    os.nice(_NICENESS)
    try:
        work(folder)
    except SyntherError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
