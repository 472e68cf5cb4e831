"""A sweep that is shown in a real MLflow, driven by hand."""

from __future__ import annotations

import time

from rltune.config.uris import resolve_uri
from rltune.tracking.tracker import MLflowTracker, TrackingSettings


class Sweep:
    """What a sweep's driver would keep: the runs' ids and the longest call."""

    def __init__(self, folder, uri=None, name="first"):
        self.ids, self.longest_s = {}, 0.0
        self.name = name
        settings = TrackingSettings(uri, "cartpole", name, folder / "outputs" / name / "tracking")
        self.uri, self.spool_dir = resolve_uri(uri), settings.spool_dir
        self.tracker = MLflowTracker(settings, self.ids.__setitem__)

    def __getattr__(self, method):
        def timed(*args, **kwargs):
            began = time.perf_counter()
            getattr(self.tracker, method)(*args, **kwargs)
            self.longest_s = max(self.longest_s, time.perf_counter() - began)

        return timed

    def begin(self, run_id=None, trials=2, **params):
        self.start(
            run_id=run_id,
            params={"algo": "ppo", **params},
            tags={"seed": "1"},
            config_text="algo: ppo\n",
            packages="ray==2.60.0\n",
        )
        for number in range(trials):
            self.trial_started(number, {"lr": 0.001 * (number + 1)}, {}, None)
        return self

    def reports(self, steps, trials=2):
        for step in steps:
            for number in range(trials):
                self.report(number, {"objective": float(step + number), "learner/loss": 0.5}, step)
        return self

    def settle(self, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        while self.tracker.num_pending and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.tracker.num_pending == 0
        return self

    @property
    def client(self):
        from mlflow import MlflowClient

        return MlflowClient(self.uri)

    def runs(self):
        """The sweep's runs as they stand in MLflow, by name: a doubled name fails."""
        experiment = self.client.get_experiment_by_name("cartpole")
        runs = self.client.search_runs(
            [experiment.experiment_id], f"tags.`rltune.sweep` = '{self.name}'", max_results=1000
        )
        names = [run.info.run_name for run in runs]
        assert len(names) == len(set(names)), names
        return {run.info.run_name: run for run in runs}

    def steps(self, name, metric="objective"):
        history = self.client.get_metric_history(self.runs()[name].info.run_id, metric)
        return sorted(point.step for point in history)

    def wait_for(self, words, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        seen = []
        while time.monotonic() < deadline:
            seen += self.tracker.warnings()
            if any(words in message for message in seen):
                return
            time.sleep(0.02)
        raise AssertionError(f"'{words}' was not among {seen}")


def end(sweep, number, state, **more):
    """End a trial's run, without metrics, tags or artifacts unless they are given."""
    sweep.trial_ended(number, state, **{"metrics": {}, "tags": {}, "artifacts": None, **more})
