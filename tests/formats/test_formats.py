"""What every file format promises: the same contract, run over each."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synther.data import spaces
from synther.data.transitions import FIELDS, Transitions
from synther.errors import ConfigError, DataError, FormatError, SyntherError, Unwritable
from synther.formats import read, shipped, suffixes, write, writing

from ..support.files import store

SUFFIXES = [".npz", ".hdf5", ".parquet"]
FORMATS_OF = suffixes()


@pytest.fixture(params=SUFFIXES)
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path, suffix: str) -> Path:
    return tmp_path / f"rows{suffix}"


def make(rows: int = 50, *, discrete: bool = False, timeout: bool = True) -> Transitions:
    random = np.random.default_rng(0)
    states = (random.normal(size=(rows, 3)) * 9).astype(np.float32)
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
    says: int | None = None
    asked: list[int] = field(default_factory=list)
    made: int = 0

    def __len__(self) -> int:
        return len(self.rows) if self.says is None else self.says

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
        assert back.arrays()[name].dtype == array.dtype.newbyteorder("="), name
        assert back.arrays()[name].shape == array.shape, name
    for name in ("action_space", "observation_space", "env_id", "env_options"):
        assert getattr(back, name) == getattr(rows, name), name


def test_rows_come_back_with_their_spaces_and_environment(path: Path) -> None:
    wide = np.ones((2, 20_000), np.float32)
    space = (spaces.Box.uniform(-1 / 3, np.inf, 20_000),)
    known = Transitions(wide, np.zeros((2, 1), np.float32), np.zeros(2, np.float32), wide, observation_space=space)
    for rows in (make(), make(discrete=True, timeout=False), known, Transitions.of(make().arrays())):
        write(rows, path)
        assert_same(read(path), rows)


def test_other_suffixes_mean_the_same(tmp_path: Path) -> None:
    for name in ("rows.h5", "rows.pq", "ROWS.NPZ"):
        write(make(), tmp_path / name)
        assert_same(read(str(tmp_path / name)), make())


def test_streams_in_chunks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 1000)
    source = Spooled(make(500))
    write(source, path)
    assert_same(read(path), source.rows)
    passes = len(FIELDS) if path.suffix == ".npz" else 1
    assert len(source.asked) == 1 + passes, "one look at the first row, then one pass (a pass a field for npz)"
    assert max(source.asked) * 38 <= 1000
    assert source.made > 10 * passes


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 1000)
    write(make(20), path)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="gone"):
        write(Spooled(make(500), fail_after=200), path)
    with pytest.raises(DataError, match="7"):
        write(Spooled(make(20), says=7), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", [0.0, 0.001, 0.5, 0.999, b"hello, world\n" * 50, b"\x80\x04\x95"])
def test_truncated_and_foreign_content(path: Path, content: float | bytes) -> None:
    write(make(3000), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(content * len(whole))] if isinstance(content, float) else content)
    with pytest.raises(FormatError, match=path.name):
        read(path)


def test_another_format_under_this_suffix(path: Path, suffix: str) -> None:
    for other in set(SUFFIXES) - {suffix}:
        write(make(), path, format=FORMATS_OF[other])
        with pytest.raises(FormatError, match=path.name):
            read(path)
        assert len(read(path, format=FORMATS_OF[other])) == 50


def foreign() -> dict[str, np.ndarray]:
    rows = make()
    return {"obs": rows.observation, "acts": rows.action, "rews": rows.reward, "next_obs": rows.next_observation}


def test_foreign_names_are_understood(path: Path) -> None:
    store(path, {**foreign(), "dones": make().terminal.astype(np.float32)})
    assert read(path).equals(make(timeout=False))


@pytest.mark.parametrize(
    ("arrays", "error", "text"),
    [
        ({"rews": np.full(50, np.nan, np.float32)}, DataError, r"rows.*reward\[0\] is nan"),
        ({"colour": np.zeros(50)}, DataError, "rows.*'colour'"),
        ({"acts": None, "rews": None}, DataError, "action, reward"),
        ({"obs": None, "acts": None, "rews": None, "next_obs": None, "colour": np.zeros(50)}, FormatError, "rows"),
        ({"observations": np.zeros((50, 3))}, DataError, "two keys hold observation"),
    ],
    ids=["nan", "unknown", "missing", "nothing", "twice"],
)
def test_problems_of_the_data_name_file_and_field(path: Path, arrays, error, text: str) -> None:
    store(path, {**foreign(), **arrays})
    with pytest.raises(error, match=text):
        read(path)


@pytest.mark.parametrize("terminals", [{"terminals": np.arange(7) == 2}, {"dones": np.isin(np.arange(7), (2, 6))}])
def test_without_next_observations_rows_are_paired_within_episodes(path: Path, terminals) -> None:
    """One episode is terminal after 3 steps, one cut after 4. `dones` are terminals less the timeouts."""
    states = np.arange(7, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    arrays = {"observations": states, "actions": states, "rewards": states[:, 0]}
    store(path, arrays)
    with pytest.raises(FormatError, match="next_observations"):
        read(path)
    flags = {**terminals, "timeouts": np.arange(7) == 6}
    store(path, {**arrays, **flags})
    rows = read(path)
    assert rows.observation[:, 0].tolist() == rows.reward.tolist() == [0, 1, 2, 3, 4, 5]
    assert rows.next_observation[:, 0].tolist() == [1, 2, 2, 4, 5, 6]
    assert np.flatnonzero(rows.terminal).tolist() == [2]
    assert np.flatnonzero(rows.timeout).tolist() == [5]
    store(path, {**arrays, **flags, "next_observations": states + 1})
    assert np.flatnonzero(read(path).terminal).tolist() == [2]


def test_damaged_archives(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, **foreign(), synther_metadata=np.array("{"))
    with pytest.raises(FormatError, match=r"rows\.npz: synther_metadata"):
        read(path)
    np.savez(path, **{**foreign(), "obs": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(FormatError, match="pickles are never loaded"):
        read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<xml/>")
    with pytest.raises(FormatError, match=r"rows\.npz"):
        read(path)


def test_a_folder_of_files_names_one_of_them(tmp_path: Path) -> None:
    write(make(), tmp_path / "synthetic.hdf5")
    with pytest.raises(FormatError, match=r"is a folder: pass a file in it, such as .*synthetic\.hdf5; in Python"):
        read(tmp_path)


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
        ("m.safetensors", "synther sample"),
    ]:
        with pytest.raises(FormatError, match=reason):
            read(tmp_path / path)
    with pytest.raises(FormatError, match="is a URL: download the file"):
        read("https://example.com/rows.npz")
    for path in ("rows.csv", "rows.pkl", "rows/x.npz"):
        with pytest.raises((FormatError, Unwritable)):
            write(make(), tmp_path / path)
    with pytest.raises(ConfigError, match="npz"):
        read(tmp_path / "rows", format="csv")
    with pytest.raises(FormatError, match="folder"):
        read(tmp_path, format="npz")
    with pytest.raises(FormatError, match=r"Transitions\.of"):
        read(make())
    for wrong in (Spooled(make(20), says=0), {"reward": [1.0]}):
        with pytest.raises(DataError):
            write(wrong, tmp_path / "rows.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["rows"]


def test_heavy_libraries_wait_until_used() -> None:
    script = (
        "import sys, synther.formats\n"
        "heavy = {'h5py', 'pyarrow', 'minari', 'gymnasium', 'stable_baselines3', 'torch'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("library", "extra", "path"),
    [("pyarrow", "parquet", "rows.parquet"), ("minari", "minari", "some/task-v0")],
)
def test_absent_libraries_name_their_extra(tmp_path, monkeypatch, library: str, extra: str, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
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


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrays=any_rows())
def test_any_rows_come_back_or_are_refused(path: Path, arrays: dict[str, np.ndarray]) -> None:
    try:
        rows = Transitions.of(arrays)
        write(rows, path)
    except SyntherError:
        return
    assert_same(read(path), rows)


def test_shipped_data_is_read_by_its_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hopper-sac").mkdir()  # the folder of a run, say
    assert shipped.names() == ("hopper-sac",)
    assert shipped.hopper() == shipped.path("hopper-sac")
    assert 1e6 < shipped.hopper().stat().st_size < 3e6
    rows = read("hopper-sac")
    assert_same(rows, read(shipped.hopper()))
    assert (rows.env_id, rows.observation.shape[1], rows.action.shape[1]) == ("Hopper-v5", 11, 3)
    assert np.abs(rows.action).max() <= 1
    with pytest.raises(FormatError, match="hopper-sac"):
        shipped.path("walker")


def test_names_of_ones_own_are_renamed(path: Path):
    rows = make()
    names = {"o": rows.observation, "a": rows.action, "r": rows.reward, "o2": rows.next_observation}
    names |= {"end": rows.terminal | rows.timeout, "cut": rows.timeout, "note": rows.reward, "target": rows.reward}
    store(path, names)
    rename = {"o": "obs", "a": "action", "r": "rewards", "o2": "next_observation", "end": "dones", "cut": "timeouts"}
    found = read(path, rename={**rename, "note": None, "target": "extra/target"})
    assert np.array_equal(found.observation, rows.observation)
    assert np.array_equal(found.terminal, rows.terminal & ~rows.timeout)  # dones, less the timeouts
    assert np.array_equal(found.extra["target"], rows.reward)
    with pytest.raises(DataError, match="rename"):
        read(path, rename=rename)
    with pytest.raises(ConfigError, match="'x'"):
        read(path, rename={"x": "observation"})


def test_only_files_have_names_to_rename(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    for source in (tmp_path / "folder", object()):
        with pytest.raises(ConfigError, match="rename"):
            read(source, rename={"o": "observation"})
