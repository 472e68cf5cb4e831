"""A sweep as Python shows it, from its folder and its ledger alone."""

from __future__ import annotations

import copy
import pickle
from contextlib import closing
from pathlib import Path

import pytest
from ended import make_certification, write_bounded, write_sweep, write_trials

import rltune
from rltune.driver import run
from rltune.errors import ConfigError, StudyError
from rltune.ledger.storage import open_ledger


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


def test_trials_are_a_frame_with_the_best_first(folder):
    sweep = rltune.open_sweep(write_sweep(folder / "s", 6))
    frame = sweep.trials
    assert list(frame.columns) == ["trial", "state", "score", "env_steps", "stopped", "lr"]
    assert list(frame["trial"]) == [5, 4, 3, 2, 1, 0]
    assert frame["score"].iloc[0] == pytest.approx(5 * 1000 / 100)
    assert list(frame["state"]) == ["complete"] * 3 + ["stopped"] * 3
    assert frame["lr"].iloc[0] == pytest.approx(1e-2)


def test_curves_are_a_frame_with_a_row_a_report(folder):
    frame = rltune.open_sweep(write_sweep(folder / "s", 4)).curves
    assert list(frame.columns[:3]) == ["trial", "env_steps", "score"]
    assert list(frame[frame["trial"] == 3]["env_steps"]) == [200, 400, 600, 800, 1000]
    assert list(frame[frame["trial"] == 3]["score"].dropna()) == [12, 18, 24, 30]


def test_a_sweep_without_trials_has_empty_frames_and_no_best(folder):
    sweep = rltune.open_sweep(write_sweep(folder / "s", 0, status=None))
    assert (len(sweep.trials), len(sweep.curves), sweep.best, sweep.outcome) == (0, 0, None, None)
    assert sweep.status == "running"
    assert "0 trials" in repr(sweep)
    assert "0 trials" in sweep._repr_html_()


def test_the_best_is_the_winner_with_what_it_was_certified(folder):
    path = write_sweep(folder / "s", 6, make_certification())
    with closing(open_ledger(path)) as ledger:
        winner = {"trial": 3, "params": {"lr": 1e-3}, "evaluation": None}
        ledger.change_sweep(winner=winner, model={"uri": "models:/cartpole-ppo/1"})
    best = rltune.open_sweep(path).best
    assert (best.name, best.trial, best.params, best.model) == ("trial 3", 3, {"lr": 1e-3}, "models:/cartpole-ppo/1")
    assert best.certified is not None
    assert [best.certified[key] for key in ("median", "low", "high", "worst", "difference")] == [99, 97, 101, 97, 18]
    assert best.certified["verdict"] == "winner, better"
    assert str(best).startswith("trial 3: 99 ")
    assert str(best).endswith("lr=0.001")
    assert best.score == pytest.approx(30.0)


def test_the_best_has_its_checkpoint_where_it_lies_here(folder):
    path = write_sweep(folder / "s", 2)
    with closing(open_ledger(path)) as ledger:
        ledger.change_sweep(winner={"trial": 1, "params": {}, "checkpoint": "trials/1/a/best-9"})
    assert rltune.open_sweep(path).best.checkpoint is None
    (path / "trials/1/a/best-9/algorithm").mkdir(parents=True)
    assert rltune.open_sweep(path).best.checkpoint == path / "trials/1/a/best-9/algorithm"


def test_the_best_of_a_running_sweep_is_the_one_so_far(folder):
    trials = [("COMPLETE", 1e-3, [1.0, 5.0]), ("FAIL", 1e-2, [9.0]), ("RUNNING", 1e-4, [7.0])]
    best = rltune.open_sweep(write_trials(folder / "s", trials)).best
    assert (best.trial, best.score, best.certified) == (0, 5.0, None)


@pytest.mark.parametrize(("status", "word"), [("running", "running"), ("interrupted", "interrupted")])
def test_states_are_the_words_of_the_terminal(folder, status, word):
    trials = [("COMPLETE", 1e-3, [1.0, 5.0]), ("FAIL", 1e-2, [9.0]), ("RUNNING", 1e-4, [7.0])]
    path = write_trials(folder / "s", trials)
    with closing(open_ledger(path)) as ledger:
        ledger.change_sweep(status=status)
    assert set(rltune.open_sweep(path).trials["state"]) == {"complete", "failed", word}


def test_a_notebook_shows_the_verdict_and_ten_trials(folder):
    page = rltune.open_sweep(write_sweep(folder / "<s>", 12, make_certification()))._repr_html_()
    assert page.count("<tr") == 11
    assert "and 2 more" in page
    assert "&lt;s&gt;" in page
    assert "<s>" not in page


def test_a_sweep_is_opened_by_name_by_folder_or_as_the_newest(folder, monkeypatch):
    write_sweep(folder / "first", 2)
    monkeypatch.chdir(folder.parent)
    for name in ("first", "latest", Path("outputs/first"), "outputs/first", folder / "first"):
        assert rltune.open_sweep(name).folder == folder / "first"
    assert rltune.open_sweep("first", output_dir=folder).name == "first"
    with closing(rltune.SweepRef("first").open_ledger()) as ledger:
        assert ledger.name == "first"


def test_a_pickled_sweep_holds_no_password(folder):
    login = "postgresql+psycopg://me:s3cret@db.example/rl"
    content = pickle.dumps(rltune.open_sweep(write_sweep(folder / "s", 2), ledger_url=login))
    assert b"s3cret" not in content
    assert len(pickle.loads(content).trials) == 2


@pytest.mark.parametrize("name", ["firts", 3, None, "", "/etc", ["first"]])
def test_a_sweep_that_is_none_is_refused_with_what_there_is(name, folder, monkeypatch):
    write_sweep(folder / "first", 2)
    monkeypatch.chdir(folder.parent)
    with pytest.raises(rltune.RltuneError) as refused:
        rltune.open_sweep(name)
    assert refused.value.allowed
    assert refused.value.fix


def test_a_wrong_attribute_is_answered_with_what_there_is(folder):
    sweep = rltune.open_sweep(write_sweep(folder / "s", 2))
    with pytest.raises(AttributeError, match="policy, report, resume"):
        _ = sweep.result
    with pytest.raises(AttributeError, match=r"params\['lr'\]"):
        _ = sweep.best.lr
    with pytest.raises(AttributeError, match="evaluation, certified"):
        _ = sweep.best.median
    assert not hasattr(sweep.best, "median")
    assert copy.deepcopy(sweep.best) == sweep.best


def test_open_sweeps_stand_for_their_folders(folder):
    sweeps = [rltune.open_sweep(write_sweep(folder / name, 4, make_certification())) for name in ("one", "two")]
    assert [row.name for row in rltune.compare_sweeps(sweeps).rows] == ["one", "two"]
    assert rltune.open_sweep(sweeps[0]).folder == sweeps[0].folder
    assert rltune.compare_sweeps(str(sweeps[0].folder)).rows[0].name == "one"


@pytest.mark.parametrize("trial", [7, -1, "1", 1.0, True])
def test_a_policy_of_a_trial_without_one_is_refused(trial, folder):
    sweep = rltune.open_sweep(write_sweep(folder / "s", 2))
    with pytest.raises(rltune.RltuneError):
        sweep.policy(trial)


@pytest.mark.slow  # Optuna and Plotly draw
def test_the_report_is_written_and_named(folder):
    page = rltune.open_sweep(write_sweep(folder / "s", 4)).report()
    assert page == folder / "s" / "report" / "index.html"
    assert "<title>s" in page.read_text()


def test_the_policy_of_winner_and_trial_says_what_it_is(outputs):
    sweep = rltune.open_sweep("cartpole-done", output_dir=outputs)
    assert {"ppo", "CartPole-v1,"} <= set(repr(sweep.policy()).split())
    assert repr(sweep.policy(1)).endswith(": Box(4,) -> Discrete(2)>")


def test_the_front_is_a_frame_with_the_second_objective(folder):
    sweep = rltune.open_sweep(write_bounded(folder / "s"))
    assert list(sweep.front.columns) == ["trial", "score", "train_s", "lr"]
    assert sweep.front[["trial", "score", "train_s"]].values.tolist() == [[1, 90.0, 50.0], [2, 80.0, 40.0]]
    frame = sweep.trials
    assert list(frame.columns) == ["trial", "state", "breaks", "score", "train_s", "env_steps", "stopped", "lr"]
    assert list(frame["breaks"]) == ["", "", "train_s=75.25, not < 60", "train_s=80, not < 60"]
    assert sweep.best.trial == 1


def test_a_sweep_with_one_objective_has_no_front(folder):
    with pytest.raises(StudyError) as refused:
        rltune.open_sweep(write_sweep(folder / "s", 2)).front  # noqa: B018
    assert "objective.second.key=" in refused.value.fix


def test_a_resume_may_leave_out_code_that_is_not_here(folder, monkeypatch):
    sweep = rltune.open_sweep(write_sweep(folder / "s", 2, None, "interrupted", "tracking.kinds=[gone_module:Log]"))
    begun = []
    monkeypatch.setattr(run, "drive", lambda plan, _: begun.append(plan))
    with pytest.raises(ConfigError) as refused:
        sweep.resume()
    assert refused.value.key == "tracking.kinds"
    sweep.resume(tracking={"kinds": []})
    assert [plan.tracking.kinds for plan in begun] == [[]]
    with pytest.raises(StudyError) as refused:
        sweep.resume(seed=3)
    assert refused.value.key == "seed"
    assert "tracking" in refused.value.allowed


def test_a_setting_without_its_name_does_not_resume_a_sweep(folder):
    with pytest.raises(StudyError) as refused:
        rltune.open_sweep(write_bounded(folder / "s")).resume("budget.trials=48")
    assert refused.value.key == "changes"
    assert "resume(budget=" in refused.value.fix


def test_a_resume_keeps_what_trials_were_judged_by(folder):
    sweep = rltune.open_sweep(write_bounded(folder / "s"))
    with pytest.raises(StudyError) as refused:
        sweep.resume(constraints={"train_s": "< 90"})
    assert refused.value.key == "constraints"
    assert "budget" in refused.value.allowed
