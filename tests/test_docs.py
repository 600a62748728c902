"""The documentation builds without a warning. The tutorials are not executed here: `make docs` does that."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import synther

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))


def test_it_builds_without_warnings(tmp_path):
    pytest.importorskip("sphinx")
    sphinx = "import gc, sys; gc.disable(); from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", sphinx, "-q", "-W", "--keep-going", "-b", "dummy", "-c", "docs"]
    command += ["-D", "smartquotes=0", ".", str(tmp_path)]  # quotation marks are a matter of looks
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_reference_has_every_public_name():
    text = (DOCS / "api" / "main.md").read_text()
    assert sorted(re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE)) == sorted(synther.__all__)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_are_executable_pages(page):
    text = page.read_text()
    assert text.startswith("---\nfile_format: mystnb\n")
    cells = re.findall(r"^```\{code-cell\} ipython3\n(?::tags:[^\n]*\n)?(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(cells) >= 5
    for cell in cells:
        ast.parse(cell)


def test_there_are_five_of_them():
    assert len(TUTORIALS) == 5
