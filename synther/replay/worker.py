"""`python -m synther.replay.worker FOLDER` runs a refresh in the background."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

from synther.errors import SyntherError
from synther.replay.background import work

_NICENESS = 5  # lower priority than the agent


def leave_with_parent(folder: Path) -> None:
    """Exit when the parent ends: it holds the other end of this pipe."""
    os.read(0, 1)  # not sys.stdin, whose lock would block the exit of this process
    shutil.rmtree(folder, ignore_errors=True)  # the parent cannot do it any more
    os._exit(1)


def main(folder: Path) -> None:
    threading.Thread(target=leave_with_parent, args=(folder,), daemon=True).start()
    os.nice(_NICENESS)
    try:
        work(folder)
    except SyntherError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
