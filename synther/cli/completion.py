"""The command `synther completion SHELL`."""

from __future__ import annotations

import io
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

import tyro

from synther.cli import VERBS, module_of, options, pixels
from synther.cli.answer import answer


@dataclass(frozen=True)
class Completion(options.Output):
    """Print a shell script. With it, the Tab key completes the commands and options of `synther`.

    - bash: `synther completion bash > ~/.local/share/bash-completion/completions/synther`
    - zsh: `synther completion zsh > DIR/_synther`, where DIR is in $fpath
    - fish: `synther completion fish > ~/.config/fish/completions/synther.fish`
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]] = tyro.MISSING
    """bash, zsh or fish."""


def completion(arguments: list[str]) -> None:
    chosen = options.parse("completion", Completion, arguments)
    kinds = {verb: getattr(module_of(verb), verb.title()) for verb in VERBS}
    kinds["pixels"] = _one_of({action: getattr(pixels, action.title()) for action in pixels.ACTIONS})
    script = io.StringIO()
    words = ["--tyro-write-completion", chosen.shell, "-"]
    with redirect_stdout(script), suppress(SystemExit):
        tyro.cli(_one_of(kinds), prog="synther", args=words, registry=options.REGISTRY)
    if chosen.json:
        answer(True, {"shell": chosen.shell, "script": script.getvalue()}, [])
    else:
        print(script.getvalue(), end="")


def _one_of(kinds: dict[str, Any]) -> Any:
    """Combine several commands into one type, in which each command is a subcommand."""
    return Union[tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in kinds.items())]  # noqa: UP007
