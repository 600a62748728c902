"""The command line: `synther VERB ...`. To keep `synther --help` fast, only the module of the verb is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

from synther.errors import Failed, SyntherError
from synther.interrupts import interrupted_by_sigterm
from synther.schema import printable

VERBS = {
    "upsample": "fit a model on replay data, write synthetic data, and compare both",
    "fit": "fit a model on replay data and save it",
    "distill": "add a student to a saved model, which generates a row in a few network calls",
    "sample": "generate synthetic data with a saved model",
    "assess": "assess whether synthetic data is good enough to train on, and show why",
    "compare": "compare several generators on the same data: diffusion, TVAE, CTGAN, noise",
    "train": "train agents offline on real or synthetic data, and evaluate them",
    "online": "train agents online, on real and synthetic data, and evaluate them",
    "evaluate": "play episodes with trained agents, in their environment or another one",
    "pixels": "train pixel agents on frames, upsample their latents, and retrain their heads",
    "collect": "play a policy, or export an online run, and save the rows or frames as a data set",
    "paper": "list and run the paper's experiments, and show the results beside the paper's",
    "inspect": "show the content of a data file, a model, a file of agents or a run",
    "presets": "list the presets and their settings",
    "doctor": "check versions, devices, rendering, memory, disk space and optional libraries",
    "completion": "print a script for Tab completion in bash, zsh or fish",
}
"""The verbs and their help. Each is a function `verb(arguments) -> None` in the module of its name, or in `models`."""

_HELP = """usage: synther COMMAND ...

Upsample replay data with a diffusion model, and train agents on it.

{verbs}

Run `synther COMMAND --help` for the options of a command, and `synther --version` for the version."""


def module_of(verb: str) -> ModuleType:
    """Import the module that implements `verb`."""
    is_in_models = verb in ("upsample", "fit", "distill", "sample", "presets")
    return import_module(f"synther.cli.{'models' if is_in_models else verb}")


@interrupted_by_sigterm()
def main(arguments: list[str] | None = None) -> int:
    """Run a verb and return its exit code: 0 if done, 1 if it failed or was interrupted, 2 for bad input."""

    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help"):
        verbs = "\n".join(f"  {verb:10} {about}" for verb, about in VERBS.items())
        print(_HELP.format(verbs=verbs))
        return 0 if given else 2
    if given[0] == "--version":
        from synther import __version__

        print(f"synther {__version__}")
        return 0
    verb, *rest = given
    if verb not in VERBS:
        near = get_close_matches(verb, VERBS, 1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(VERBS)}"
        return _failed(2, f"unknown command {verb!r}: {hint}")
    try:
        if any(word.partition("=")[0] == "--config" for word in rest):
            from synther.cli.options import ahead
            from synther.config_file import expanded

            rest = expanded(given, ahead(given, config="").config)[1:]
        with _own_modules_found(rest):
            getattr(module_of(verb), verb)(rest)
    except Failed as error:
        return _failed(1, str(error))
    except SyntherError as error:
        return _failed(2, str(error))
    except KeyboardInterrupt:
        return _failed(1, "interrupted: run the same command again; it resumes from its checkpoint if it has one")
    except SystemExit as stop:  # raised by tyro after --help and after arguments it cannot parse
        return stop.code if isinstance(stop.code, int) else 2
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes stdout once more when it exits
        return 1
    except Exception as error:
        if os.environ.get("SYNTHER_DEBUG"):
            raise
        if isinstance(error, OSError):  # not a bug: for example a full disk or a read-only folder
            return _failed(1, str(error))
        return _failed(1, f"{type(error).__name__}: {error} (a bug in SynthER; SYNTHER_DEBUG=1 shows the traceback)")
    return 0


@contextmanager
def _own_modules_found(words: list[str]) -> Iterator[None]:
    """Let modules of the current folder be imported, also by worker processes, if a word has the form `module:name`.

    `python -m synther` finds them anyway, but the installed command `synther` does not.
    """
    here = os.getcwd()
    if here in sys.path or not any(":" in word for word in words):
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _failed(code: int, text: str) -> int:
    print(f"synther: {printable(text)}", file=sys.stderr)
    return code


def entry() -> None:
    """Run the installed command `synther`, and exit with its exit code."""
    sys.exit(main())
