"""The command line: `synther VERB ...`. The file of a verb is imported when it is used, so that help is fast."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from synther.errors import Failed, SyntherError
from synther.interrupts import interrupted_by_sigterm
from synther.schema import printable

VERBS = {
    "upsample": "fit a model on replay data, write synthetic data, compare the two",
    "fit": "fit a model on replay data and save it",
    "distill": "teach a saved model to draw a row in a few network calls",
    "sample": "write synthetic data with a saved model",
    "assess": "assess whether synthetic data is good enough to train on, and show why",
    "compare": "compare several generators on the same data: diffusion, TVAE, CTGAN, noise",
    "train": "train agents offline on real or synthetic data, and evaluate them",
    "online": "train agents online, on real and synthetic data, and evaluate them",
    "evaluate": "play episodes with trained agents, in their environment or another",
    "pixels": "pixel agents: train them on frames, upsample their latents, retrain their heads",
    "collect": "write experience as a data set, rows or frames: episodes of a policy, or of an online run",
    "paper": "the paper's experiments: list them, run them, show their tables beside the paper's figures",
    "inspect": "show what is in a file of data, a model, agents or a run",
    "presets": "list the presets and what they choose",
    "doctor": "show versions, device, renderers, memory and disk, and how to install what is missing",
    "completion": "print a script for the Tab key, for bash, zsh or fish",
}
"""Each verb is a function `verb(arguments) -> None` in the module of the same name, or in `models`."""

_HELP = """usage: synther COMMAND ...

Upsample replay data with a diffusion model, and train agents on it.

{verbs}

synther COMMAND --help shows the options of a command; synther --version the version."""

_OF_MODELS = ("upsample", "fit", "distill", "sample", "presets")


def module_of(verb: str) -> ModuleType:
    return import_module(f"synther.cli.{'models' if verb in _OF_MODELS else verb}")


@interrupted_by_sigterm()
def main(arguments: list[str] | None = None) -> int:
    """Run a verb and return the exit code: 0 done, 1 failed, interrupted or could not write, 2 bad input."""
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
        print(f"synther: unknown command {verb!r}: expected one of {', '.join(VERBS)}", file=sys.stderr)
        return 2
    try:
        if any(word.partition("=")[0] == "--config" for word in rest):
            from synther.cli.options import ahead
            from synther.config_file import expanded

            rest = expanded(given, ahead(given, config="").config)[1:]
        getattr(module_of(verb), verb)(rest)
    except Failed as error:
        return _failed(1, str(error))
    except SyntherError as error:
        return _failed(2, str(error))
    except KeyboardInterrupt:
        return _failed(1, "interrupted; the same command resumes from what was saved, or starts again")
    except SystemExit as stop:  # raised by tyro after --help and after arguments it cannot parse
        return stop.code if isinstance(stop.code, int) else 2
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes it once more on its way out
        return 1
    except Exception as error:
        if os.environ.get("SYNTHER_DEBUG"):
            raise
        if isinstance(error, OSError):  # a full disk, a read-only folder: not a bug
            return _failed(1, str(error))
        return _failed(1, f"{type(error).__name__}: {error} (a bug in SynthER; SYNTHER_DEBUG=1 shows the traceback)")
    return 0


def _failed(code: int, text: str) -> int:
    print(f"synther: {printable(text)}", file=sys.stderr)
    return code


def entry() -> None:
    """The installed command."""
    sys.exit(main())
