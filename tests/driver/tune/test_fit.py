"""What Tune leaves behind when it cannot go on."""

from __future__ import annotations

import errno
import json

import pytest
from ray import tune
from toy import TOY, ledger

from rltune.checkpoints.clients import STORAGE_AWAY
from rltune.driver.run import run_sweep
from rltune.driver.tune.fit import run_trials
from rltune.errors import UnavailableError
from rltune.ledger.disk_full import DISK_FULL
from tests.driver.placed import PlacedTrial


def test_a_full_disk_is_no_trials_fault(open_mine, monkeypatch):
    def fit(tuner):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tune.Tuner, "fit", fit)
    with open_mine("certify=off") as sweep:
        with pytest.raises(UnavailableError):
            run_trials(sweep)
        assert sweep.stopper.reason == DISK_FULL
        assert not (sweep.plan.folder / ".tune").exists()


def test_another_error_of_tunes_is_not_swallowed(open_mine, monkeypatch):
    def fit(tuner):
        raise ValueError("Tune broke")

    monkeypatch.setattr(tune.Tuner, "fit", fit)
    with open_mine("certify=off") as sweep, pytest.raises(ValueError, match="Tune broke"):
        run_trials(sweep)


def test_a_second_signal_ends_the_search_at_once(open_mine, monkeypatch):
    def fit(tuner):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune.Tuner, "fit", fit)
    with open_mine("certify=off") as sweep:
        run_trials(sweep)
        assert sweep.stopper.reason.startswith("interrupted")
        assert sweep.stopper.signal == 2


@pytest.mark.usefixtures("ray_cluster")
def test_a_trials_env_runners_and_learners_get_its_bundles(request_of, stream, monkeypatch):
    """With a logical GPU, which belongs to the learner and not to the trial's own process."""
    monkeypatch.setattr("rltune.driver.plan.preflight", lambda *_: ())
    beside = ("algo.env_runners.num_env_runners=2", "algo.learners.num_learners=1", "resources.gpus_per_trial=1")
    machine = ("cluster.num_cpus=4", "cluster.num_gpus=2")  # the tests' Ray
    config = request_of(*TOY, *beside, *machine, "tracking=off", "scheduler=none", "budget.trials=2")
    outcome = run_sweep(config, stream=stream, trainable=PlacedTrial)
    assert [record.state for record in ledger(outcome)] == ["COMPLETE"] * 2
    for number in (0, 1):
        own, *others = json.loads((outcome.folder / "trials" / str(number) / "placed.json").read_text())
        assert {one["group"] for one in others} == {own["group"]} != {None}
        assert [one["cpus"] for one in others] == [1, 1, 1]
        assert [len(one["gpus"]) for one in (own, *others)] == [0, 0, 0, 1]


def test_a_bucket_that_is_away_ends_with_the_command_that_goes_on(open_mine, monkeypatch):
    with open_mine("certify=off") as sweep:
        monkeypatch.setattr(tune.Tuner, "fit", lambda tuner: sweep.stopper.request(STORAGE_AWAY))
        with pytest.raises(UnavailableError) as raised:
            run_trials(sweep)
    assert (raised.value.key, raised.value.exit_code) == ("storage", 75)
    assert "resume sweep=mine" in raised.value.fix
