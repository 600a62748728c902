"""Files of frames: each format read, ours written and read again, and what cannot be read refused by its name."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium.spaces as gym
import h5py
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer

from synther.errors import DataError, FormatError, Unwritable
from synther.pixels.files import read, write
from synther.pixels.formats import hdf5
from synther.pixels.frames import Frames

from ..support.files import store
from ..support.watch import Watch


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


def frames(*lengths: int, size: int = 5, seed: int = 0, columns: int = 2) -> Frames:
    """Episodes of so many records, of which the first ends in a terminal one."""
    rng = np.random.default_rng(seed)
    records = sum(lengths)
    first = np.isin(np.arange(records), np.cumsum([0, *lengths]))
    discount = np.ones(records)
    discount[lengths[0] - 1] = 0
    return Frames(
        image=rng.integers(0, 256, (records, 3, size, size + 1), np.uint8),
        action=np.where(first[:, None], 0, rng.uniform(-1, 1, (records, columns))),
        reward=np.where(first, 0, rng.normal(size=records)),
        discount=discount,
        first=first,
    )


def assert_same(one: Frames, other: Frames) -> None:
    for name in ("image", "action", "reward", "discount", "first", "low", "high"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
        assert getattr(one, name).dtype == getattr(other, name).dtype
    for name in ("env_id", "action_repeat", "shadow_size"):
        assert getattr(one, name) == getattr(other, name), name


def shard(path: Path | str, data: Frames, **changed: object) -> Path:
    """A file as V-D4RL has it: nothing but the arrays."""
    starts, ends = data.episodes
    step_type = np.ones(len(data), np.int64)
    step_type[ends - 1] = 2
    step_type[starts] = 0
    arrays = {
        "observation": data.image,
        "action": data.action,
        "reward": data.reward,
        "discount": data.discount,
        "step_type": step_type,
    }
    return store(Path(path), arrays | changed)


def episode(path: Path | str, data: Frames, **changed: object) -> Path:
    """A file as V-D4RL's npz episodes are, channels last."""
    arrays = {
        "image": data.image.transpose(0, 2, 3, 1),
        "action": data.action,
        "reward": data.reward,
        "discount": data.discount,
        "is_first": data.first,
        "is_last": np.arange(len(data)) == len(data) - 1,
        "is_terminal": data.discount == 0,
    }
    return store(Path(path), arrays | changed)


def minari_set(data: Frames, observation: gym.Space, entry: str | None = None, last: bool = True) -> None:
    """The data set test/frames-v0, made by Minari itself."""
    buffers = []
    for start, end in zip(*data.episodes, strict=True):
        pictures = data.image[start:end].transpose(0, 2, 3, 1) if last else data.image[start:end]
        ends = np.arange(start + 1, end) == end - 1
        buffers.append(
            EpisodeBuffer(
                observations={entry: pictures, "speed": np.zeros((end - start, 1))} if entry else pictures,
                actions=data.action[start + 1 : end],
                rewards=data.reward[start + 1 : end],
                terminations=ends & (data.discount[end - 1] == 0),
                truncations=ends & (data.discount[end - 1] != 0),
            )
        )
    space = gym.Box(-1, 1, (data.action.shape[1],), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers("test/frames-v0", buffers, observation_space=observation, action_space=space)


def test_ours_is_read_as_it_was_written():
    known: dict[str, Any] = {"env_id": "dm_control/walker-walk-v0", "action_repeat": 2, "shadow_size": 512}
    data = replace(frames(40, 7, 2), **known, low=np.array([-1, -3]))
    write(data, "a/frames.hdf5")
    assert_same(read("a/frames.hdf5"), data)
    write(frames(3), "plain.h5")
    assert_same(read("plain.h5"), frames(3))
    with h5py.File("a/frames.hdf5") as file:
        assert set(file) == {"observation", "action", "reward", "discount", "step_type"}
        assert file["step_type"][:].tolist() == [0] + [1] * 38 + [2] + [0] + [1] * 5 + [2, 0, 2]
    noisy = frames(100, size=40)
    still = replace(noisy, image=noisy.image[:1].repeat(100, 0))
    write(still, "still.hdf5")
    assert Path("still.hdf5").stat().st_size < still.image.nbytes / 5, "similar frames take little room"


def test_parts_become_one_file():
    parts = [frames(4, 3), frames(5, seed=1), frames(2, seed=2)]
    write(iter(parts), "frames.hdf5")
    assert_same(read("frames.hdf5"), Frames.concatenate(parts))
    changes = ({"high": np.array([1, 2])}, {"low": np.array([-2, -1])}, {"env_id": "a"}, {"action_repeat": 4})
    for other in (frames(3, size=6), *(replace(frames(3), **changed) for changed in changes)):
        with pytest.raises(DataError, match="agree"):
            write([frames(3), other], "mixed.hdf5")
    with pytest.raises(DataError, match="nothing to write"):
        write([], "empty.hdf5")
    assert [file.name for file in Path().iterdir()] == ["frames.hdf5"]


def test_a_file_appears_whole_or_not_at_all():
    write(frames(3), "frames.hdf5")

    def stopped() -> Iterator[Frames]:
        yield frames(4)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(stopped(), "frames.hdf5")
    assert [file.name for file in Path().iterdir()] == ["frames.hdf5"]
    assert_same(read("frames.hdf5"), frames(3))
    with pytest.raises(FormatError, match=r"\.hdf5"):
        write(frames(3), "frames.npz")


def test_shards_of_v_d4rl():
    """More records than a block, NaN at a reset, columns of one number; what they are of is known from the folder."""
    folder = Path("main/walker_walk/medium_replay/84px")
    one, other = frames(600, 5), frames(4, seed=1)
    wild = np.where(one.first, np.nan, one.reward)
    shard(folder / "b.hdf5", other)
    shard(folder / "a.hdf5", one, reward=wild[:, None], discount=np.where(one.first, np.nan, one.discount))
    expected = replace(Frames.concatenate([one, other]), env_id="dm_control/walker-walk-v0", action_repeat=2)
    watch = Watch()
    assert_same(read(folder, progress=watch), expected)
    assert (watch.phases, watch.amounts) == ([["read frames", 609, 0, 609]], [512, 93, 4])
    assert_same(read([folder / "a.hdf5", str(folder / "b.hdf5")]), expected)
    assert_same(read(folder / "b.hdf5"), replace(other, env_id="dm_control/walker-walk-v0", action_repeat=2))
    assert read(shard("elsewhere.hdf5", other)).env_id is None
    cut = shard("cut.hdf5", frames(5, 4), step_type=np.array([0, 1, 1, 1, 1, 0, 1, 1, 1]))
    assert_same(read(cut), frames(5, 4))


def test_npz_episodes():
    parts = [frames(5), frames(3, seed=1), frames(4, 2, seed=2)]
    for number, part in enumerate(parts):
        episode(f"episodes/{number}.npz", part)
    assert_same(read("episodes"), Frames.concatenate(parts))
    bare = frames(4)
    told = {"is_first": None, "is_last": None, "is_terminal": None, "image": None, "observation": bare.image}
    assert_same(read(episode("bare.npz", bare, **told)), bare)
    discounted = episode("discounted.npz", frames(4, 3), discount=np.full(7, 0.99))  # an agent's, which is no end
    assert_same(read(discounted), frames(4, 3))


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("entry", [None, "camera"])
def test_minari(last, entry):
    data = frames(5, 3)
    picture = gym.Box(0, 255, (5, 6, 3) if last else (3, 5, 6), np.uint8)
    space = gym.Dict({entry: picture, "speed": gym.Box(-1, 1, (1,), np.float64)}) if entry else picture
    minari_set(data, space, entry, last)
    assert_same(read("test/frames-v0"), data)
    assert_same(read("store/test/frames-v0"), data)


def test_minari_of_other_kinds():
    data = frames(5)
    pictures = gym.Box(0, 255, (5, 6, 3), np.uint8)
    minari_set(data, pictures)
    metadata = Path("store/test/frames-v0/data/metadata.json")
    told = json.loads(metadata.read_text())
    for name, value, says in (
        ("action_space", {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}, "actions are of Discrete"),
        ("observation_space", {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}, "expected a Box of images"),
        ("total_steps", 3, "declares 4 records"),
    ):
        text = value if isinstance(value, int) else json.dumps(value)
        metadata.write_text(json.dumps({**told, name: text}))
        with pytest.raises((DataError, FormatError), match=says):
            read("test/frames-v0")
    with pytest.raises(FormatError, match="no Minari data set of this id"):
        read("test/other-v0")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"step_type": None}, "step_type"),
        ({"observation": np.zeros((6, 3, 5, 6), np.float32)}, "observation has dtype float32"),
        ({"observation": np.zeros((6, 9, 5, 6), np.uint8)}, r"shape \(6, 9, 5, 6\)"),
        ({"observation": np.zeros((6, 3), np.uint8)}, r"shape \(6, 3\)"),
        ({"observation": np.zeros((0, 3, 5, 6), np.uint8)}, "no records"),
        ({"reward": np.zeros(5)}, r"reward has shape \(5,\)"),
        ({"action": np.zeros((5, 2))}, r"action has shape \(5, 2\)"),
        ({"action": np.zeros(6)}, r"action has shape \(6,\)"),
        ({"action": np.full((6, 2), 3.0)}, r"action\[1, 0\] is 3\.0"),
        ({"action": np.full((6, 2), np.nan)}, r"action\[1, 0\] is nan"),
        ({"step_type": np.array([1, 1, 1, 1, 1, 2])}, r"step_type\[0\] is 1"),
        ({"step_type": np.array([0, 1, 2, 1, 1, 2])}, r"step_type\[3\] is 1"),
        ({"step_type": np.array([0, 1, 7, 1, 1, 2])}, r"step_type\[2\] is 7"),
        ({"image": None}, "missing image"),
        ({"discount": None, "is_terminal": None}, "missing discount or is_terminal"),
        ({"image": np.zeros((6, 5, 6, 3))}, "image has dtype float64"),
        ({"action": np.zeros((5, 2)), "is_first": np.arange(6) == 0}, r"action has shape \(5, 2\)"),
        ({"reward": np.zeros((6, 2)), "is_first": np.arange(6) == 0}, r"reward has shape \(6, 2\)"),
        ({"is_first": np.zeros(6, bool)}, "record 0 is not a reset"),
    ],
)
def test_files_that_are_refused(changed, says):
    npz = {"image", "is_first", "is_terminal"} & changed.keys()
    path = (episode if npz else shard)("odd.npz" if npz else "odd.hdf5", frames(6), **changed)
    with pytest.raises((DataError, FormatError), match=rf"{path.name}:? .*{says}"):
        read(path)


def test_mixtures_are_refused():
    write(frames(3), "mixed/a.hdf5")
    for other, says in (
        (frames(3, size=8), r"b\.hdf5 .*3 x 8 x 9"),
        (frames(3, columns=4), r"b\.hdf5: action"),
        (replace(frames(3), high=np.array([2, 2])), "high"),
    ):
        write(other, "mixed/b.hdf5")
        with pytest.raises(DataError, match=says):
            read("mixed")
    episode("mixed/c.npz", frames(3))
    with pytest.raises(FormatError, match="both"):
        read("mixed")


def test_what_is_no_file_of_frames_is_refused():
    whole = shard("whole.hdf5", frames(6)).read_bytes()
    Path("half.hdf5").write_bytes(whole[: len(whole) // 2])
    packed = episode("whole.npz", frames(6)).read_bytes()
    Path("half.npz").write_bytes(packed[: len(packed) // 2])
    middle = len(packed) // 2
    Path("damaged.npz").write_bytes(packed[:middle] + bytes(200) + packed[middle + 200 :])
    Path("text.txt").write_text("frames")
    Path("empty").mkdir()
    for name in ("half.hdf5", "half.npz", "damaged.npz", "text.txt", "absent.hdf5", "empty"):
        with pytest.raises(FormatError, match=name):
            read(name)
    with pytest.raises(FormatError, match="nothing to read"):
        read([])


def test_whole_chunks_are_read(monkeypatch):
    """V-D4RL's are thousands of records high: each of them is unpacked once, or as seldom as memory allows."""
    data = frames(700, 600)
    path = shard("tall.hdf5", data, observation=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("observation", data=data.image, chunks=(600, 1, 5, 2), compression="gzip")

    def heights() -> list[int]:
        return [len(block.image) for block in hdf5.Shard(path).blocks()]

    assert heights() == [600, 600, 100]
    monkeypatch.setattr(hdf5, "BLOCK_BYTES", 250 * data.image[0].nbytes)
    assert heights() == [200, 200, 200, 200, 200, 200, 100]
    assert_same(read(path), data)
    monkeypatch.setattr(hdf5, "BLOCK_BYTES", 90 * data.image[0].nbytes)
    assert heights() == [*[86] * 6, 84, *[86] * 6, 84, 86, 14]
    assert_same(read(path), data)


def test_a_full_disk():
    resource = pytest.importorskip("resource")
    write(frames(3), "frames.hdf5")
    data = frames(40, size=40)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (1_000, 60_000, 180_000):  # at the beginning, among the frames, when the file is closed
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(Unwritable, match="File too large"):
                write([data], "frames.hdf5")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [file.name for file in Path().iterdir()] == ["frames.hdf5"]
    assert_same(read("frames.hdf5"), frames(3))
