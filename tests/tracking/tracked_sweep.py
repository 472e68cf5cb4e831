"""A sweep that is shown in a real MLflow: its ledger is written by hand, as a driver would."""

from __future__ import annotations

import time
from collections import Counter

from rltune.checkpoints.store import open_store
from rltune.config.uris import resolve_uri
from rltune.ledger.ledger import Ledger
from rltune.records import CheckpointRecord, Report
from rltune.tracking.feed import Feeds
from rltune.tracking.mlflow_tracker import MLflowTracker
from rltune.tracking.tracker import SweepDescription


class Sweep:
    """A driver's ledger and tracker, and the longest that a call took; the folder's ledger is opened or made."""

    def __init__(self, folder, uri=None, name="first"):
        self.name, self.uri, self.longest_s = name, resolve_uri(uri), 0.0
        self.folder = folder / "outputs" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "ledger.db"
        self.ledger = Ledger(f"sqlite:///{path}", name, create=not path.exists())
        self.tracker = Feeds()

    def begin(self, trials=2, **params):
        self.start(**params)
        for number in range(trials):
            self.add_trial(lr=0.001 * (number + 1))
        return self

    def start(self, **params):
        texts = {"config.yaml": "algo: ppo\n", "packages.txt": "ray==2.60.0\n"}
        return self.show(params={"algo": "ppo", **params}, tags={"seed": "1"}, texts=texts)

    def show(self, **facts):
        key = self.ledger.sweep().key
        sweep = SweepDescription(self.name, key, self.folder, self.ledger, "cartpole", self.uri, **facts)
        self.tracker = Feeds(self.ledger, open_store(self.folder), [MLflowTracker(sweep)])
        return self

    def add_trial(self, **params):
        number = self.ledger.trials.add(params, [7, 8]).number
        self.wake()
        return number

    def add_run(self, of_trial, seed_index, **params):
        number = self.ledger.runs.add(params, [9], key="k", of_trial=of_trial, seed_index=seed_index).number
        self.wake()
        return number

    def report(self, number, env_steps, table=None, **numbers):
        numbers = {"score": float(env_steps + number), "learner/loss": 0.5} | numbers
        (table or self.ledger.trials).add_report(Report(number, env_steps, numbers["score"], numbers))
        self.wake()

    def reports(self, steps, trials=2):
        for step in steps:
            for number in range(trials):
                self.report(number, step)
        return self

    def end(self, number, state, table=None, **facts):
        (table or self.ledger.trials).end(number, state, facts.pop("reason", "whole budget"), **facts)
        self.wake()

    def interrupt(self, number):
        self.ledger.trials.interrupt(number)
        self.wake()

    def wake(self):
        began = time.perf_counter()
        self.tracker.wake()
        self.longest_s = max(self.longest_s, time.perf_counter() - began)

    def write_checkpoint(self, number, text="1.0"):
        path = f"trials/{number}/first/best-200"
        (self.folder / path).mkdir(parents=True)
        (self.folder / path / "weights.bin").write_text(text)
        return CheckpointRecord(path, 200, 1.0, "digest")

    def settle(self, timeout_s=120.0):
        """Wait until all was sent."""
        self.tracker.wait_until_sent(timeout_s)
        assert not self.is_behind()
        return self

    def is_behind(self):
        reports = self.ledger.read_reports_after(self.ledger.read_delivered_report(MLflowTracker.name), 1)
        return bool(reports or self.ledger.read_pending_trials(MLflowTracker.name, with_checkpoints=True))

    def kill(self):
        """End it as SIGKILL would: no more is heard of it."""
        self.tracker.abandon()
        self.ledger.close()

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
        key = self.ledger.sweep().key  # those of an older state of the ledger have another one
        runs = [
            run for run in runs if key in (run.data.tags.get("rltune.entry", "") + run.data.tags.get("rltune.key", ""))
        ]
        names = [run.info.run_name for run in runs]
        assert len(names) == len(set(names)), names
        return {run.info.run_name: run for run in runs}

    def statuses(self):
        return {name: run.info.status for name, run in sorted(self.runs().items())}

    def steps(self, name, metric="score"):
        history = self.client.get_metric_history(self.runs()[name].info.run_id, metric)
        return sorted(point.step for point in history)

    def check_curves(self):
        """Every metric of every run has the ledger's points, none twice; return how many points there are."""
        runs, num_points = self.runs(), 0
        for table in (self.ledger.trials, self.ledger.runs):
            for record in table.records():
                wanted = Counter(
                    (name, report.nominal_steps, value, int(report.time_s * 1000))
                    for report in table.read_reports(record.number)
                    for name, value in report.numbers.items()
                )
                run = runs[record.run_key.name]
                assert run.info.run_id == record.mlflow_run_id
                there = Counter(
                    (name, point.step, point.value, point.timestamp)
                    for name in run.data.metrics
                    if not name.startswith(("certified_", "compare/"))
                    for point in self.client.get_metric_history(run.info.run_id, name)
                )
                assert there == wanted, record.name
                num_points += wanted.total()
                if "score" in run.data.metrics:
                    assert self.steps(run.info.run_name, "compare/score") == self.steps(run.info.run_name)
                    assert run.data.metrics["score"] == list(record.scores.values())[-1]
                ends = self.client.get_metric_history(run.info.run_id, "certified_score")
                assert len({point.step for point in ends}) == len(ends), record.name
        for name in ("best_score", "compare/best_score"):
            curve = self.client.get_metric_history(runs[self.name].info.run_id, name)
            assert [(point.step, point.value) for point in curve] == self.best_curve()
        return num_points

    def best_curve(self):
        curves, total, steps, points = {}, 0, {}, []
        for _, kind, report in self.ledger.read_reports_after(0, 1_000_000):
            if kind == "trials":
                total += 2 * (report.env_steps - steps.get(report.number, 0))
                steps[report.number] = report.env_steps
                curves.setdefault(report.number, []).append(report.score)
                best = max(curve[-1] for curve in curves.values())
                if not points or points[-1][1] != best:
                    points.append((total, best))
        return points

    def wait_for(self, words, timeout_s=120.0):
        deadline = time.monotonic() + timeout_s
        seen = []
        while time.monotonic() < deadline:
            seen += self.tracker.warnings()
            if any(words in message for message in seen):
                return
            time.sleep(0.02)
        raise AssertionError(f"'{words}' was not among {seen}")
