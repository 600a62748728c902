"""Strategies that damage a file in ways its own format allows: members, types, shapes, attributes, values of JSON."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

Draw = Callable[[st.SearchStrategy[Any]], Any]
Damage = Callable[[Path, Draw], None]

_ODD = [
    "inf",
    "-inf",
    "",
    "module:Env-v0",
    "\x1b[2J\n",
    "../../etc/passwd",
    "float64",
    "O",
    "box",
    "onehot",
    "residual",
]
_NUMBERS = [0, 1, -1, 2, 10**6, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e300, float("inf"), float("nan")]
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from(_NUMBERS) | st.sampled_from(_ODD) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
DTYPES = st.sampled_from(["f4", "f8", "f2", "i8", "i1", "u2", "?", "c8", "S3", "<U2", "M8[s]", ">f4"])
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 30, 31]), max_size=3).map(tuple)


def array(draw: Draw) -> Any:
    kind = np.dtype(draw(DTYPES))
    shape = draw(SHAPES)
    raw = draw(st.sampled_from([b"\x00", b"\x01", b"\xff", b"\x7f\x80", b"ab"]))
    count = int(np.prod(shape)) * kind.itemsize
    return np.frombuffer((raw * (count // len(raw) + 1))[:count], kind).reshape(shape)


def damaged_bytes(path: Path, draw: Draw) -> None:
    """Bits flipped, bytes removed or repeated, the end cut off."""
    content = bytearray(path.read_bytes())
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        how = draw(st.sampled_from(["flip", "cut", "remove", "repeat", "fill"]))
        if how == "flip" and content:
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del content[place:]
        elif how == "remove":
            del content[place : place + draw(st.integers(1, 64))]
        elif how == "repeat":
            content[place:place] = content[place : place + 64]
        else:
            content[place : place + 8] = b"\xff" * len(content[place : place + 8])
    path.write_bytes(bytes(content))


def damaged_json(value: Any, draw: Draw) -> Any:
    """`value` with something in it replaced, removed or added."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value)))
        how = draw(st.sampled_from(["inside"] * 6 + ["remove", "add"]))
        if how == "remove":
            return {name: one for name, one in value.items() if name != key}
        if how == "add":
            return {**value, draw(st.text(max_size=5)): draw(VALUES)}
        return {**value, key: damaged_json(value[key], draw)}
    if isinstance(value, list) and value and draw(st.integers(0, 9)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], damaged_json(value[place], draw), *value[place + 1 :]]
    return draw(VALUES)


def json_file(name: str) -> Damage:
    """Of a folder."""

    def damage(path: Path, draw: Draw) -> None:
        place = path / name
        told = json.loads(place.read_text())
        if draw(st.integers(0, 4)) == 0:
            damaged_bytes(place, draw)
        else:
            place.write_text(json.dumps(_with_inner_json(told, draw)))

    return damage


def _with_inner_json(told: Any, draw: Draw) -> Any:
    """Some values are JSON themselves, such as the spaces of Minari."""
    inner = [key for key, one in told.items() if isinstance(one, str) and one.startswith("{")]
    if inner and draw(st.booleans()):
        key = draw(st.sampled_from(inner))
        return {**told, key: json.dumps(damaged_json(json.loads(told[key]), draw))}
    return damaged_json(told, draw)


def npz(path: Path, draw: Draw) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw(st.sampled_from(sorted(members)))
    how = draw(st.sampled_from(["array", "drop", "rename", "bytes", "text"]))
    content = members.pop(name)
    if how == "array":
        with zipfile.ZipFile(path, "w") as archive:
            for other, kept in members.items():
                archive.writestr(other, kept)
            with archive.open(name, "w") as member:
                np.lib.format.write_array(member, array(draw), allow_pickle=False)
        return
    if how == "rename":
        members[draw(st.sampled_from(["done.npy", "extra/x.npy", "episode_lengths.npy", "x", "infos/a.npy"]))] = content
    elif how == "bytes":
        own = bytearray(content)
        own[draw(st.integers(0, min(len(own) - 1, 130)))] ^= 1 << draw(st.integers(0, 7))  # mostly of its header
        members[name] = bytes(own)
    elif how == "text":
        members[name] = json.dumps(draw(VALUES)).encode()
    with zipfile.ZipFile(path, "w", draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))) as archive:
        for other, kept in members.items():
            archive.writestr(other, kept)


def hdf5(path: Path, draw: Draw) -> None:
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, thing: names.append(name) if isinstance(thing, h5py.Dataset) else None)
        name = draw(st.sampled_from(sorted(names)))
        how = draw(st.sampled_from(["array", "drop", "group", "attribute", "text", "hollow"]))
        if how == "attribute":
            keys = [*file.attrs, "env_id", "low", "action_repeat", "synther_metadata"]
            key, told = draw(st.sampled_from(keys)), draw(VALUES)
            old = file.attrs.get(key)
            if isinstance(old, str) and old.startswith("{"):
                file.attrs[key] = json.dumps(damaged_json(json.loads(old), draw))
            else:
                try:
                    file.attrs[key] = told if isinstance(told, (int, float, bool)) else json.dumps(told)
                except (OverflowError, TypeError):  # a number that HDF5 has no type for
                    file.attrs[key] = array(draw).astype("f4", casting="unsafe") if draw(st.booleans()) else "x"
            return
        del file[name]
        if how == "array":
            made = array(draw)
            is_text = made.dtype.kind in "UM"
            file[name] = np.char.encode(made.astype(str), "utf-8", "replace") if is_text else made
        elif how == "group":
            file.create_group(f"{name}/inner")
        elif how == "text":
            file.create_dataset(name, data=["a", "b"], dtype=h5py.string_dtype())
        elif how == "hollow":
            rows = draw(st.sampled_from([31, 10**6, 2**40]))
            file.create_dataset(name, (rows, 2), "f4", chunks=(31, 2), maxshape=(None, 2))


def parquet(path: Path, draw: Draw) -> None:
    table = pyarrow.parquet.read_table(path)
    name, rows = draw(st.sampled_from(table.column_names)), len(table)
    how = draw(st.sampled_from(["type", "drop", "rename", "metadata", "nulls"]))
    place = table.column_names.index(name)
    if how == "type":
        kinds = [["a"] * rows, [[1.0]] * rows, [[[1]]] * rows, [{"a": 1}] * rows, [b"x"] * rows, [True] * rows]
        kinds += [[[float(row)] * (row % 3) for row in range(rows)], [2**62] * rows]
        table = table.set_column(place, name, pyarrow.array(draw(st.sampled_from(kinds))))
    elif how == "nulls":
        table = table.set_column(place, name, pyarrow.array([None] * rows, pyarrow.float32()))
    elif how == "drop":
        table = table.remove_column(place)
    elif how == "rename":
        names = [*table.column_names]
        names[place] = draw(st.sampled_from(["done", "extra/x", "__index_level_0__", "x", *names]))
        table = table.rename_columns(names)
    else:
        told = json.loads(table.schema.metadata[b"synther_metadata"])
        table = table.replace_schema_metadata({"synther_metadata": json.dumps(damaged_json(told, draw))})
    pyarrow.parquet.write_table(table, path)


def safetensors(path: Path, draw: Draw) -> None:
    with safe_open(path, "pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(sorted(tensors)))
        how = draw(st.sampled_from(["drop", "rename", "cut", "double", "nan", "whole"]))
        tensor = tensors.pop(name)
        changed = {
            "rename": lambda: {f"{name}.more": tensor},
            "cut": lambda: {name: tensor[: len(tensor) // 2].contiguous() if tensor.dim() else tensor},
            "double": lambda: {name: tensor.double()},
            "nan": lambda: {name: tensor * float("nan")},
            "whole": lambda: {name: tensor.long()},
        }
        tensors |= changed[how]() if how != "drop" else {}
    else:
        key = draw(st.sampled_from(sorted(metadata)))
        try:
            told = json.loads(metadata[key])
        except ValueError:
            metadata[key] = draw(st.text(max_size=5))
        else:
            metadata[key] = json.dumps(damaged_json(told, draw))
    save_file(tensors, path, metadata)
