"""Carry out the outbox's operations on an MLflow server: a sweep's runs, idempotent.

Operations name trials, never run ids, and may be repeated without effect. So a lost answer, a kill or a resume doubles
neither a run nor a point. This module uses MlflowClient alone, never the fluent API: the user's active run is left
alone. `rltune.tracking.tracker` is its face, the outbox its caller. Runs in the driver, in the outbox's sender thread.
"""

from __future__ import annotations

import getpass
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rltune.tracking.journal import JOINING, Op
from rltune.tracking.mlflow_client import connect_mlflow
from rltune.tracking.model_registry import ModelRegistry
from rltune.tracking.run_names import Key, find_parent_key, make_child_name

STATUS = {"COMPLETE": "FINISHED", "PRUNED": "KILLED", "FAIL": "FAILED", "INTERRUPTED": "KILLED"}
KEY_TAG, TRIAL_TAG, SWEEP_TAG, ROOT_TAG = "rltune.key", "rltune.trial", "rltune.sweep", "rltune.root"
KEPT_TAG, CHECKPOINT = "rltune.checkpoint", "checkpoint"  # which checkpoint the run's artifact folder of that name is
PARENT_TAG = "mlflow.parentRunId"
MAX_METRICS, MAX_PARAMS = 1000, 100  # per log_batch, MLflow 3.17
MAX_NAME, MAX_VALUE = 250, 6000  # characters


class MLflowRuns:
    """The parent run and its children.

    Args:
        uri: MLflow's tracking address, complete with its login.
        experiment: The environment's name.
        sweep: The parent run's name.
        key: What marks this sweep's runs, so that they are found when their ids were lost.
        on_run: Called with the trial's number (None: the parent) and the run's id once the run exists.
    """

    def __init__(
        self, uri: str, experiment: str, sweep: str, key: str, on_run: Callable[[Key | None, str], None]
    ) -> None:
        self._uri, self._experiment_name, self._sweep, self._key = uri, experiment, sweep, key
        self._on_run = on_run
        self._client: Any = None
        self._experiment = ""
        self._ids: dict[Key | None, str] = {}
        self._unsure = False
        # Steps on the server by open run and metric: the server would take a step twice.
        self._logged: dict[Key | None, dict[str, set[int]]] = {}
        # What each kind of operation does. Kinds are read from a journal, so that nothing else may be called by them.
        self._single: dict[str, Callable[[Op], None]] = {
            "start": self._start_sweep,
            "text": self._log_text,
            "trial": self._start_trial,
            "end": self._end_trial,
            "settle": self._settle,
            "artifact": self._log_artifact,
            "describe": self._describe,
            "close": self._close,
        }

    def connect(self) -> None:
        """Import MLflow (2 s), open the store (a new SQLite one is migrated, seconds) and the experiment."""
        self._client = connect_mlflow(self._uri)
        self._experiment = self._open_experiment()

    def apply(self, ops: Sequence[Op]) -> None:
        """Carry out operations of one kind and trial: reports together, any other operation alone."""
        try:
            if ops[0]["op"] in JOINING:
                self._log_reports(ops)
            else:
                (op,) = ops
                self._single[op["op"]](op)
        except Exception:
            self._unsure = True  # a run may have been created and the answer lost
            raise

    def is_alive(self) -> bool:
        """Return whether the server answers a question about the experiment."""
        return bool(self._client.get_experiment(self._experiment))

    def is_hopeless(self, error: Exception) -> bool:
        """Return whether the server refused, or a file to send is gone: another attempt would fail alike."""
        code = getattr(error, "error_code", "")
        return code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST") or isinstance(error, FileNotFoundError)

    def _start_sweep(self, op: Op) -> None:
        self._open(None, op, self._sweep)

    def _log_text(self, op: Op) -> None:
        self._client.log_text(self._find_or_create(None, op["t"], reopen=False), op["text"], op["file"])

    def _start_trial(self, op: Op) -> None:
        self._open(op["trial"], op, make_child_name(op["trial"]))

    def _log_reports(self, ops: Sequence[Op]) -> None:
        number = ops[0]["trial"]
        run_id = self._find_or_create(number, ops[0]["t"])
        points = [(key, value, op["step"], op["t"]) for op in ops for key, value in op["metrics"].items()]
        self._log_points(number, run_id, points)

    def _end_trial(self, op: Op) -> None:
        number = op["trial"]
        run_id = self._find_or_create(number, op["t"])
        last = max((step for steps in self._logged[number].values() for step in steps), default=0)
        self._log_points(number, run_id, [(key, value, last, op["t"]) for key, value in op["metrics"].items()])
        self._log_texts(run_id, {}, op["tags"])
        self._client.set_terminated(run_id, STATUS[op["state"]], op["t"])
        del self._logged[number]

    def _settle(self, op: Op) -> None:
        """Send what a killed driver wrote into the ledger alone about trials that have ended."""
        parent = self._find_or_create(None, op["t"])
        runs = {run.data.tags.get(TRIAL_TAG): run for run in self._children(parent) + self._certified_runs(parent)}
        for name, known in op["ended"].items():
            number: Key = int(name) if name.isdecimal() else name
            run, path = runs.get(name), known["artifacts"]
            if run is None or run.info.status == "RUNNING":
                self._open(number, {**known, "t": op["t"], "tags": {}}, make_child_name(number))
                points = [("objective", value, int(step), op["t"]) for step, value in known["reports"].items()]
                self._log_points(number, self._ids[number], points)
                self._end_trial({**op, **known, "trial": number})
            if path and Path(path).exists() and (run is None or KEPT_TAG not in run.data.tags):
                self._log_artifact({**op, "trial": number, "path": path, "folder": CHECKPOINT})

    def _log_artifact(self, op: Op) -> None:
        path = Path(op["path"])
        if not path.exists():
            raise FileNotFoundError(f"{path} is gone")
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        run_id = self._find_or_create(op["trial"], op["t"], reopen=False)
        log(run_id, str(path), op["folder"])
        if op["folder"] == CHECKPOINT:
            self._client.set_tag(run_id, KEPT_TAG, path.name)  # last: without it a resume sends the files again

    def _describe(self, op: Op) -> None:
        from mlflow.entities import Metric

        run_id = self._find_or_create(op["trial"], op["t"], reopen=False)
        known = self._client.get_run(run_id).data.metrics
        new = {key: value for key, value in op["metrics"].items() if key not in known}
        metrics = [Metric(_clean_name(key), value, op["t"], 0) for key, value in new.items()]
        if metrics:
            self._client.log_batch(run_id, metrics=metrics)
        self._log_texts(run_id, {}, op["tags"])

    def _close(self, op: Op) -> None:
        parent = self._find_or_create(None, op["t"])
        running = "" if self._unsure else " and attributes.status = 'RUNNING'"
        children = self._children(parent, running) + self._certified_runs(parent, running)
        if self._unsure:
            self._delete_doubles(self._search_all(None, op["t"]))
        for run in self._delete_doubles(children):
            if run.info.status == "RUNNING":
                self._client.set_terminated(run.info.run_id, "KILLED", op["t"])
        self._client.set_terminated(parent, op["status"], op["t"])
        self._ids.clear()
        self._logged.clear()

    def _open_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment_name)
        if found is None:
            try:
                return str(self._client.create_experiment(self._experiment_name))
            except Exception:  # another sweep may have created it meanwhile
                found = self._client.get_experiment_by_name(self._experiment_name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":  # its name stays taken: there is no other way to log under it
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _find_or_create(self, number: Key | None, time_ms: int, *, reopen: bool = True) -> str:
        """Find or create the run of a trial (None: the parent); with ``reopen`` it is ready for points."""
        if number in self._logged or (not reopen and number in self._ids):
            return self._ids[number]
        if not reopen and (found := self._search(number, time_ms)):
            self._ids[number] = str(found.info.run_id)
            return self._ids[number]
        name = self._sweep if number is None else make_child_name(number)
        return self._open(number, {"t": time_ms, "run_id": self._ids.get(number)}, name)

    def _open(self, number: Key | None, op: Op, name: str) -> str:
        """Create a run or continue it. Changed params become tags, because MLflow's params stand for good."""
        run = self._get_run(op.get("run_id")) or self._search(number, op["t"])
        params = {_clean_name(key): str(value)[:MAX_VALUE] for key, value in op.get("params", {}).items()}
        tags = {_clean_name(key): str(value)[:MAX_VALUE] for key, value in op.get("tags", {}).items()}
        tags |= self._make_tags(number, op["t"])
        history: dict[str, set[int]] = defaultdict(set)
        if run is None:
            run = self._client.create_run(self._experiment, op["t"], tags, name)
            tags = {}
        else:
            self._unsure |= number is None  # a killed driver may have left doubles
            if run.info.status != "RUNNING":
                self._client.update_run(run.info.run_id, status="RUNNING")
            history, before = self._read_steps(run), run.data.params
            tags |= {f"resumed.{key}": value for key, value in params.items() if before.get(key, value) != value}
            params = {key: value for key, value in params.items() if key not in before}
            tags = {key: value for key, value in tags.items() if run.data.tags.get(key) != value}
        self._ids[number], self._logged[number] = run.info.run_id, history
        self._on_run(number, run.info.run_id)
        self._log_texts(run.info.run_id, params, tags)
        return str(run.info.run_id)

    def _make_tags(self, number: Key | None, time_ms: int) -> dict[str, str]:
        tags = {SWEEP_TAG: self._sweep, "mlflow.source.name": "rltune"}
        try:
            tags["mlflow.user"] = getpass.getuser()
        except (KeyError, OSError):  # a container's user may have no name
            tags["mlflow.user"] = str(os.getuid())
        if number is None:
            return tags | {KEY_TAG: self._key}
        upper = find_parent_key(number)
        if upper is not None:
            tags[ROOT_TAG] = self._find_or_create(None, time_ms)
        return tags | {PARENT_TAG: self._find_or_create(upper, time_ms, reopen=upper is None), TRIAL_TAG: str(number)}

    def _get_run(self, run_id: str | None) -> Any:
        """Return the run with this id, undeleted if need be; None when the server has no such run."""
        if not run_id:
            return None
        try:
            run = self._client.get_run(run_id)
        except Exception as error:
            if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        if run.info.lifecycle_stage == "deleted":
            self._client.restore_run(run_id)
        return run

    def _search(self, number: Key | None, time_ms: int) -> Any:
        """Return the run that carries this sweep's mark, the oldest if an outage left several; None without one."""
        runs = self._search_all(number, time_ms)
        return runs[0] if runs else None

    def _search_all(self, number: Key | None, time_ms: int) -> list[Any]:
        if number is None:
            return self._find(f"tags.`{KEY_TAG}` = '{self._key}'")
        parent = self._find_or_create(find_parent_key(number), time_ms, reopen=find_parent_key(number) is None)
        return self._children(parent, f" and tags.`{TRIAL_TAG}` = '{number}'")

    def _children(self, parent: str, more: str = "") -> list[Any]:
        return self._find(f"tags.`{PARENT_TAG}` = '{parent}'{more}")

    def _certified_runs(self, parent: str, more: str = "") -> list[Any]:
        """Return a certification's runs, which stand below trials."""
        return self._find(f"tags.`{ROOT_TAG}` = '{parent}'{more}")

    def _find(self, where: str) -> list[Any]:
        runs: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment],
                where,
                max_results=500,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            runs.extend(page)
            token = page.token
            if not token:
                return runs

    def _delete_doubles(self, runs: Iterable[Any]) -> list[Any]:
        """Keep one run a trial: a creation whose answer was lost may have happened after all, and was repeated."""
        kept: dict[str, Any] = {}
        known = set(self._ids.values())
        for run in sorted(runs, key=lambda run: (run.info.run_id not in known, -len(run.data.metrics))):
            trial = run.data.tags.get(TRIAL_TAG, "")
            if trial in kept:
                self._client.delete_run(run.info.run_id)
            else:
                kept[trial] = run
        return list(kept.values())

    def _read_steps(self, run: Any) -> dict[str, set[int]]:
        """Return the steps that each metric of a run has on the server."""
        history: dict[str, set[int]] = defaultdict(set)
        for key in run.data.metrics:
            history[key] = {metric.step for metric in self._client.get_metric_history(run.info.run_id, key)}
        return history

    def _log_points(self, number: Key | None, run_id: str, points: Iterable[tuple[str, Any, int, int]]) -> None:
        from mlflow.entities import Metric

        logged = self._logged[number]
        fresh: dict[tuple[str, int], Metric] = {}
        for name, value, step, time_ms in points:
            key = _clean_name(name)
            # the outbox has turned non-finite values into text
            if isinstance(value, int | float) and step not in logged[key]:
                fresh.setdefault((key, step), Metric(key, float(value), time_ms, step))
        metrics = list(fresh.values())
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])
        for key, step in fresh:
            logged[key].add(step)

    def _log_texts(self, run_id: str, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param, RunTag

        rows = [Param(_clean_name(key), value) for key, value in params.items()]
        labels = [RunTag(_clean_name(key), str(value)[:MAX_VALUE]) for key, value in tags.items()]
        for start in range(0, max(len(rows), len(labels)), MAX_PARAMS):
            part = slice(start, start + MAX_PARAMS)
            self._client.log_batch(run_id, params=rows[part], tags=labels[part])

    def registry(self) -> ModelRegistry:
        """Return the models of the same server."""
        return ModelRegistry(self._client, self._uri, self._experiment)

    def run_id_of(self, number: Key) -> str:
        """Return the id of a trial's run; find or create the run."""
        return self._find_or_create(number, int(time.time() * 1000), reopen=False)


def _clean_name(text: str) -> str:
    """Replace what MLflow does not accept in a name."""
    return re.sub(r"[^/\w.\- :]", "_", text)[:MAX_NAME]
