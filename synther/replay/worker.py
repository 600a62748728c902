"""`python -m synther.replay.worker FOLDER` runs the refresh that is described in FOLDER, as a background process."""

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
    """Wait until the parent process ends, then remove `folder` and exit.

    Standard input is a pipe from the parent, so `os.read` returns when the parent ends.
    """
    os.read(0, 1)  # not sys.stdin: its lock would block the exit of this process
    shutil.rmtree(folder, ignore_errors=True)  # the parent can no longer remove it
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
