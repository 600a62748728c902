"""Whose folder it is, and what somebody is told who comes with something else."""

from __future__ import annotations

import pytest

from synther.errors import ConfigError
from synther.folder import Difference, Growth, RunFolder, differences, key_of, read_object

HELD = {
    "seed": 0,
    "settings": {"fit": {"steps": 5, "batch_size": None}, "kind": "mlp"},
    "data": "a" * 64,
    "arms": ["real"],
}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"seed": 1}, "seed (0, not 1)"),
        ({"settings": {"fit": {"steps": 7, "batch_size": 3}, "kind": "mlp"}}, "settings (fit.steps 5, not 7; fit."),
        ({"settings": {"fit": {"steps": 5}, "kind": "mlp", "new": 1}}, "settings (new null, not 1)"),
        ({"samples": 5}, "samples (null, not 5)"),  # of which whoever wrote it did not know
        ({"data": "b" * 64}, "data"),
        ({"arms": ["real", "noise"], "seed": 2}, 'seed (0, not 2), arms (["real"], not ["real", "noise"])'),
        ({"settings": {f"part{n}": n for n in range(9)}}, "settings (fit {"),
    ],
)
def test_what_differs_is_told_where_it_is_short(asked, told, tmp_path):
    RunFolder(tmp_path).claim(HELD)
    RunFolder(tmp_path).claim(HELD)
    with pytest.raises(ConfigError) as refused:
        RunFolder(tmp_path).claim(HELD | asked)
    assert f"{tmp_path} holds a run with other options: {told}" in str(refused.value)
    assert str(refused.value).endswith("; choose another --out, or remove the folder")
    assert len(str(refused.value)) < 300 + len(str(tmp_path))


def test_what_is_none_is_as_if_it_were_not_said(tmp_path):
    RunFolder(tmp_path).claim({"settings": {"fit": {"steps": 5, "patience": None}}})
    RunFolder(tmp_path).claim({"settings": {"fit": {"steps": 5, "overfit": None}}})
    with pytest.raises(ConfigError, match=r"settings \(fit\.overfit null, not 0\.1\)"):
        RunFolder(tmp_path).claim({"settings": {"fit": {"steps": 5, "overfit": 0.1}}})


def test_differences_are_found_wherever_they_are():
    wanted = {"a": 1, "b": {"c": "x", "d": None}, "e": 0.5}
    assert list(differences(wanted, wanted)) == []
    assert list(differences({"a": 2, "b": {"c": "y", "f": [1]}}, wanted)) == [
        Difference(("a",), 2, 1),
        Difference(("b", "c"), "y", "x"),
        Difference(("b", "f"), [1], None),
        Difference(("e",), None, 0.5),
    ]


def test_equal_descriptions_have_one_key():
    assert key_of({"a": 1, "b": {"c": None, "d": 2}}) == key_of({"b": {"d": 2, "e": None}, "a": 1})
    assert key_of({"a": 1, "b": {"d": 2}}) != key_of({"a": 1, "b": {"d": 3}})


def test_a_lock_is_let_go_of_however_the_work_ends(tmp_path):
    def fail():
        with RunFolder(tmp_path).lock():
            RunFolder(tmp_path).claim(HELD)  # beside the lock
            with pytest.raises(ConfigError, match="is working in"), RunFolder(tmp_path).lock():
                pytest.fail("two at once")
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            fail()
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_claim_that_is_taken_back_leaves_room_for_another(tmp_path):
    with RunFolder(tmp_path / "run").lock():
        RunFolder(tmp_path / "run").claim({"seeds": 1})
        (tmp_path / "run" / "part").mkdir()
        (tmp_path / "run" / "part" / "log").touch()
        RunFolder(tmp_path / "run").release()
        RunFolder(tmp_path / "run").claim({"seeds": 2})
    assert read_object(tmp_path / "run" / "run.json") == {"seeds": 2}


def test_work_is_done_once_and_a_finished_run_takes_no_lock(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for left in (True, False):
        with folder.work(HELD, folder.result.exists) as unfinished:
            assert unfinished == left
            assert (folder.path / ".run.lock").exists() == left
            if unfinished:
                folder.finish({"score": 1})
    assert read_object(folder.result) == {"score": 1}
    with pytest.raises(ConfigError, match="seed"), folder.work(HELD | {"seed": 1}, folder.result.exists):
        pytest.fail("another run")


def test_a_run_grows_where_it_may(tmp_path):
    growth = Growth("steps", lambda before: "" if before == 10 else "10 is where one can go on")
    folder = RunFolder(tmp_path, growth=growth)
    folder.claim({"steps": 10})
    assert folder.check({"steps": 15})
    folder.claim({"steps": 15})
    assert folder.description() == {"steps": 15}
    with pytest.raises(ConfigError, match="10 is where one can go on"):
        folder.claim({"steps": 20})
    with pytest.raises(ConfigError, match="other options: steps"):
        folder.claim({"steps": 5})


def test_files_of_something_else_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    for refused in (RunFolder(tmp_path).check, RunFolder(tmp_path).claim):
        with pytest.raises(ConfigError, match="do not belong to this run"):
            refused(HELD)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
