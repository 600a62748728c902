"""A window of many rows: which rows are there in which round, and fits that learn from it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig
from synther.diffusion.fit import FitResult, fit
from synther.diffusion.window import DRAWS, Pace, Window
from synther.errors import ConfigError, DataError

from ..support.watch import Stopped, Watch

CPU = torch.device("cpu")
TINY = NetworkConfig(width=16, depth=2, embedding=8, frequencies=4)
ROWS = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))


class Endless:
    """Rows in their order, again and again, and a record of what was read."""

    def __init__(self, rows: Tensor = ROWS) -> None:
        self.rows, self.reads = rows, []

    def __call__(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        self.reads.append((start, stop))
        places = torch.arange(start, stop) % len(self.rows)
        return self.rows[places], torch.ones(stop - start, dtype=torch.int64)


def window(pace: Pace, read=None, held_out: Tensor | None = ROWS[:50], identity: str = "rows") -> Window:
    read = Endless() if read is None else read
    return Window(read, pace, held_out, columns=3, total=1050, identity=identity, device=CPU)


def test_a_row_is_drawn_four_times_on_average_before_it_is_replaced():
    config = FitConfig(steps=10_000, batch_size=64, window_rows=100_000)
    pace = Pace.of(config, 1_000_000, 990_000)
    assert pace.rows == 100_000
    drawn = pace.rounds * config.ema_every * 64
    assert pace.replaced * DRAWS == drawn
    assert 0.9 < drawn / (100_000 * DRAWS / 16) <= 1  # a sixteenth at a time, in whole rounds
    assert (pace.turns - 1) * pace.rounds < 1000 <= pace.turns * pace.rounds
    # A fit of few steps needs no more rows than it draws; a round may draw more than a small window has.
    assert Pace.of(FitConfig(steps=100, batch_size=64), 10_000_000, 9_990_000).rows == 6400
    small = Pace.of(FitConfig(batch_size=64, window_rows=50), 1000, 950)
    assert (small.rows, small.replaced, small.rounds) == (50, 50, 1)
    whole = Pace.of(FitConfig(batch_size=64, window_rows=999), 1000, 950)
    assert (whole.rows, whole.replaced) == (950, 0)


def test_the_window_moves_on_and_holds_what_follows_from_the_round():
    pace, read = Pace(rows=100, replaced=30, rounds=2, turns=50), Endless()
    moving = window(pace, read)
    for number in range(40):
        places = moving.at(number)
        first = number // 2 * 30
        wanted = torch.arange(first, first + 100) % 1000
        assert torch.equal(places, torch.arange(100))
        assert torch.equal(moving.rows.sort(0).values, ROWS[wanted].sort(0).values)
        if number in (3, 16, 39):  # as a fit that goes on there finds it, in the same places
            again = window(pace)
            again.at(number)
            assert torch.equal(again.rows, moving.rows)
    # Every row once, in order, and the next ones ahead.
    assert sorted(read.reads) == read.reads
    assert [start for start, _ in read.reads[1:]] == [stop for _, stop in read.reads[:-1]]
    assert max(stop - start for start, stop in read.reads) <= 30


def test_nothing_is_read_that_no_round_needs():
    read = Endless()
    still = window(Pace(100, 0, 1, 9), read)
    for number in range(9):
        still.at(number)
    assert read.reads == [(0, 100)]
    read = Endless()
    short = window(Pace(100, 50, 2, 2), read)
    for number in range(4):
        short.at(number)
    assert read.reads == [(0, 50), (50, 100), (100, 150)]


def test_rows_are_drawn_as_often_as_they_count():
    def read(start: int, stop: int) -> tuple[Tensor, Tensor]:
        return ROWS[start:stop], torch.arange(start, stop) % 3

    places = window(Pace(6, 0, 1, 1), read).at(0)
    assert places.tolist() == [1, 2, 2, 4, 5, 5]
    with pytest.raises(DataError, match="window"):
        window(Pace(6, 0, 1, 1), lambda start, stop: (ROWS[start:stop], torch.zeros(stop - start, dtype=int))).at(0)


OPTIONS = {"steps": 120, "batch_size": 16, "evaluate_every": 10, "checkpoint_every": 20, "window_rows": 300}


def run(checkpoint=None, progress=None, identity: str = "rows", read=None, **options) -> FitResult:
    config = FitConfig(**{**OPTIONS, **options})
    given = window(Pace.of(config, 1050, 1000), read, identity=identity)
    return fit(given, TINY, config, NoiseConfig(), checkpoint=checkpoint, progress=progress)


@pytest.mark.parametrize("stops", [[10], [50], [30, 90, 120]])
def test_a_killed_fit_goes_on_with_the_same_rows(stops, tmp_path):
    for stop in stops:
        with pytest.raises(Stopped):
            run(tmp_path / "fit", Watch(stop))
    resumed, whole = run(tmp_path / "fit"), run()
    for one, other in zip(resumed.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [entry["held_out"] for entry in resumed.history] == [entry["held_out"] for entry in whole.history]


def test_a_checkpoint_of_other_rows_is_refused(tmp_path):
    with pytest.raises(Stopped):
        run(tmp_path / "fit", Watch(50))
    with pytest.raises(ConfigError, match="delete"):
        run(tmp_path / "fit", identity="others")
    with pytest.raises(ConfigError, match="delete"):
        run(tmp_path / "fit", window_rows=299)


def test_an_error_of_the_reader_ends_the_fit():
    class Broken(Endless):
        def __call__(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
            if stop > 500:
                raise DataError("part-7.parquet: reward is nan")
            return super().__call__(start, stop)

    with pytest.raises(DataError, match="part-7"):
        run(read=Broken())
