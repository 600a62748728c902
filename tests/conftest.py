"""Property tests draw anew on every run of a developer, and the same cases on every run of a CI server."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
