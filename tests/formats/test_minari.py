import json
import shutil
import warnings
from pathlib import Path

import gymnasium
import minari
import numpy as np
import pyarrow
import pytest
from gymnasium import spaces as gym
from minari.data_collector import EpisodeBuffer

from synther.data import gym_spaces, spaces
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError, FormatError
from synther.formats import read, write

STRUCTURED = {
    "box": gym.Box(-1, 1, (2, 3), np.float32),
    "scalar": gym.Box(-1, 1, (), np.float64),
    "bytes": gym.Box(0, 255, (4,), np.uint8),
    "discrete": gym.Discrete(4, start=-1),
    "multi_binary": gym.MultiBinary((2, 2)),
    "multi_discrete": gym.MultiDiscrete([3, 2], start=[1, 0]),
    "dict": gym.Dict(
        {
            "z": gym.Box(-1, 1, (2,), np.float32),
            "a": gym.Discrete(3),
            "m": gym.Dict({"k": gym.Box(0, 1, (1,), np.float64)}),
        }
    ),
    "tuple": gym.Tuple((gym.Box(-5, 5, (2,), np.float32), gym.MultiBinary(3), gym.Box(0, 1, (2,), np.float32))),
}


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


def stacked(space: gym.Space, samples: list) -> object:
    """As Minari keeps a batch: arrays at the leaves."""
    if isinstance(space, gym.Dict):
        return {key: stacked(inner, [sample[key] for sample in samples]) for key, inner in space.spaces.items()}
    if isinstance(space, gym.Tuple):
        return tuple(stacked(inner, [sample[i] for sample in samples]) for i, inner in enumerate(space.spaces))
    return np.array(samples)


def create(observation: gym.Space, action: gym.Space, lengths: tuple[int, ...] = (3, 1, 4), **how: object) -> list:
    """A data set made by Minari itself; returns the samples behind it, episode by episode."""
    observation.seed(0)
    action.seed(0)
    buffers, made = [], []
    for length in lengths:
        seen = [observation.sample() for _ in range(length + 1)]
        done = [action.sample() for _ in range(length)]
        last = np.arange(length) == length - 1
        buffers.append(
            EpisodeBuffer(
                observations=stacked(observation, seen),
                actions=stacked(action, done),
                rewards=np.arange(length, dtype=np.float64),
                terminations=last & (length != 4),
                truncations=last & (length == 4),
                infos={"x": np.zeros(length + 1)},
            )
        )
        made.append((seen, done))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "test/task-v0", buffers, observation_space=observation, action_space=action, **how
        )
    return made


@pytest.mark.parametrize("stored", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize("name", STRUCTURED)
def test_observations_are_flattened_as_gymnasium_does(name: str, stored: str) -> None:
    space = STRUCTURED[name]
    made = create(space, gym.Box(-1, 1, (2,)), data_format=stored)
    rows = read("test/task-v0")
    flat = [np.stack([gym.utils.flatten(space, sample) for sample in seen]) for seen, _ in made]
    assert np.array_equal(rows.observation, np.concatenate([episode[:-1] for episode in flat]))
    assert np.array_equal(rows.next_observation, np.concatenate([episode[1:] for episode in flat]))
    assert rows.observation.dtype == gym.utils.flatten_space(space).dtype
    assert rows.observation_space == gym_spaces.observation_space(space)
    assert spaces.width(rows.observation_space) == gym.utils.flatdim(space)
    spaces.check(rows.observation_space, rows.observation.astype(float), "observation")
    assert rows.reward.tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert np.flatnonzero(rows.terminal).tolist() == [2, 3]
    assert np.flatnonzero(rows.timeout).tolist() == [7]
    assert rows.env_id is None
    way_back = gym_spaces.unflatten(space, rows.observation.astype(np.float64))
    assert np.array_equal(gym_spaces.flatten(space, way_back, 8), rows.observation)


def test_unflattened_integers_stay_in_their_space() -> None:
    flat = np.array([[256.2, -0.6], [300.0, 7.6]], np.float32)
    levels = gym.Box(np.array([0, 2], np.uint8), np.array([255, 9], np.uint8), dtype=np.uint8)
    assert gym_spaces.unflatten(levels, flat).tolist() == [[255, 2], [255, 8]]
    assert gym_spaces.unflatten(gym.MultiBinary(2), flat).tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("space", "expected", "shape"),
    [
        (gym.Box(-2, 2, (3,), np.float32), (spaces.Box.uniform(-2, 2, 3),), (8, 3)),
        (gym.Discrete(5, start=2), (spaces.Discrete(5, 2),), (8,)),
        (gym.MultiDiscrete([3, 4]), (spaces.Discrete(3), spaces.Discrete(4)), (8, 2)),
    ],
)
@pytest.mark.parametrize("stored", ["hdf5", "arrow", "parquet"])
def test_actions(space: gym.Space, expected: spaces.Space, shape: tuple[int, ...], stored: str) -> None:
    made = create(STRUCTURED["scalar"], space, data_format=stored)
    rows = read("test/task-v0")
    assert rows.action_space == expected
    assert rows.action.shape == shape
    assert np.array_equal(rows.action, np.concatenate([np.array(done) for _, done in made]))
    assert rows.action.dtype == space.dtype


def test_images_of_arrow_are_those_of_hdf5() -> None:
    read_as = {}
    for stored in ("hdf5", "arrow"):
        create(gym.Box(0, 255, (8, 8, 3), np.uint8), gym.Discrete(2), data_format=stored)
        read_as[stored] = read("minari:test/task-v0").observation
        shutil.rmtree("store")
    assert read_as["arrow"].shape == (8, 8 * 8 * 3)
    assert np.array_equal(read_as["arrow"], read_as["hdf5"])


def test_arrow_files_that_could_ask_for_any_memory_are_refused() -> None:
    create(STRUCTURED["box"], gym.Discrete(2), data_format="arrow")
    path = Path("store/test/task-v0/data/1/part-0.arrow")
    table = pyarrow.ipc.open_file(path.read_bytes()).read_all()
    for change, how in (
        (table, pyarrow.ipc.IpcWriteOptions(compression="zstd")),
        (table.set_column(2, "rewards", table["rewards"].dictionary_encode()), None),
    ):
        with pyarrow.ipc.new_file(str(path), change.schema, options=how) as file:
            file.write_table(change)
        with pytest.raises(FormatError, match=r"test/task-v0: 1/part-0.arrow .*compressed"):
            read("test/task-v0")
    path.write_bytes(b"no Arrow")
    with pytest.raises(FormatError, match=r"1/part-0.arrow"):
        read("test/task-v0")
    path.unlink()
    with pytest.raises(DataError, match="3 episodes, found 1"):
        read("store/test/task-v0")


def test_actions_beyond_their_space_are_read_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    create(STRUCTURED["scalar"], gym.Box(-1, 1, (2,), np.float32))
    metadata = Path("store/test/task-v0/data/metadata.json")
    content = json.loads(metadata.read_text())
    narrow = {**json.loads(content["action_space"]), "low": [-0.1, -0.1], "high": [0.1, 0.1]}
    metadata.write_text(json.dumps({**content, "action_space": json.dumps(narrow)}))
    gym_spaces._IGNORED.clear()
    for _ in range(2):
        assert read("test/task-v0").action_space is None
    assert caplog.text.count("is ignored") == 1


@pytest.mark.parametrize("space", [gym.MultiBinary(2), gym.Dict({"a": gym.Box(0, 1, (1,))})])
def test_other_spaces_are_refused(space: gym.Space) -> None:
    create(STRUCTURED["scalar"], space)
    with pytest.raises(DataError, match="test/task-v0"):
        read("test/task-v0")
    with pytest.raises(DataError, match="Sequence"):
        gym_spaces.observation_space(gym.Dict({"a": gym.Sequence(gym.Discrete(2))}))


def test_env_id_folder_and_data_folder() -> None:
    create(gym.Box(-9, 9, (4,)), gym.Discrete(2), env="CartPole-v1")
    for source in ("test/task-v0", Path("store/test/task-v0"), "store/test/task-v0/data"):
        assert read(source).env_id == "CartPole-v1"


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ({}, None),
        ({"max_episode_steps": 50, "render_mode": "rgb_array"}, {"max_episode_steps": 50}),
        ({"sutton_barto_reward": True}, {"sutton_barto_reward": True}),
    ],
)
def test_options_of_the_environment(how: dict[str, object], options: dict[str, object] | None) -> None:
    env = gymnasium.make("CartPole-v1", **how)
    create(gym.Box(-9, 9, (4,)), gym.Discrete(2), env=env)
    rows = read("test/task-v0")
    assert (rows.env_id, rows.env_options) == ("CartPole-v1", options)
    write(rows, "test/again-v0")
    again = read("test/again-v0")
    assert again.env_options == options
    made = minari.load_dataset("test/again-v0").recover_environment().spec
    assert made.max_episode_steps == how.get("max_episode_steps", 500)
    assert made.kwargs.get("sutton_barto_reward", False) == how.get("sutton_barto_reward", False)


def episodes(**changed: object) -> Transitions:
    states = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    first = np.array([0, 1, 2, 4, 6, 7])  # episodes of 3, 1 and 2 steps
    fields = {
        "observation": states[first],
        "action": np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2),
        "reward": np.arange(6, dtype=np.float32),
        "next_observation": states[first + 1],
        "terminal": np.arange(6) == 2,
        "timeout": np.isin(np.arange(6), (3, 5)),
        "action_space": (spaces.Box.uniform(-1, 1, 2),),
        "observation_space": (spaces.Box.uniform(-np.inf, np.inf, 1), spaces.OneHot(2)),
        "env_id": "CartPole-v1",
        **changed,
    }
    return Transitions(**fields)


CHANGED: list[dict[str, object]] = [
    {},
    {"action": np.arange(6), "action_space": None},
    {"action": np.arange(6, dtype=np.uint8), "action_space": (spaces.Discrete(9),)},
    {"action": np.arange(12).reshape(6, 2), "action_space": None},
    {"env_id": "Nobody-v7"},
    {"env_id": None, "observation_space": None},
    {"timeout": np.arange(6) == 3},
    *(
        {"observation": numbers[:-1].astype(dtype), "next_observation": numbers[1:].astype(dtype)}
        | {"observation_space": None, "timeout": np.arange(6) == 5}
        for numbers in [np.arange(14).reshape(7, 2) * 17 % 5]
        for dtype in ("float64", "int64", "uint8", "bool")
    ),
]


@pytest.mark.parametrize(
    ("target", "changed"),
    [*(("made/here/rows-v3", changed) for changed in CHANGED), (Path("out/folder"), {}), ("./out/folder", {})],
)
def test_round_trip(target: str | Path, changed: dict[str, object]) -> None:
    rows = episodes(**changed)
    write(rows, target)
    back = read(target)
    assert back.equals(rows)
    for name, array in rows.arrays().items():
        assert back.arrays()[name].dtype == array.dtype, name
    for name in ("action_space", "observation_space", "env_id"):
        assert getattr(back, name) == getattr(rows, name)


def test_minari_itself_reads_what_is_written() -> None:
    write(episodes(), "made/here/rows-v3")
    dataset = minari.load_dataset("made/here/rows-v3")
    assert dataset.total_steps == 6
    assert [len(episode) for episode in dataset.iterate_episodes()] == [3, 1, 2]
    assert dataset[0].observations.shape == (4, 3)
    assert "made/here/rows-v3" in minari.list_local_datasets()
    assert minari.MinariDataset("store/made/here/rows-v3/data").id == "made/here/rows-v3"
    write(episodes(env_id="gymnasium.envs.classic_control:CartPole-v1"), "made/there/rows-v0")
    for recovered in (dataset, minari.load_dataset("made/there/rows-v0")):
        assert recovered.recover_environment().spec.id == "CartPole-v1"


def test_rows_without_episodes_and_ids_that_minari_does_not_know_are_refused() -> None:
    shuffled = Transitions.of(episodes().arrays())[np.array([4, 0, 5, 1, 2, 3])]
    with pytest.raises(DataError, match=r"\.hdf5"):
        write(shuffled, "made/rows-v0")
    with pytest.raises(FormatError, match="m/rows-v0"):
        write(episodes(), "m/rows-v0")
    assert not list(Path("store").glob("**/*.hdf5"))
    assert not list(Path("store/made").iterdir())


def test_nothing_foreign_is_replaced() -> None:
    write(episodes(), "made/rows-v0")
    with pytest.raises(FormatError, match="made/rows-v0"):
        write(episodes(), "made/rows-v0")
    Path("thesis").mkdir()
    Path("thesis/chapter.txt").write_text("months of work")
    with pytest.raises(FormatError, match="thesis"):
        write(episodes(), Path("thesis"))
    assert Path("thesis/chapter.txt").exists()
    write(episodes(), Path("out"))
    write(episodes()[:3], Path("out"))
    assert len(read(Path("out"))) == 3


def test_absent_and_damaged() -> None:
    with pytest.raises(FormatError, match="minari download test/other-v1"):
        read("test/other-v1")
    write(episodes(), "out")
    data = Path("out/data/main_data.hdf5")
    whole = data.read_bytes()
    for length in (0, 100, len(whole) // 2):
        data.write_bytes(whole[:length])
        with pytest.raises(FormatError, match="out"):
            read("out")
    data.unlink()
    with pytest.raises(FormatError, match="main_data"):
        read("out")
    data.write_bytes(whole)
    metadata = Path("out/data/metadata.json")
    content = json.loads(metadata.read_text())
    for damaged in (json.dumps({**content, "total_steps": 5}), "{"):
        metadata.write_text(damaged)
        with pytest.raises(FormatError, match="out"):
            read("out")


def test_the_prefix_says_that_a_name_is_an_id(tmp_path: Path):
    rows = Transitions(
        observation=np.arange(4.0)[:, None],
        action=np.zeros((4, 1)),
        reward=np.arange(4.0),
        next_observation=np.arange(1.0, 5)[:, None],
        terminal=np.arange(4) == 3,
        timeout=np.zeros(4, bool),
    )
    write(rows, "minari:test/prefixed-v0")
    assert not Path("minari:test").exists()
    for name in ("minari:test/prefixed-v0", "test/prefixed-v0"):
        assert np.array_equal(read(name).reward, rows.reward)
    for call in (lambda name: read(name), lambda name: write(rows, name)):
        with pytest.raises(ConfigError, match="NAMESPACE"):
            call("minari:no id")
