"""The worlds and laws of `benchmarks/laws.py`, made importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: its files must not hide installed modules
