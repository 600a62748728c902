"""Minari data sets, the standard format for episodes of Gymnasium environments. They are found by installed id or
folder.

Observations of structured spaces are flattened as Gymnasium does it. Only rows that form episodes can be written.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from synther import gym_specs
from synther.data import gym_spaces
from synther.data.transitions import Array, RowSource, Transitions
from synther.durable import replacing
from synther.errors import DataError, FormatError, MissingExtra
from synther.formats import is_minari_id, metadata
from synther.formats.episodes import episodes
from synther.formats.hdf5 import check_numbers, opened
from synther.formats.minari_arrow import STEPS, ArrowColumn, ArrowEpisodes
from synther.formats.reading import reading
from synther.formats.writing import Stream
from synther.schema import check_size, parse
from synther.schema import read as read_json

_ONE_HOT = 5_000
"""A data set may take this many times its own size in memory.

The number is large because a discrete state is one number in the file, but becomes a one-hot vector in memory.
"""


def read(source: str | os.PathLike[str]) -> Transitions:
    _minari("reading a Minari data set")
    folder = _folder_to_read(source)
    with reading(source, "a Minari data set"), quietly():
        dataset = Stored(folder)
        fields = _fields(dataset)
        known = metadata.load(dataset.about.get(metadata.KEY))
        if not known:
            known = {
                "action_space": gym_spaces.believed(gym_spaces.action_space(dataset.action_space), fields["action"]),
                "observation_space": gym_spaces.observation_space(dataset.observation_space),
                "env_id": dataset.env_id,
                "env_options": None if dataset.env_spec is None else gym_specs.options_of(dataset.env_spec),
            }
        return Transitions.of(fields, **known)


class _About(TypedDict):
    """The entries of `metadata.json` that are used here."""

    data_format: Literal["hdf5", "arrow", "parquet"]
    observation_space: str
    action_space: str
    total_episodes: int
    total_steps: int
    jpeg_encoding: NotRequired[bool]
    env_spec: NotRequired[str | None]
    synther_metadata: NotRequired[str]


class _EnvSpec(TypedDict):
    """The entries of `env_spec` that are used here."""

    id: str
    kwargs: NotRequired[dict[str, Any]]
    max_episode_steps: NotRequired[int | None]


@dataclass(frozen=True)
class Recorded:
    """An episode of a data set. It has one observation more than steps."""

    number: int
    observations: Any
    actions: Any
    rewards: Array
    terminations: Array
    truncations: Array


class Stored:
    """A data set in a folder.

    It is not read with Minari's own reader: if a space is missing, that reader imports the code named in `env_spec`.
    """

    def __init__(self, folder: Path) -> None:
        _minari("reading a Minari data set")
        from minari.serialization import deserialize_space

        self.about = read_json(folder / "metadata.json", _About)
        self.observation_space = deserialize_space(self.about["observation_space"])
        self.action_space = deserialize_space(self.about["action_space"])
        self.steps, self.episodes = self.about["total_steps"], self.about["total_episodes"]
        self.env_spec = _env_spec_of(self.about.get("env_spec"))
        form = self.about["data_format"]
        self._data: _Hdf5Episodes | ArrowEpisodes
        self._data = _Hdf5Episodes(folder) if form == "hdf5" else ArrowEpisodes(folder, form)
        if not 0 < self.episodes <= min(self._data.count, self.steps):
            raise DataError(
                f"metadata.json declares {self.steps:,} steps in {self.episodes:,} episodes, found "
                f"{self._data.count:,} episodes: expected at least one episode, with at least one step in each"
            )

    @property
    def size(self) -> int:
        """Size of the stored episodes in bytes."""
        return self._data.size

    @property
    def env_id(self) -> str | None:
        return None if self.env_spec is None else str(self.env_spec.id)

    def recorded(self) -> Iterator[Recorded]:
        """Yield the episodes one at a time. Other data that is stored with them is not read."""
        episodes: Iterator[Mapping[str, _Hdf5Column | ArrowColumn]] = self._data.read(self.episodes)
        for number, columns in enumerate(episodes):
            seen = self._decoded(columns["observations"], self.observation_space)
            done = self._decoded(columns["actions"], self.action_space)
            names = ("rewards", "terminations", "truncations")
            yield Recorded(number, seen, done, *(columns[name].numbers(()).reshape(-1) for name in names))

    def _decoded(self, stored: _Hdf5Column | ArrowColumn, space: Any) -> Any:
        """Read the values of a space: an array, or for Dict and Tuple spaces a dict or tuple of arrays."""
        gym = gym_spaces.gymnasium_spaces()
        if isinstance(space, gym.Dict):
            return {key: self._decoded(stored.inner(key), inner) for key, inner in space.spaces.items()}
        if isinstance(space, gym.Tuple):
            return tuple(self._decoded(stored.inner(key), inner) for key, inner in enumerate(space.spaces))
        jpegs = stored.jpegs() if self._may_hold_jpegs(space) else None
        return stored.numbers(space.shape or ()) if jpegs is None else self._images(jpegs, space.shape)

    def _may_hold_jpegs(self, space: Any) -> bool:
        from minari.dataset.minari_storage import is_image_space

        return bool(self.about.get("jpeg_encoding", True) and is_image_space(space))

    def _images(self, stored: Sequence[bytes], shape: Sequence[int]) -> Array:
        """Decode JPEG images into an array of shape (N, *shape)."""
        from PIL import Image

        check_size(len(stored) * int(np.prod(shape)), self.size)
        images = np.empty((len(stored), *shape), np.uint8)
        for place in range(len(stored)):
            with Image.open(io.BytesIO(stored[place]), formats=("JPEG",)) as image:
                if (image.height, image.width) != tuple(shape[:2]):
                    raise DataError(f"an image has {image.height} x {image.width} pixels: expected {shape}")
                images[place] = np.asarray(image, np.uint8).reshape(shape)
        return images


class _Hdf5Episodes:
    """The episodes of a data set that is stored as HDF5, which is Minari's default."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "main_data.hdf5"
        with opened(self._path) as file:
            self.count = len(file)

    @property
    def size(self) -> int:
        return os.path.getsize(self._path)

    def read(self, count: int) -> Iterator[dict[str, _Hdf5Column]]:
        """Yield the columns of the first `count` episodes, one episode at a time."""
        with opened(self._path) as file:
            for number in range(count):
                group = file[f"episode_{number}"]
                yield {name: _Hdf5Column(self._path, group[name]) for name in STEPS}


class _Hdf5Column:
    """The stored values of a space, for one episode."""

    def __init__(self, path: Path, stored: Any) -> None:
        self._path, self._stored = path, stored

    def inner(self, key: str | int) -> _Hdf5Column:
        """Return the values of one part of a Dict or Tuple space."""
        return _Hdf5Column(self._path, self._stored[key if isinstance(key, str) else f"_index_{key}"])

    def numbers(self, shape: Sequence[int]) -> Array:
        """Return the values as an array. `shape` is not needed here, because HDF5 stores it."""
        check_numbers(self._path, [self._stored])
        return np.asarray(self._stored[()])

    def jpegs(self) -> Sequence[bytes] | None:
        """Return the values as JPEG files, or None if they are stored as numbers."""
        return self._stored if self._stored.dtype.kind == "O" else None


def _env_spec_of(text: str | None) -> Any:
    """Return the environment that a data set names. Its `entry_point` and wrappers are left out: they name code."""
    if text is None:
        return None
    from gymnasium.envs.registration import EnvSpec

    given = parse(text, _EnvSpec, "env_spec")
    limit = given.get("max_episode_steps")
    return EnvSpec(given["id"], None, max_episode_steps=limit, kwargs=given.get("kwargs", {}))


def _fields(dataset: Stored) -> dict[str, Array]:
    """Read all episodes into arrays, one for each field of the rows."""
    space, steps = dataset.observation_space, dataset.steps
    flat = (steps, gym_spaces.width(space)), gym_spaces.dtype(space)
    # One-hot vectors of discrete spaces are much larger than what is stored.
    check_size(2 * steps * flat[0][1] * flat[1].itemsize, dataset.size, times=_ONE_HOT)
    fields = {
        "observation": np.empty(*flat),
        "next_observation": np.empty(*flat),
        "terminal": np.empty(steps, bool),
        "timeout": np.empty(steps, bool),
    }
    start = 0
    for episode in dataset.recorded():
        rows = slice(start, start + len(episode.rewards))
        if rows.stop > steps:
            break
        observation = gym_spaces.flatten(space, episode.observations, len(episode.rewards) + 1)
        fields["observation"][rows], fields["next_observation"][rows] = observation[:-1], observation[1:]
        fields["terminal"][rows], fields["timeout"][rows] = episode.terminations, episode.truncations
        for name, values in (
            ("action", gym_spaces.actions(dataset.action_space, episode.actions)),
            ("reward", episode.rewards),
        ):
            if name not in fields:
                fields[name] = np.empty((steps, *values.shape[1:]), values.dtype)
            fields[name][rows] = values
        start = rows.stop
    if start != steps:
        raise FormatError(
            f"metadata.json declares {steps:,} steps, but the episodes have another number of steps: download it again"
        )
    return fields


def write(rows: RowSource, target: str | os.PathLike[str]) -> None:
    """Write rows to a new id (a string such as "name/task-v0") or to a folder.

    This uses Minari's storage directly. `create_dataset_from_buffers` would need all episodes in memory, create the
    environment only to read its spaces, and write under the final name before the data set is complete.
    """
    _minari("writing a Minari data set")
    folder, dataset_id = place_to_write(target)
    stream = Stream(rows)
    stream.first.refuse_extra("a Minari data set")
    with replacing(folder) as path, quietly():
        path.mkdir()
        _write_data(path.absolute() / "data", dataset_id, stream)  # Minari cannot handle relative paths
    _register_namespace(dataset_id)


def _write_data(data: Path, dataset_id: str, stream: Stream) -> None:
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    first = stream.first
    storage = MinariStorage.new(
        data,
        observation_space=gym_spaces.flat_box(
            first.observation_space, first.observation.shape[1], first.observation.dtype
        ),
        action_space=_action_space(stream),
    )
    described = {
        "dataset_id": dataset_id,
        "minari_version": minari.__version__,
        "description": "Written by SynthER",
        metadata.KEY: stream.metadata,
    }
    spec = _env_spec(stream)
    storage.update_metadata({**described, "env_spec": spec} if spec else described)
    storage.update_episodes(
        EpisodeBuffer(
            observations=episode.observation,
            actions=episode.action,
            rewards=episode.reward,
            terminations=_last(len(episode.reward), episode.terminated),
            truncations=_last(len(episode.reward), episode.truncated),
        )
        for episode in episodes(stream)
    )


def _action_space(stream: Stream) -> Any:
    """Return the action space for Minari. Without a given one, discrete values are found by reading all actions."""
    first = stream.first
    if first.action.dtype.kind not in "iu":
        return gym_spaces.flat_box(first.action_space, first.action.shape[1], first.action.dtype)
    if first.action_space is not None:
        return gym_spaces.flat_discrete(first.action_space, first.action)
    ends = [np.stack([part.action.min(0), part.action.max(0)]) for part in stream.parts()]
    return gym_spaces.flat_discrete(None, np.concatenate(ends))


def _last(steps: int, flag: bool) -> Array:
    """Return an array of `steps` booleans that are False, except the last one, which is `flag`."""
    flags = np.zeros(steps, bool)
    flags[-1] = flag
    return flags


def _env_spec(stream: Stream) -> str | None:
    """Return the environment as JSON in Minari's form, or None if it is not registered here.

    In the second case, only our own metadata names the environment.
    """
    if stream.env_id is None:
        return None
    try:
        return str(gym_specs.spec_of(stream.env_id, stream.first.env_options).to_json())
    except Exception:
        return None


def folder_in(path: Path) -> Path | None:
    """Return the folder with the `metadata.json` of the data set at `path`, or None if there is no data set."""
    return next((folder for folder in (path / "data", path) if (folder / "metadata.json").exists()), None)


def folder_of(dataset_id: str) -> Path | None:
    """Return the folder with the `metadata.json` of an installed data set, or None if it is not installed."""
    _minari("reading a Minari data set")
    from minari.storage import get_dataset_path

    return folder_in(Path(get_dataset_path(dataset_id)))


def data_folder(source: str | os.PathLike[str]) -> Path | None:
    """Return the folder with the `metadata.json` of a path or an installed id, or None if there is no data set."""
    path = Path(source).expanduser()
    return folder_in(path) if path.exists() else folder_of(os.fspath(source))


def _folder_to_read(source: str | os.PathLike[str]) -> Path:
    """Return the folder with the `metadata.json` of a path or an installed id, or raise an error."""
    found = data_folder(source)
    if found is not None:
        return found
    path = Path(source).expanduser()
    if path.exists():
        raise FormatError(
            f"{path}: not a Minari data set: expected a folder with data/metadata.json and its episodes, "
            "or a folder with Parquet files in it (those in its subfolders are not read)"
        )
    from minari.storage import get_dataset_path

    raise FormatError(
        f"{source}: neither a folder nor a Minari data set installed in {get_dataset_path(os.fspath(source))}; "
        f"check the name, or download it with: minari download {source}"
    )


def place_to_write(target: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the folder and the id of a new data set. Raise an error if the id is taken or the folder is in use."""
    path = Path(target).expanduser()
    if isinstance(target, str) and is_minari_id(target) and not path.exists():
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage import get_dataset_path

        try:
            parse_dataset_id(target)
        except ValueError:  # a data set with such a name would break Minari's list of all data sets
            raise FormatError(
                f"{target}: Minari does not accept this id: expected NAMESPACE/NAME-vVERSION, at least two letters "
                "before the /"
            ) from None
        installed = Path(get_dataset_path(target))
        if installed.exists():
            raise FormatError(
                f"{target}: this Minari id is taken ({installed}); choose another version, "
                f"or remove it with: minari delete {target}"
            )
        return installed, target
    if path.exists() and not (path / "data" / "metadata.json").exists() and (path.is_file() or any(path.iterdir())):
        raise FormatError(f"{path}: exists and is not a Minari data set, so it is not replaced; choose another name")
    name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in path.resolve().name)
    return path, name if is_minari_id(name) else f"{name or 'rows'}-v0"


def _register_namespace(dataset_id: str) -> None:
    """Create the metadata file of the namespace, because Minari lists only data sets in namespaces with such a file."""
    from minari.namespace import create_namespace, list_local_namespaces

    namespace = dataset_id.rpartition("/")[0]
    if namespace and namespace not in list_local_namespaces():
        create_namespace(namespace)


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings of Minari and Gymnasium about old versions and missing authors, which a reader cannot fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _minari(purpose: str) -> Any:
    try:
        import minari
    except ImportError:
        raise MissingExtra("minari", "minari", purpose) from None
    return minari
