"""A sweep's runs on an MLflow server: what one operation of the spool does there.

Operations name trials, never run ids, and may be repeated without effect, so that a lost answer, a kill or
a resume doubles neither a run nor a point. `tracking` is its face, `spool` its caller. Always MlflowClient,
never the fluent API: the user's active run is left alone. Runs in the driver, in the spool's sender thread.
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

from rltune.tracking.journal import Op
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
        on_run: Told the trial's number (None: the parent) and the run's id once it exists.
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
        # per open run: metric -> its steps on the server, because the server takes a step twice
        self._logged: dict[Key | None, dict[str, set[int]]] = {}

    def connect(self) -> None:
        """Import MLflow (2 s), open the store (a new SQLite one is migrated, seconds) and the experiment."""
        self._client = connect_mlflow(self._uri)
        self._experiment = self._open_experiment()

    def apply(self, ops: Sequence[Op]) -> None:
        """Carry out operations of one kind and trial."""
        try:
            getattr(self, "_" + ops[0]["op"])(*([ops] if ops[0]["op"] in ("report", "progress") else ops))
        except Exception:
            self._unsure = True  # a run may have been created and the answer lost
            raise

    def alive(self) -> bool:
        """Whether the server answers a question about the experiment."""
        return bool(self._client.get_experiment(self._experiment))

    def hopeless(self, error: Exception) -> bool:
        """Whether the server refused, or a file to send is gone."""
        code = getattr(error, "error_code", "")
        return code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST") or isinstance(error, FileNotFoundError)

    def _start(self, op: Op) -> None:
        self._open(None, op, self._sweep)

    def _text(self, op: Op) -> None:
        self._client.log_text(self._id(None, op["t"], reopen=False), op["text"], op["file"])

    def _trial(self, op: Op) -> None:
        self._open(op["trial"], op, make_child_name(op["trial"]))

    def _report(self, ops: Sequence[Op]) -> None:
        number = ops[0]["trial"]
        run_id = self._id(number, ops[0]["t"])
        points = [(key, value, op["step"], op["t"]) for op in ops for key, value in op["metrics"].items()]
        self._log_points(number, run_id, points)

    _progress = _report

    def _end(self, op: Op) -> None:
        number = op["trial"]
        run_id = self._id(number, op["t"])
        last = max((step for steps in self._logged[number].values() for step in steps), default=0)
        self._log_points(number, run_id, [(key, value, last, op["t"]) for key, value in op["metrics"].items()])
        self._log_texts(run_id, {}, op["tags"])
        self._client.set_terminated(run_id, STATUS[op["state"]], op["t"])
        del self._logged[number]

    def _settle(self, op: Op) -> None:
        """Do again what a killed driver had told the ledger alone about trials that have ended."""
        parent = self._id(None, op["t"])
        shown = {run.data.tags.get(TRIAL_TAG): run for run in self._children(parent) + self._below(parent)}
        for name, known in op["ended"].items():
            number: Key = int(name) if name.isdecimal() else name
            run, path = shown.get(name), known["artifacts"]
            if run is None or run.info.status == "RUNNING":
                self._open(number, {**known, "t": op["t"], "tags": {}}, make_child_name(number))
                points = [("objective", value, int(step), op["t"]) for step, value in known["reports"].items()]
                self._log_points(number, self._ids[number], points)
                self._end({**op, **known, "trial": number})
            if path and Path(path).exists() and (run is None or KEPT_TAG not in run.data.tags):
                self._artifact({**op, "trial": number, "path": path, "folder": CHECKPOINT})

    def _artifact(self, op: Op) -> None:
        path = Path(op["path"])
        if not path.exists():
            raise FileNotFoundError(f"{path} is gone")
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        run_id = self._id(op["trial"], op["t"], reopen=False)
        log(run_id, str(path), op["folder"])
        if op["folder"] == CHECKPOINT:
            self._client.set_tag(run_id, KEPT_TAG, path.name)  # afterwards: without it a resume does it again

    def _describe(self, op: Op) -> None:
        from mlflow.entities import Metric

        run_id = self._id(op["trial"], op["t"], reopen=False)
        known = self._client.get_run(run_id).data.metrics
        metrics = [Metric(_name(key), value, op["t"], 0) for key, value in op["metrics"].items() if key not in known]
        if metrics:
            self._client.log_batch(run_id, metrics=metrics)
        self._log_texts(run_id, {}, op["tags"])

    def _close(self, op: Op) -> None:
        parent = self._id(None, op["t"])
        running = "" if self._unsure else " and attributes.status = 'RUNNING'"
        children = self._children(parent, running) + self._below(parent, running)
        if self._unsure:
            self._without_doubles(self._search_all(None, op["t"]))
        for run in self._without_doubles(children):
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

    def _id(self, number: Key | None, time_ms: int, *, reopen: bool = True) -> str:
        """The run of a trial (None: the parent), found or created, and with ``reopen`` ready for points."""
        if number in self._logged or (not reopen and number in self._ids):
            return self._ids[number]
        if not reopen and (found := self._search(number, time_ms)):
            self._ids[number] = str(found.info.run_id)
            return self._ids[number]
        name = self._sweep if number is None else make_child_name(number)
        return self._open(number, {"t": time_ms, "run_id": self._ids.get(number)}, name)

    def _open(self, number: Key | None, op: Op, name: str) -> str:
        """Create a run or continue it. Changed params become tags, because MLflow's params stand for good."""
        run = self._known(op.get("run_id")) or self._search(number, op["t"])
        params = {_name(key): str(value)[:MAX_VALUE] for key, value in op.get("params", {}).items()}
        tags = {_name(key): str(value)[:MAX_VALUE] for key, value in op.get("tags", {}).items()}
        tags |= self._own_tags(number, op["t"])
        if run is None:
            run = self._client.create_run(self._experiment, op["t"], tags, name)
            tags, history = {}, _no_steps()
        else:
            self._unsure |= number is None  # a killed driver's doubts are unknown
            if run.info.status != "RUNNING":
                self._client.update_run(run.info.run_id, status="RUNNING")
            history, before = self._history(run), run.data.params
            tags |= {f"resumed.{key}": value for key, value in params.items() if before.get(key, value) != value}
            params = {key: value for key, value in params.items() if key not in before}
            tags = {key: value for key, value in tags.items() if run.data.tags.get(key) != value}
        self._ids[number], self._logged[number] = run.info.run_id, history
        self._on_run(number, run.info.run_id)
        self._log_texts(run.info.run_id, params, tags)
        return str(run.info.run_id)

    def _own_tags(self, number: Key | None, time_ms: int) -> dict[str, str]:
        tags = {SWEEP_TAG: self._sweep, "mlflow.source.name": "rltune"}
        try:
            tags["mlflow.user"] = getpass.getuser()
        except (KeyError, OSError):  # a container's user may have no name
            tags["mlflow.user"] = str(os.getuid())
        if number is None:
            return tags | {KEY_TAG: self._key}
        upper = find_parent_key(number)
        if upper is not None:
            tags[ROOT_TAG] = self._id(None, time_ms)
        return tags | {PARENT_TAG: self._id(upper, time_ms, reopen=upper is None), TRIAL_TAG: str(number)}

    def _known(self, run_id: str | None) -> Any:
        """The run with this id, undeleted if need be; None when the server has no such run."""
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
        """The run that carries this sweep's mark, the oldest if an outage left several; None without one."""
        runs = self._search_all(number, time_ms)
        return runs[0] if runs else None

    def _search_all(self, number: Key | None, time_ms: int) -> list[Any]:
        if number is None:
            return self._find(f"tags.`{KEY_TAG}` = '{self._key}'")
        parent = self._id(find_parent_key(number), time_ms, reopen=find_parent_key(number) is None)
        return self._children(parent, f" and tags.`{TRIAL_TAG}` = '{number}'")

    def _children(self, parent: str, more: str = "") -> list[Any]:
        return self._find(f"tags.`{PARENT_TAG}` = '{parent}'{more}")

    def _below(self, parent: str, more: str = "") -> list[Any]:
        """The runs of a certification."""
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

    def _without_doubles(self, runs: Iterable[Any]) -> list[Any]:
        """One run a trial: a creation whose answer was lost may have happened after all, and was repeated."""
        kept: dict[str, Any] = {}
        known = set(self._ids.values())
        for run in sorted(runs, key=lambda run: (run.info.run_id not in known, -len(run.data.metrics))):
            trial = run.data.tags.get(TRIAL_TAG, "")
            if trial in kept:
                self._client.delete_run(run.info.run_id)
            else:
                kept[trial] = run
        return list(kept.values())

    def _history(self, run: Any) -> dict[str, set[int]]:
        history = _no_steps()
        for key in run.data.metrics:
            history[key] = {metric.step for metric in self._client.get_metric_history(run.info.run_id, key)}
        return history

    def _log_points(self, number: Key | None, run_id: str, points: Iterable[tuple[str, Any, int, int]]) -> None:
        from mlflow.entities import Metric

        logged = self._logged[number]
        fresh: dict[tuple[str, int], Metric] = {}
        for name, value, step, time_ms in points:
            key = _name(name)
            # a non-finite value was turned into text by the spool
            if isinstance(value, int | float) and step not in logged[key]:
                fresh.setdefault((key, step), Metric(key, float(value), time_ms, step))
        metrics = list(fresh.values())
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])
        for key, step in fresh:
            logged[key].add(step)

    def _log_texts(self, run_id: str, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param, RunTag

        rows = [Param(_name(key), value) for key, value in params.items()]
        labels = [RunTag(_name(key), str(value)[:MAX_VALUE]) for key, value in tags.items()]
        for start in range(0, max(len(rows), len(labels)), MAX_PARAMS):
            part = slice(start, start + MAX_PARAMS)
            self._client.log_batch(run_id, params=rows[part], tags=labels[part])

    def registry(self) -> ModelRegistry:
        """The models of the same server."""
        return ModelRegistry(self._client, self._uri, self._experiment)

    def run_of(self, number: Key) -> str:
        """A trial's run."""
        return self._id(number, int(time.time() * 1000), reopen=False)


def _no_steps() -> dict[str, set[int]]:
    return defaultdict(set)


def _name(text: str) -> str:
    """A name that MLflow accepts."""
    return re.sub(r"[^/\w.\- :]", "_", text)[:MAX_NAME]
