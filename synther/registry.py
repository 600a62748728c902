"""Registries of objects that are chosen by name: samplers, storage formats, metrics, data sets. Packages can add more.

An object is registered by a call, or by an entry point of an installed package. A name that is read from a file can
only choose among these objects, and never imports anything else.
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
    """Objects of one `kind` (a word for error messages, such as "sampler") by name.

    An object is registered with a call:

        SAMPLERS.register("mine", Sampler(my_function))

    Or without a call, in the pyproject.toml of an installed package. Here `group` is "synther.samplers":

        [project.entry-points."synther.samplers"]
        mine = "my_package.my_module:MY_SAMPLER"
    """

    def __init__(self, kind: str, group: str, of: type[T], own: Mapping[str, T] | None = None) -> None:
        self.kind, self.group, self._of = kind, group, of
        self._known: dict[str, T] = {}
        for name, thing in (own or {}).items():
            self.register(name, thing)

    def register(self, name: str, thing: T) -> T:
        """Register `thing` as `name`, which must be new, and return it."""
        if name in self._known:
            raise ConfigError(f"{self.kind} {name!r} is registered already: choose another name, or remove() it first")
        self._known[name] = self._checked(name, thing)
        return thing

    def remove(self, name: str) -> None:
        """Remove `name` from the registry, if it is registered."""
        self._known.pop(name, None)

    def names(self) -> list[str]:
        """Return all known names: registered names in their order, then the names of installed packages."""
        return list(dict.fromkeys([*self._known, *sorted(self._installed())]))

    def __contains__(self, name: object) -> bool:
        """Return whether the name is known, without importing anything."""
        return isinstance(name, str) and (name in self._known or name in self._installed())

    def check(self, name: Any, option: str | None = None) -> None:
        """Raise an error if `name` is unknown, without importing anything.

        `option` is the name of the option in the error message. By default it is the kind.
        """
        if name not in self:
            raise ConfigError(f"{option or self.kind} must be one of {', '.join(self.names())}, got {name!r}")

    def get(self, name: str) -> T:
        """Return the object registered as `name`. An entry point is imported when it is first used."""
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
        """Yield all names and objects, in the order of `names`.

        Entry points are imported one by one during the iteration. If one cannot be loaded, a warning is logged and it
        is skipped.
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
    """Return the entry points of a group, of all packages on `path`. Cached, because reading all packages is slow."""
    return entry_points(group=group)
