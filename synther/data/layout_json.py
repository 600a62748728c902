"""Layouts in model files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

from synther.data import kinds, spaces
from synther.data.clipping import Clip
from synther.data.end_rewards import EndRewards
from synther.data.flags import Flag
from synther.data.following import Following, class_count
from synther.data.identities import Identity
from synther.data.kinds import Continuous, Derived, Drawn, Kind
from synther.data.layout import Extra, Layout
from synther.data.rewards import Formula
from synther.data.spheres import Sphere
from synther.data.transitions import PAIR, ROW_FIELDS
from synther.data.turning import Turn
from synther.errors import FormatError
from synther.schema import checked, finite

_TYPES = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_TYPES += ("float16", "float32", "float64")
"""Those of rows."""

_FOUND = ("following", "spheres", "turns", "clips", "decided", "identities")
"""Lists of what was found out about columns."""


def to_json(layout: Layout) -> dict[str, Any]:
    """What `from_json` makes the same layout of."""
    often_empty = {
        "extra": [_extra_to_json(extra) for extra in layout.extra],
        **{name: [each.to_json() for each in getattr(layout, name)] for name in _FOUND},
        "terminal_reward": layout.terminal_reward,
        "at_end": None if layout.at_end is None else layout.at_end.to_json(),
        "formula": None if layout.formula is None else layout.formula.to_json(),
    }
    return {
        "kinds": {field: [kinds.to_json(kind) for kind in getattr(layout, field)] for field in ROW_FIELDS},
        "dtypes": list(layout.dtypes),
        "flat_action": layout.flat_action,
        "action_space": spaces.to_json(layout.action_space),
        "observation_space": spaces.to_json(layout.observation_space),
        "env_id": layout.env_id,
        "env_options": layout.env_options,
        **{name: told for name, told in often_empty.items() if told},
    }


def from_json(entry: Mapping[str, Any]) -> Layout:
    """The layout that an entry of a file describes. What does not fit together is refused."""
    told = checked(entry, _Entry, "layout")
    missing = [field for field in ROW_FIELDS if field not in told["kinds"]]
    if missing or len(told["dtypes"]) != len(ROW_FIELDS):
        raise FormatError(f"layout: expected kinds and types of {', '.join(ROW_FIELDS)}")
    fields = {field: tuple(map(kinds.from_json, told["kinds"][field])) for field in ROW_FIELDS}
    width = sum(kind.source_width for kind in fields["observation"])
    found = Layout(
        **fields,  # type: ignore[arg-type]
        dtypes=tuple(map(_type, told["dtypes"])),
        flat_action=told["flat_action"],
        action_space=spaces.from_json(told["action_space"]),
        observation_space=spaces.from_json(told["observation_space"]),
        env_id=told["env_id"],
        env_options=told.get("env_options"),  # which earlier files have not
        extra=tuple(map(_extra_from_json, told.get("extra", ()))),
        following=_tables(told.get("following", ()), [kind for own in fields.values() for kind in own]),
        spheres=tuple(Sphere.from_json(one, width) for one in told.get("spheres", ())),
        turns=tuple(Turn.from_json(one, fields) for one in told.get("turns", ())),
        clips=tuple(Clip.from_json(one, fields) for one in told.get("clips", ())),
        decided=tuple(Flag.from_json(one, fields) for one in told.get("decided", ())),
        identities=tuple(Identity.from_json(one, fields) for one in told.get("identities", ())),
        terminal_reward=finite((told.get("terminal_reward", 0.0),), "layout.terminal_reward")[0],
        at_end=EndRewards.from_json(told["at_end"]) if "at_end" in told else None,
    )
    derived = [(p.field, p.source.start) for p in found.places if isinstance(p.kind, Derived) and p.field in PAIR]
    if sorted(derived) != sorted((one.field, one.column) for one in found.identities):
        raise FormatError("layout.identities: expected one for each column that follows from others")
    if "formula" in told:
        found = replace(found, formula=Formula.from_json(told["formula"], found.field_widths))
    if not isinstance(found.reward[0], Continuous) and isinstance(found.reward[0], Derived) != ("formula" in told):
        raise FormatError("layout.formula: expected one if rewards follow from the rest, and only if they are numbers")
    for name in ("terminal_reward", "at_end"):
        if getattr(found, name) and not found.can_be_priced:
            raise FormatError(f"layout.{name}: expected rewards that are numbers, and terminals that are flags")
    return found


def _extra_to_json(extra: Extra) -> dict[str, Any]:
    kept = {"name": extra.name, "dtype": extra.dtype, "flat": extra.flat}
    return {**kept, "kinds": [kinds.to_json(kind) for kind in extra.kinds]}


def _extra_from_json(entry: Any) -> Extra:
    told = checked(entry, _ExtraEntry, "an extra column")
    return Extra(told["name"], tuple(map(kinds.from_json, told["kinds"])), _type(told["dtype"]), told["flat"])


class _Entry(TypedDict):
    kinds: dict[str, list[Any]]
    dtypes: tuple[str, ...]
    flat_action: bool
    action_space: Any
    observation_space: Any
    env_id: str | None
    env_options: NotRequired[dict[str, Any] | None]
    extra: NotRequired[list[Any]]
    following: NotRequired[list[Any]]
    spheres: NotRequired[list[Any]]
    turns: NotRequired[list[Any]]
    terminal_reward: NotRequired[float]
    at_end: NotRequired[Any]
    clips: NotRequired[list[Any]]
    decided: NotRequired[list[Any]]
    identities: NotRequired[list[Any]]
    formula: NotRequired[Any]


class _ExtraEntry(TypedDict):
    name: str
    kinds: list[Any]
    dtype: str
    flat: bool


def _tables(entries: Sequence[Any], every: Sequence[Kind]) -> tuple[Following, ...]:
    tables = tuple(Following.from_json(entry, len(every)) for entry in entries)
    drawn = [number for number, kind in enumerate(every) if isinstance(kind, Drawn)]
    if sorted(table.outcome for table in tables) != drawn:
        raise FormatError("layout.following: expected a table for each column that is drawn from one")
    for table in tables:
        sizes = [class_count(every[parent]) for parent in table.parents]
        if len(table.shares[0]) != every[table.outcome].class_count or sizes != list(table.sizes):
            raise FormatError("layout.following: expected a share of each value that the columns have")
    return tables


def _type(name: str) -> str:
    """The name of a type of numbers."""
    if name not in _TYPES:
        raise FormatError(f"layout: unknown type {name!r}: expected one of {', '.join(_TYPES)}")
    return name
