"""Converts a `Layout` to JSON for model files, and reads and checks it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

from synther.data import kinds, spaces
from synther.data.clipping import Clip
from synther.data.end_rewards import EndRewards
from synther.data.flags import Flag
from synther.data.following import Following, class_count
from synther.data.formulas import Formula
from synther.data.holding import Held
from synther.data.identities import FIELDS, Identity
from synther.data.kinds import Continuous, Derived, Drawn, Kind
from synther.data.layout import Extra, Layout
from synther.data.sparse_rewards import SparseReward
from synther.data.spheres import Sphere
from synther.data.transitions import ROW_FIELDS
from synther.data.turning import Turn
from synther.errors import FormatError
from synther.schema import checked, finite

_TYPES = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_TYPES += ("float16", "float32", "float64")
"""Types that columns of rows may have."""

_PART_LISTS = ("following", "spheres", "turns", "held", "clips", "decided", "identities")
"""Fields of `Layout` that hold tuples of objects with their own `to_json`."""


def to_json(layout: Layout) -> dict[str, Any]:
    """Return the entry of a model file from which `from_json` restores the layout. Empty parts are left out."""
    often_empty = {
        "extra": [_extra_to_json(extra) for extra in layout.extra],
        **{name: [each.to_json() for each in getattr(layout, name)] for name in _PART_LISTS},
        "terminal_reward": layout.terminal_reward,
        "at_end": None if layout.at_end is None else layout.at_end.to_json(),
        "formula": None if layout.formula is None else layout.formula.to_json(),
        "sparse": None if layout.sparse is None else layout.sparse.to_json(),
    }
    return {
        "kinds": {field: [kinds.to_json(kind) for kind in getattr(layout, field)] for field in ROW_FIELDS},
        "dtypes": list(layout.dtypes),
        "flat_action": layout.flat_action,
        "action_space": spaces.to_json(layout.action_space),
        "observation_space": spaces.to_json(layout.observation_space),
        "env_id": layout.env_id,
        "env_options": layout.env_options,
        **{name: value for name, value in often_empty.items() if value},
    }


def from_json(entry: Mapping[str, Any]) -> Layout:
    """Return the layout that an entry of a file describes. Raise an error if its parts contradict each other."""
    stored = checked(entry, _Entry, "layout")
    missing = [field for field in ROW_FIELDS if field not in stored["kinds"]]
    if missing or len(stored["dtypes"]) != len(ROW_FIELDS):
        raise FormatError(f"layout: expected kinds and types of {', '.join(ROW_FIELDS)}")
    fields = {field: tuple(map(kinds.from_json, stored["kinds"][field])) for field in ROW_FIELDS}
    width = sum(kind.source_width for kind in fields["observation"])
    found = Layout(
        **fields,  # type: ignore[arg-type]
        dtypes=tuple(map(_type, stored["dtypes"])),
        flat_action=stored["flat_action"],
        action_space=spaces.from_json(stored["action_space"]),
        observation_space=spaces.from_json(stored["observation_space"]),
        env_id=stored["env_id"],
        env_options=stored.get("env_options"),  # older files do not have it
        extra=tuple(map(_extra_from_json, stored.get("extra", ()))),
        following=_tables(stored.get("following", ()), [kind for own in fields.values() for kind in own]),
        spheres=tuple(Sphere.from_json(one, width) for one in stored.get("spheres", ())),
        turns=tuple(Turn.from_json(one, fields) for one in stored.get("turns", ())),
        held=tuple(Held.from_json(one, fields) for one in stored.get("held", ())),
        clips=tuple(Clip.from_json(one, fields) for one in stored.get("clips", ())),
        decided=tuple(Flag.from_json(one, fields) for one in stored.get("decided", ())),
        identities=tuple(Identity.from_json(one, fields) for one in stored.get("identities", ())),
        terminal_reward=finite((stored.get("terminal_reward", 0.0),), "layout.terminal_reward")[0],
        at_end=EndRewards.from_json(stored["at_end"]) if "at_end" in stored else None,
        sparse=SparseReward.from_json(stored["sparse"], fields) if "sparse" in stored else None,
    )
    derived = [(p.field, p.source.start) for p in found.places if isinstance(p.kind, Derived) and p.field in FIELDS]
    if sorted(derived) != sorted((one.field, one.column) for one in found.identities):
        raise FormatError("layout.identities: expected one for each column that is computed from others")
    if "formula" in stored:
        found = replace(found, formula=Formula.from_json(stored["formula"], found.field_widths))
    if not isinstance(found.reward[0], Continuous) and isinstance(found.reward[0], Derived) != ("formula" in stored):
        raise FormatError(
            "layout.formula: expected one if rewards are computed from the rest of a row, and none if rewards are not "
            "plain numbers"
        )
    for name in ("terminal_reward", "at_end"):
        if getattr(found, name) and not found.can_be_priced:
            raise FormatError(f"layout.{name}: expected plain numbers as rewards, and flags as terminals")
    return found


def _extra_to_json(extra: Extra) -> dict[str, Any]:
    kept = {"name": extra.name, "dtype": extra.dtype, "flat": extra.flat}
    return {**kept, "kinds": [kinds.to_json(kind) for kind in extra.kinds]}


def _extra_from_json(entry: Any) -> Extra:
    stored = checked(entry, _ExtraEntry, "an extra column")
    return Extra(stored["name"], tuple(map(kinds.from_json, stored["kinds"])), _type(stored["dtype"]), stored["flat"])


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
    held: NotRequired[list[Any]]
    terminal_reward: NotRequired[float]
    at_end: NotRequired[Any]
    clips: NotRequired[list[Any]]
    decided: NotRequired[list[Any]]
    identities: NotRequired[list[Any]]
    formula: NotRequired[Any]
    sparse: NotRequired[Any]


class _ExtraEntry(TypedDict):
    name: str
    kinds: list[Any]
    dtype: str
    flat: bool


def _tables(entries: Sequence[Any], every: Sequence[Kind]) -> tuple[Following, ...]:
    """Return the tables of outcomes, after checking that they fit the kinds of all places."""
    tables = tuple(Following.from_json(entry, len(every)) for entry in entries)
    drawn = [number for number, kind in enumerate(every) if isinstance(kind, Drawn)]
    if sorted(table.outcome for table in tables) != drawn:
        raise FormatError("layout.following: expected one table for each column of the kind Drawn")
    for table in tables:
        sizes = [class_count(every[parent]) for parent in table.parents]
        if len(table.shares[0]) != every[table.outcome].class_count or sizes != list(table.sizes):
            raise FormatError("layout.following: expected one share for each value of the columns")
    return tables


def _type(name: str) -> str:
    """Return the name of a dtype after checking it."""
    if name not in _TYPES:
        raise FormatError(f"layout: unknown type {name!r}: expected one of {', '.join(_TYPES)}")
    return name
