"""What README.md and docs/ show works: Python blocks run, commands are understood, links lead somewhere.

Python blocks of a file run one after the other, in a folder that holds every data file they name, with presets that
take no time and at most 500 rows or steps. Commands, in console blocks and in running text, are parsed but not run.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from synther import Synthesizer, Transitions, presets, write
from synther.cli import VERBS, module_of, options
from synther.config_file import expanded

from .support.short import short_ensembles, short_learners

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES if page.is_file()}

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
TINY = {
    "network": {"width": 16, "depth": 1, "embedding": 16},
    "fit": {"steps": 20, "batch_size": 32, "evaluate_every": 10},
    "sampler": {"kind": "euler", "steps": 2, "matched": False, "restarts": 0},
}


def blocks(text: str, language: str) -> list[str]:
    return [code for found, code in FENCE.findall(text) if found == language]


def commands(text: str) -> Iterator[str]:
    """`synther VERB ...` wherever it is shown."""
    for block in blocks(text, "console"):
        yield from re.findall(r"^\$ +(synther .*)$", block, re.MULTILINE)
    running = FENCE.sub("", text)
    # A verb alone is the name of a command, not a call of it.
    named = [line.split() for line in re.findall(r"`(synther [^`]+)`", running)]
    yield from (" ".join(words) for words in named if words[1] in VERBS and len(words) > 2)
    yield from re.findall(r"^ {4}(synther .*)$", running, re.MULTILINE)


PYTHON = [name for name, text in TEXTS.items() if blocks(text, "python")]
COMMANDS = sorted({command for text in TEXTS.values() for command in commands(text)})


class AtMost500(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(500) if type(node.value) is int and node.value > 500 else node


def files_named(code: list[str], *suffixes: str) -> list[str]:
    words = [node.value for block in code for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Constant)]
    return sorted({word for word in words if isinstance(word, str) and word.endswith(suffixes)})


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in, where every preset takes no time."""
    for name, settings in presets.PRESETS.items():
        monkeypatch.setitem(presets.PRESETS, name, settings.changed(**TINY))
    short_learners(monkeypatch)
    short_ensembles(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def replay(count: int = 120) -> Transitions:
    draw = np.random.default_rng(0)
    observation = draw.normal(size=(count, 2)).astype(np.float32)
    action = draw.uniform(-1, 1, (count, 1)).astype(np.float32)
    return Transitions(
        observation,
        action,
        draw.normal(size=count).astype(np.float32),
        observation + np.float32(0.1),
        np.arange(count) % 10 == 0,
    )


def test_the_pages_are_there():
    assert "README.md" in TEXTS
    assert "README.md" in PYTHON
    assert {command.split()[1] for command in commands(TEXTS["docs/commands.md"])} == set(VERBS)


@pytest.mark.parametrize("name", PYTHON)
def test_python_blocks_run(name, desk):
    code = blocks(TEXTS[name], "python")
    for file in files_named(code, ".npz", ".hdf5", ".h5", ".parquet"):
        write(replay(), desk / file)
    loaded = files_named(code, ".safetensors")
    if loaded:
        model = Synthesizer("laptop").fit(replay(), progress=False)
        for file in loaded:
            model.save(desk / file)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(code):
        small = ast.fix_missing_locations(AtMost500().visit(ast.parse(block)))
        exec(compile(small, f"{name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, tmp_path, monkeypatch):
    _, verb, *words = shlex.split(command.partition(" > ")[0], comments=True)
    assert verb in VERBS or verb.startswith("-"), f"{verb} is no command"
    if verb not in VERBS:
        return
    monkeypatch.chdir(tmp_path)
    if "--config" in words:
        Path("run.toml").write_text(blocks(TEXTS["docs/commands.md"], "toml")[0])
        words = expanded([verb, *words], options.ahead(words, config="").config)[1:]
    module = module_of(verb)
    if verb == "pixels" and words[0] in module.ACTIONS:  # each has options of its own
        action, *words = words
        verb = f"pixels {action}"
    kind = getattr(module, verb.split()[-1].title())
    of_agents = [at for at, word in enumerate(words) if word.startswith("--agent.")]  # which the agent decides on
    words = [word for at, word in enumerate(words) if at not in of_agents and at - 1 not in of_agents]
    if {"-h", "--help", "--write-config"} & set(words):
        with pytest.raises(SystemExit) as stop:
            options.parse(verb, kind, words)
        assert stop.value.code == 0
    else:
        assert isinstance(options.parse(verb, kind, words), kind)


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name):
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", FENCE.sub("", TEXTS[name]))
    missing = [t for t in targets if "://" not in t and not ((ROOT / name).parent / t).exists()]
    assert not missing


def test_the_files_that_architecture_names_are_there_and_few():
    text = TEXTS["docs/architecture.md"]
    named = re.findall(r"`(synther/[\w/]+\.py)`", text)
    assert not [name for name in named if not (ROOT / name).is_file()]
    for walk in re.split(r"^## ", text, flags=re.MULTILINE)[2:]:
        assert len(set(re.findall(r"`(synther/[\w/]+\.py)`", walk))) <= 12
