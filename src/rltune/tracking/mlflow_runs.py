"""Read and write the runs of one MLflow experiment.

Every call may be repeated without effect: runs carry a tag by which they are found again, and MLflow's stores keep a
point of the same name, step, time and value once (``SqlAlchemyStore._log_metrics``, 3.17). This module uses
MlflowClient alone, never the fluent API, so that the user's active run is left alone. Runs in the feed's thread.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rltune.formatting import name_user
from rltune.secrets import redact, reveal
from rltune.tracking.mlflow_client import connect_mlflow, make_artifact_folder

MAX_NAME, MAX_VALUE = 250, 6000  # MLflow refuses longer names and values (in characters).
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
# With these error codes MLflow itself has read a request and refuses its content. It answers them with 400 and 404; a
# proxy's own 400 and 404 have other codes. Everything else is an outage: 5xx, also of a locked or deadlocked database;
# 429, a limit of requests; 413, a proxy's limit of sizes, which smaller pages pass; 401 and 403, a login that has
# expired; BAD_REQUEST, any other error of the database; and a time-out.
REFUSALS = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")
PARENT_TAG = "mlflow.parentRunId"
Point = tuple[str, float, int, int]  # Name, value, step, and time in milliseconds since the epoch.


class MissingError(Exception):
    """What was to be sent does not exist on this side, however often it is tried."""


class MLflowRuns:
    """The MLflow runs of one experiment.

    Args:
        uri: MLflow's tracking address with its login, which is written into no run.
        experiment: The environment's name.

    Attributes:
        experiment: The id of the experiment; empty before it was opened.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        self._uri, self._experiment_name = uri, experiment
        self._client: Any = None
        self.experiment = ""

    def connect(self) -> None:
        """Import MLflow and open the store, which takes seconds, mostly to migrate a new SQLite store."""
        self._client = connect_mlflow(reveal(self._uri))

    def open_experiment(self) -> None:
        """Open the MLflow experiment of the sweep, which is created if missing and restored if deleted."""
        experiment = self._client.get_experiment_by_name(self._experiment_name)
        if experiment is None:
            try:
                self._client.create_experiment(self._experiment_name, tags=EXPERIMENT_TAGS)
            except Exception as error:  # Another sweep may have created the experiment at the same time.
                if getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS":
                    raise
            experiment = self._client.get_experiment_by_name(self._experiment_name)
        if experiment.lifecycle_stage == "deleted":  # MLflow keeps the name of a deleted experiment, so it is restored.
            self._client.restore_experiment(experiment.experiment_id)
        self.experiment = str(experiment.experiment_id)
        make_artifact_folder(experiment.artifact_location)

    # -- Methods for runs ---------------------------------------------------------------------------------------------

    def read(self, run_id: str | None) -> Any:
        """Return the run with this id, restored if it was deleted; None if the server has no such run."""
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

    def search(self, tag: str, value: str, more: str = "", *, like: bool = False) -> list[Any]:
        """Return all runs with this value of a tag, the oldest first."""
        runs: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self.experiment],
                f"tags.`{tag}` {'LIKE' if like else '='} '{value}'{more}",
                max_results=500,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            runs.extend(page)
            token = page.token
            if not token:
                return runs

    def read_last_times(self, run: Any, names: Iterable[str]) -> set[int]:
        """Return the times of a run's newest points of the named metrics, in milliseconds since the epoch."""
        cleaned = {_clean_name(name) for name in names}
        return {int(metric.timestamp) for metric in run.data.to_proto().metrics if metric.key in cleaned}

    def create(self, name: str, tags: Mapping[str, str], start_ms: int) -> str:
        """Create an MLflow run and return its id."""
        given = {name: text for name, text in self._clean(tags).items() if text}
        tags = {"mlflow.source.name": "rltune", "mlflow.user": name_user(), **given}
        return str(self._client.create_run(self.experiment, start_ms, tags, name).info.run_id)

    def compare(
        self, run: Any, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Continue in the experiment of an existing run, and return the params and tags that the run lacks.

        MLflow does not change params: one that differs becomes the tag ``resumed.<name>``.
        """
        self.experiment = str(run.info.experiment_id)
        values, before = self._clean(params), run.data.params
        labels = self._clean(tags)
        labels |= {f"resumed.{key}": value for key, value in values.items() if before.get(key, value) != value}
        return (
            {key: value for key, value in values.items() if key not in before},
            {key: value for key, value in labels.items() if run.data.tags.get(key, "") != value},
        )

    def log(self, run_id: str, params: Mapping[str, Any], tags: Mapping[str, str], points: Sequence[Point]) -> None:
        """Log any number of params, tags and points to an MLflow run, with up to 1,000 in each request.

        Points that are not finite are left out.
        """
        if not (params or tags or points):
            return
        from mlflow.entities import Metric, Param, RunTag

        rows = [Param(key, value) for key, value in self._clean(params).items()]
        labels = [RunTag(key, value) for key, value in self._clean(tags).items()]
        metrics = [
            Metric(_clean_name(name), float(value), time_ms, step)
            for name, value, step, time_ms in points
            if math.isfinite(value)
        ]
        self._client.log_batch(run_id, metrics, rows, labels)

    def log_changed(self, run_id: str, metrics: Mapping[str, float], tags: Mapping[str, str], time_ms: int) -> None:
        """Log tags, and at step 0 those metrics whose value the run does not have yet."""
        before = self._client.get_run(run_id).data.metrics
        changed = {name: value for name, value in metrics.items() if before.get(_clean_name(name)) != value}
        self.log(run_id, {}, tags, [(name, value, 0, time_ms) for name, value in changed.items()])

    def log_text(self, run_id: str, text: str, file: str) -> None:
        """Save a text as an artifact of a run, without logins."""
        self._client.log_text(run_id, redact(text), file)

    def log_files(self, run_id: str, path: Path, folder: str | None) -> None:
        """Upload a file or a folder's content to a run's artifacts.

        Raises:
            MissingError: It is gone.
        """
        if not path.exists():
            raise MissingError(f"{path} is gone")
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        log(run_id, str(path), folder)

    def reopen(self, run_id: str) -> None:
        """Set the status of a run back to RUNNING."""
        self._client.update_run(run_id, status="RUNNING")

    def end(self, run_id: str, status: str, end_ms: int) -> None:
        """End an MLflow run with the status FINISHED, FAILED or KILLED."""
        self._client.set_terminated(run_id, status, end_ms)

    def drop_tag(self, run_id: str, tag: str) -> None:
        """Delete a tag of a run that has it."""
        self._client.delete_tag(run_id, tag)

    def _clean(self, texts: Mapping[str, Any]) -> dict[str, str]:
        """Convert params or tags to the texts that MLflow accepts, without logins."""
        return {_clean_name(name): redact(str(text))[:MAX_VALUE] for name, text in texts.items()}


def _clean_name(text: str) -> str:
    """Replace characters that MLflow does not accept in names; a name must also be a normalised relative path."""
    path = re.sub(r"[^/\w.\- :]", "_", str(text))[:MAX_NAME]
    return posixpath.normpath(path).lstrip("./") or "_"
