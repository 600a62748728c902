"""Things that are chosen by name, open to other packages: samplers, storage formats, metrics and data sets.

A name stands for what was registered under it by a call, or for an entry point of an installed package. A name read
from a file can therefore choose among these, and never imports anything else.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Generic, TypeVar

from synther.errors import ConfigError

T = TypeVar("T")
log = logging.getLogger(__name__)


class Registry(Generic[T]):
    """Things of one `kind`, such as "sampler", by name.

        SAMPLERS.register("mine", Sampler(my_function))

    Or without any call, in the pyproject.toml of an installed package, where `group` is "synther.samplers":

        [project.entry-points."synther.samplers"]
        mine = "my_package.my_module:MY_SAMPLER"
    """

    def __init__(self, kind: str, group: str, of: type[T], own: Mapping[str, T] | None = None) -> None:
        self.kind, self.group, self._of = kind, group, of
        self._known: dict[str, T] = {}
        for name, thing in (own or {}).items():
            self.register(name, thing)

    def register(self, name: str, thing: T) -> T:
        """Make `thing` known as `name`, which must be new."""
        if name in self._known:
            raise ConfigError(f"{self.kind} {name!r} is registered already: choose another name, or remove() it first")
        self._known[name] = self._checked(name, thing)
        return thing

    def remove(self, name: str) -> None:
        """Forget what was registered as `name`."""
        self._known.pop(name, None)

    def names(self) -> list[str]:
        """All known names: registered ones in their order, then those of installed packages."""
        return list(dict.fromkeys([*self._known, *sorted(self._installed())]))

    def __contains__(self, name: object) -> bool:
        """Whether the name is known, without importing anything."""
        return isinstance(name, str) and (name in self._known or name in self._installed())

    def check(self, name: Any, option: str | None = None) -> None:
        """Refuse an unknown name, without importing anything; `option` is where the name comes from."""
        if name not in self:
            raise ConfigError(f"{option or self.kind} must be one of {', '.join(self.names())}, got {name!r}")

    def get(self, name: str) -> T:
        """What `name` stands for. An entry point is imported when it is first asked for."""
        self.check(name)
        if name not in self._known:
            entry = self._installed()[name]
            try:
                thing = entry.load()
            except Exception as error:
                raise ConfigError(f"{self.kind} {name!r} cannot be loaded from {entry.value} ({error!r})") from error
            self._known[name] = self._checked(name, thing)
        return self._known[name]

    def items(self) -> Iterator[tuple[str, T]]:
        """Everything, in the order of `names`: whoever stops early imports no more than was needed.

        An entry point that cannot be loaded is logged and left out.
        """
        yield from list(self._known.items())
        for name in self.names():
            if name not in self._known:
                try:
                    thing = self.get(name)
                except ConfigError as error:
                    log.warning("%s", error)
                    continue
                yield name, thing

    def _installed(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in _entry_points(self.group, tuple(sys.path))}

    def _checked(self, name: str, thing: Any) -> T:
        if not isinstance(thing, self._of):
            raise ConfigError(f"{self.kind} {name!r} must be a {self._of.__name__}, got {thing!r}")
        return thing


@lru_cache(maxsize=64)
def _entry_points(group: str, path: tuple[str, ...]) -> EntryPoints:
    """Those of all packages on the `path`. Names are asked for often, and reading the files of all packages is slow."""
    return entry_points(group=group)
