"""What every file format promises: the same contract, run over each."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synther.data import spaces
from synther.data.formats import read, suffixes, write, writing
from synther.data.transitions import FIELDS, Transitions
from synther.errors import ConfigError, DataError, FormatError, SyntherError

SUFFIXES = [".npz", ".hdf5", ".parquet"]
FORMATS_OF = suffixes()


@pytest.fixture(params=SUFFIXES)
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(rows: int = 50, *, observation: str = "float32", discrete: bool = False, timeout: bool = True) -> Transitions:
    random = np.random.default_rng(0)
    states = (random.normal(size=(rows, 3)) * 9).astype(observation)
    return Transitions(
        observation=states,
        action=random.integers(0, 4, rows) if discrete else random.uniform(-1, 1, (rows, 2)).astype(np.float32),
        reward=random.normal(size=rows).astype(np.float32),
        next_observation=states[::-1],
        terminal=random.random(rows) < 0.1,
        timeout=random.random(rows) < 0.1 if timeout else None,
        action_space=(spaces.Discrete(4),) if discrete else (spaces.Box.uniform(-1, 1, 2),),
        observation_space=(spaces.Box((-np.inf, 0.1), (np.inf, 1 / 3)), spaces.OneHot(1)),
        env_id="Hopper-v5",
        env_options={"healthy_reward": 0.5, "max_episode_steps": 50},
    )


@dataclass
class Spooled:
    """Rows made on the fly: nothing but one chunk exists at a time."""

    rows: Transitions
    fail_after: int | None = None
    asked: list[int] = field(default_factory=list)
    made: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def chunks(self, rows: int) -> Iterator[Transitions]:
        self.asked.append(rows)
        for start in range(0, len(self.rows), rows):
            if self.fail_after is not None and start >= self.fail_after:
                raise RuntimeError("the disk of the source is gone")
            self.made += 1
            yield self.rows[start : start + rows]


def assert_same(back: Transitions, rows: Transitions) -> None:
    assert back.equals(rows)
    for name, array in rows.arrays().items():
        assert back.arrays()[name].dtype == array.dtype, name
        assert back.arrays()[name].shape == array.shape, name
    assert back.action_space == rows.action_space
    assert back.observation_space == rows.observation_space
    assert (back.env_id, back.env_options) == (rows.env_id, rows.env_options)


@pytest.mark.parametrize("observation", ["float16", "float32", "float64", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize(("discrete", "timeout"), [(False, True), (True, False)])
def test_round_trip(tmp_path: Path, suffix: str, observation: str, discrete: bool, timeout: bool) -> None:
    with np.errstate(invalid="ignore"):
        rows = make(observation=observation, discrete=discrete, timeout=timeout)
    write(rows, tmp_path / f"rows{suffix}")
    assert_same(read(tmp_path / f"rows{suffix}"), rows)


def test_other_suffixes_mean_the_same(tmp_path: Path) -> None:
    for name in ("rows.h5", "rows.pq", "ROWS.NPZ"):
        write(make(), tmp_path / name)
        assert_same(read(str(tmp_path / name)), make())


def test_unknown_and_wide_spaces_are_carried(tmp_path: Path, suffix: str) -> None:
    wide = np.ones((2, 20_000), np.float32)
    space = (spaces.Box.uniform(-1 / 3, np.inf, 20_000),)
    known = Transitions(wide, np.zeros((2, 1), np.float32), np.zeros(2, np.float32), wide, observation_space=space)
    for rows in (known, Transitions.of(make().arrays())):
        write(rows, tmp_path / f"rows{suffix}")
        assert_same(read(tmp_path / f"rows{suffix}"), rows)


def test_streams_in_chunks(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 1000)
    source = Spooled(make(500))
    write(source, tmp_path / f"rows{suffix}")
    assert_same(read(tmp_path / f"rows{suffix}"), source.rows)
    passes = len(FIELDS) if suffix == ".npz" else 1
    assert len(source.asked) == 1 + passes, "one look at the first row, then one pass (a pass a field for npz)"
    assert max(source.asked) * 38 <= 1000
    assert source.made > 10 * passes


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 1000)
    path = tmp_path / f"rows{suffix}"
    write(make(20), path)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="gone"):
        write(Spooled(make(500), fail_after=200), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@dataclass
class Lying(Spooled):
    says: int = 7

    def __len__(self) -> int:
        return self.says


def test_a_source_with_another_number_of_rows_is_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(DataError, match="say that they are 7"):
        write(Lying(make(20)), tmp_path / f"rows{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [0.0, 0.001, 0.1, 0.5, 0.9, 0.999, b"hello, world\n" * 50, b"\x80\x04\x95", bytes(range(256)) * 20],
    ids=lambda content: content if isinstance(content, float) else None,
)
def test_truncated_and_foreign_content(tmp_path: Path, suffix: str, content: float | bytes) -> None:
    path = tmp_path / f"rows{suffix}"
    write(make(3000), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(content * len(whole))] if isinstance(content, float) else content)
    with pytest.raises(FormatError, match=path.name):
        read(path)


@pytest.mark.parametrize("other", SUFFIXES)
def test_another_format_under_this_suffix(tmp_path: Path, suffix: str, other: str) -> None:
    write(make(), tmp_path / f"other{other}")
    path = (tmp_path / f"other{other}").rename(tmp_path / f"rows{suffix}")
    if FORMATS_OF[suffix] == FORMATS_OF[other]:
        assert len(read(path)) == 50
    else:
        with pytest.raises(FormatError, match=path.name):
            read(path)
    assert len(read(path, format=FORMATS_OF[other])) == 50


def store(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A file as somebody else would write it."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix in (".hdf5", ".h5"):
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file[key] = array
    else:
        columns = {key: list(array) if array.ndim == 2 else array for key, array in arrays.items()}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)


def foreign() -> dict[str, np.ndarray]:
    rows = make()
    return {"obs": rows.observation, "acts": rows.action, "rews": rows.reward, "next_obs": rows.next_observation}


def test_foreign_names_are_understood(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    store(path, {**foreign(), "dones": make().terminal.astype(np.float32)})
    assert read(path).equals(make(timeout=False))


@pytest.mark.parametrize(
    ("arrays", "error", "text"),
    [
        ({"rews": np.full(50, np.nan, np.float32)}, DataError, r"rows.*reward\[0\] is nan"),
        ({"colour": np.zeros(50)}, DataError, "rows.*'colour'"),
        ({"acts": None, "rews": None}, DataError, "action, reward"),
        ({"obs": None, "acts": None, "rews": None, "next_obs": None, "colour": np.zeros(50)}, FormatError, "rows"),
        ({"observations": np.zeros((50, 3))}, DataError, "twice"),
    ],
    ids=["nan", "unknown", "missing", "nothing", "twice"],
)
def test_problems_of_the_data_name_file_and_field(tmp_path: Path, suffix: str, arrays, error, text: str) -> None:
    path = tmp_path / f"rows{suffix}"
    store(path, {name: array for name, array in {**foreign(), **arrays}.items() if array is not None})
    with pytest.raises(error, match=text):
        read(path)


def test_without_next_observations(tmp_path: Path, suffix: str) -> None:
    """Two episodes: one terminal after 3 steps, one cut after 4. No pair reaches from one into the other."""
    path = tmp_path / f"rows{suffix}"
    states = np.arange(7, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    arrays = {"observations": states, "actions": states, "rewards": states[:, 0]}
    store(path, arrays)
    with pytest.raises(FormatError, match="next_observations"):
        read(path)
    flags = {"terminals": np.arange(7) == 2, "timeouts": np.arange(7) == 6}
    store(path, {**arrays, **flags})
    rows = read(path)
    assert rows.observation[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert rows.next_observation[:, 0].tolist() == [1, 2, 2, 4, 5, 6]
    assert rows.reward.tolist() == [0, 1, 2, 3, 4, 5]
    assert rows.terminal.tolist() == [False, False, True, False, False, False]
    assert rows.timeout is not None
    assert rows.timeout.tolist() == [False, False, False, False, False, True]


def test_damaged_archives(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, **foreign(), synther_metadata=np.array("{"))
    with pytest.raises(DataError, match=r"rows\.npz: synther_metadata"):
        read(path)
    np.savez(path, observations=np.array([{"a": 1}], dtype=object))
    with pytest.raises(FormatError, match="allow_pickle"):
        read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<xml/>")
    with pytest.raises(FormatError, match=r"rows\.npz"):
        read(path)


def test_choosing_a_format(tmp_path: Path) -> None:
    write(make(), tmp_path / "rows", format="d4rl")
    assert len(read(tmp_path / "rows", format="hdf5")) == 50
    for path, reason in [
        ("absent.npz", "no such file"),
        ("absent.csv", r"\.csv.* \.npz"),
        ("absent", "Minari id"),
        ("rows", "suffix"),
        ("buffer.pkl", "pickle"),
        (".", "Minari"),
    ]:
        with pytest.raises(FormatError, match=reason):
            read(tmp_path / path)
    for path in ("rows.csv", "rows.pkl", "rows/x.npz"):
        with pytest.raises(FormatError):
            write(make(), tmp_path / path)
    with pytest.raises(ConfigError, match="npz"):
        read(tmp_path / "rows", format="csv")
    with pytest.raises(FormatError, match="folder"):
        read(tmp_path, format="npz")
    with pytest.raises(FormatError, match=r"Transitions\.of"):
        read(make())
    for wrong in (Lying(make(20), says=0), {"reward": [1.0]}):
        with pytest.raises(DataError):
            write(wrong, tmp_path / "rows.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["rows"]


def test_heavy_libraries_wait_until_used() -> None:
    script = (
        "import sys, synther.data.formats\n"
        "heavy = {'h5py', 'pyarrow', 'minari', 'gymnasium', 'stable_baselines3', 'torch'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("library", "extra", "path"),
    [("pyarrow", "parquet", "rows.parquet"), ("minari", "minari", "some/task-v0")],
)
def test_absent_libraries_name_their_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, extra: str, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    for name in [name for name in sys.modules if name.startswith(f"{library}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(SyntherError, match=rf"{library}.*synther\[{extra}\]"):
        read(path)
    with pytest.raises(SyntherError, match=rf"synther\[{extra}\]"):
        write(make(), path)


@st.composite
def any_rows(draw: st.DrawFn) -> dict[str, np.ndarray]:
    count = draw(st.integers(1, 6))
    numbers = st.sampled_from(["<f2", "<f4", ">f4", "<f8", "i1", "<i4", "<i8", "u1", "<u8", "?", "longdouble"])
    shape = (count, draw(st.integers(1, 4)))
    observation = draw(numbers)
    return {
        "observation": draw(hnp.arrays(observation, shape)),
        "action": draw(hnp.arrays(draw(numbers), draw(st.sampled_from([(count,), (count, 1), (count, 3)])))),
        "reward": draw(hnp.arrays(draw(st.sampled_from(["<f2", "<f4", "<f8", "<i8"])), (count,))),
        "next_observation": draw(hnp.arrays(observation, shape)),
        "terminal": draw(hnp.arrays(bool, (count,))),
        **({"timeout": draw(hnp.arrays(bool, (count,)))} if draw(st.booleans()) else {}),
    }


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrays=any_rows())
def test_any_rows_come_back_or_are_refused(tmp_path: Path, suffix: str, arrays: dict[str, np.ndarray]) -> None:
    path = tmp_path / f"rows{suffix}"
    try:
        rows = Transitions.of(arrays)
        write(rows, path)
    except SyntherError:
        return
    back = read(path)
    assert back.equals(rows)
    for name, array in rows.arrays().items():
        assert back.arrays()[name].dtype == array.dtype.newbyteorder("="), name


@pytest.mark.parametrize("paired", [False, True])
def test_dones_of_a_file_are_terminals_less_its_timeouts(suffix: str, paired: bool, tmp_path: Path) -> None:
    """Steps 0 to 5, an episode cut after step 2, another that ends in a terminal state at step 5."""
    states = np.arange(6.0)[:, None]
    arrays = {"observations": states, "actions": np.zeros((6, 1)), "rewards": np.zeros(6)}
    flags = {"dones": np.arange(6) % 3 == 2, "timeouts": np.arange(6) == 2}
    path = tmp_path / f"rows{suffix}"
    store(path, arrays | flags | ({} if paired else {"next_observations": states + 1}))
    rows = read(path)
    assert rows.observation[rows.terminal].tolist() == [[5.0]]
    if paired:
        assert rows.observation[:, 0].tolist() == [0, 1, 3, 4, 5]
