"""How Sphinx builds the documentation: `make docs`.

The source folder is the root of the repository: links between docs/, results/ and the files beside them work here as in
any viewer of Markdown. The tutorials are executed if SYNTHER_DOCS_EXECUTE is set.
"""

from __future__ import annotations

import os
import re
import sys

from sphinx.ext.autodoc.mock import MockFinder

import synther

project = "SynthER"
author = "the SynthER developers"
version = release = synther.__version__

root_doc = "docs/index"
include_patterns = ["docs/**", "results/**.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
# Sphinx would walk through all their files to find that none of them is included.
exclude_patterns = [".*", "build", "dist", "synther", "tests", "benchmarks"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]

html_theme = "furo"
html_title = f"SynthER {version}"
html_extra_path = ["_root"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_dark_style = "github-dark"
html_copy_source = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # README files of results begin sections at the second level

nb_execution_mode = "force" if os.environ.get("SYNTHER_DOCS_EXECUTE") else "off"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
# Their import takes many seconds. `autodoc_mock_imports` is not enough: it mocks them only while our modules are
# imported, and to look for the signature of a base class Sphinx imports them after that.
sys.meta_path.insert(0, MockFinder(["d3rlpy", "torchrl", "tensordict", "stable_baselines3"]))
default_role = "code"


def _escaped(line: str) -> str:
    """Text in single backquotes becomes code; elsewhere, what is markup of reStructuredText only becomes text."""
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(
        f"`{part}`" if at % 2 else re.sub(r"([*|]|_(?=\W|$))", r"\\\1", part) for at, part in enumerate(parts)
    )


def _as_rst(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings are written in Markdown: text in single backquotes is code, and so are indented blocks."""
    found: list[str] = []
    in_block = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not in_block and found and not found[-1].strip():
            found += [".. code-block:: python", ""]
        in_block = indented or (in_block and not line.strip())
        if line.strip() and not indented and found and found[-1].startswith("    "):
            found.append("")
        found.append(line if indented else _escaped(line))
    lines[:] = [*found, ""]


def _titled(app: object, name: str, source: list[str]) -> None:
    """Tables of results begin with the command that made them; here they get their name as a title."""
    if name.startswith("results/") and not source[0].startswith("#"):
        source[0] = f"# {name.rpartition('/')[2]}\n\n{source[0]}"


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", _as_rst)  # type: ignore[attr-defined]
    app.connect("source-read", _titled)  # type: ignore[attr-defined]
