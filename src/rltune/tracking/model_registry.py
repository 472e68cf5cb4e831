"""Register models on an MLflow server without pickle, once per content, and set their aliases.

It has a client of its own, as any script would: the feed delivers reports and knows no models. It runs in the driver at
the end of the sweep, when the ledger has the ids of the runs that models belong to.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rltune.background import call_in_thread
from rltune.errors import describe_exception
from rltune.secrets import redact, reveal
from rltune.tracking.mlflow_client import REGISTRY_THREAD, connect_mlflow
from rltune.tracking.mlflow_runs import PARENT_TAG, REFUSALS

DIGEST_TAG = "rltune.digest"
MODEL_TAG = "rltune.model"  # The version of the model that was registered from this run or its child run.
LOOK_UP_S, REGISTER_S = 30.0, 180.0  # How long a look-up or a download, and a registration, may take with its retries.
RETRY_S = 2.0  # The pause after a request that MLflow did not answer.
# Another sweep may set the same alias at the same time; then setting it is tried again, at most this often.
ALIAS_TRIES = 5


@dataclass(frozen=True)
class RegisteredModel:
    """A version of a registered model: its ``uri`` and, if this sweep has just given it one, its ``alias``."""

    name: str
    version: str
    uri: str
    tags: Mapping[str, str]
    alias: str | None = None


Rank = Callable[[RegisteredModel], Any]  # Compares model versions: the one with the highest rank is the best.
T = TypeVar("T")


class RegistryError(Exception):
    """MLflow has not answered in time, or it refuses a request; the text has no login."""


class ModelRegistry:
    """The model registry of one MLflow server. A request is repeated during an outage, and given up after a time limit.

    Args:
        uri: MLflow's tracking address, with its login.
        is_urgent: Whether only seconds are left, as after a signal: then no answer is waited for.
    """

    def __init__(self, uri: str, is_urgent: Callable[[], bool] = lambda: False) -> None:
        self._uri, self._is_urgent = uri, is_urgent
        self._client: Any = None

    def look_up(self, name: str, alias: str) -> tuple[RegisteredModel | None, int]:
        """Return the version with an alias, or None if no version has it, and the number of the newest version before.

        Raises:
            RegistryError: MLflow does not answer, or refuses.
        """
        return self._call(partial(self._look_up, name, alias), LOOK_UP_S)

    def fetch(self, version: RegisteredModel, folder: Path) -> Path:
        """Download the files of a model version into a folder.

        Raises:
            RegistryError: MLflow does not send them.
        """
        return self._call(partial(self._fetch, version, folder), LOOK_UP_S)

    def register(
        self,
        *,
        name: str,
        run_id: str,
        model: Mapping[str, Any],
        tags: Mapping[str, str],
        description: str,
        about: str = "",
        alias: str | None = None,
        newest: int = 0,
        rank: Rank = lambda version: 0,
    ) -> RegisteredModel:
        """Log a trial's policy as an MLflow model and register it; the same content is registered only once.

        Args:
            name: The registered model.
            run_id: The MLflow run that trained it. This and the runs above it list the model.
            model: Keyword arguments of mlflow.pyfunc.save_model: python_model, artifacts, signature ...
            tags: The version's tags.
            description: The version's description, Markdown.
            about: The registered model's description, Markdown; an existing one is kept.
            alias: The alias that is to name the version; None leaves all aliases.
            newest: The newest version's number when the alias was looked up.
            rank: Ranks this version and those that other sweeps have registered since; the highest gets the alias.

        Returns:
            The version; its ``alias`` is None if that was not moved.

        Raises:
            RegistryError: MLflow does not answer, or refuses.
        """
        tags = {label: redact(str(value)) for label, value in tags.items()}

        def register() -> RegisteredModel:
            version = self._register(name, run_id, model, tags, redact(description), redact(about))
            return self._set_alias(version, alias, newest, rank) if alias else version

        return self._call(register, REGISTER_S)

    def _call(self, request: Callable[[], T], limit_s: float) -> T:
        deadline = time.monotonic() + limit_s

        def send() -> T:
            self._client = self._client or connect_mlflow(reveal(self._uri))
            return request()

        while True:
            try:
                return call_in_thread(send, REGISTRY_THREAD, lambda: self._is_urgent() or time.monotonic() > deadline)
            except Exception as error:
                # An outage may pass; MLflow's refusals, and errors of other kinds, would come again.
                code = getattr(error, "error_code", None)
                is_chance = isinstance(error, OSError) if code is None else code not in (*REFUSALS, "PERMISSION_DENIED")
                if not is_chance or self._is_urgent() or time.monotonic() + RETRY_S > deadline:
                    raise RegistryError(describe_exception(error)[:200]) from error
            time.sleep(RETRY_S)

    # -- Methods that run in the thread of a request ------------------------------------------------------------------

    def _register(
        self, name: str, run_id: str, model: Mapping[str, Any], tags: Mapping[str, str], description: str, about: str
    ) -> RegisteredModel:
        digest = _content_digest(model)
        try:
            self._client.create_registered_model(name, description=about)
        except Exception as error:
            if getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS":
                raise
            if not self._client.get_registered_model(name).description:
                self._client.update_registered_model(name, about)
        lineage = self._read_lineage(run_id)
        version = self._find_version(name, run_id, digest)
        if version is None:
            version = self._create_version(name, lineage, model, {**tags, DIGEST_TAG: digest}, description)
        registered = _as_registered(version)
        for run in lineage:
            self._client.set_tag(run.info.run_id, MODEL_TAG, registered.uri)
        return registered

    def _read_lineage(self, run_id: str) -> list[Any]:
        """Return an MLflow run and those above it; runs that a user has deleted are restored."""
        runs, above = list[Any](), str(run_id)
        while above:
            runs.append(self._client.get_run(above))
            if runs[-1].info.lifecycle_stage == "deleted":
                self._client.restore_run(above)
            above = runs[-1].data.tags.get(PARENT_TAG, "")
        return runs

    def _find_version(self, name: str, run_id: str, digest: str) -> Any:
        versions = self._client.search_model_versions(f"run_id = '{run_id}'")
        same = [version for version in versions if version.name == name and version.tags.get(DIGEST_TAG) == digest]
        return same[0] if same else None

    def _create_version(
        self, name: str, lineage: list[Any], model: Mapping[str, Any], tags: Mapping[str, str], description: str
    ) -> Any:
        from mlflow.entities import LoggedModelOutput

        run_id, experiment = str(lineage[0].info.run_id), str(lineage[0].info.experiment_id)
        # A driver that was killed before it registered the version may have left this logged model, which is reused.
        same = f"tags.`{DIGEST_TAG}` = '{tags[DIGEST_TAG]}' AND source_run_id = '{run_id}'"
        logged = next(iter(self._client.search_logged_models([experiment], same)), None)
        if logged is None:
            logged = self._client.create_logged_model(experiment, "policy", run_id, dict(tags), None, "policy")
        for run in lineage:  # MLflow refuses to add an output to a run a second time.
            if all(output.model_id != logged.model_id for output in getattr(run.outputs, "model_outputs", [])):
                self._client.log_outputs(run.info.run_id, [LoggedModelOutput(logged.model_id, 0)])
        if str(logged.status) != "READY":
            self._log_files(logged, run_id, model)
        # An MLflow server only accepts models:/ addresses. With a database store, such an address would be resolved by
        # MLflow's global tracking URI, so the location is given instead.
        source = f"models:/{logged.model_id}" if self._uri.startswith("http") else logged.artifact_location
        return self._client.create_model_version(
            name, source, run_id, dict(tags), description=description, model_id=logged.model_id
        )

    def _log_files(self, logged: Any, run_id: str, model: Mapping[str, Any]) -> None:
        # This repeats mlflow.pyfunc.log_model, which would use MLflow's global state and read the history of every
        # metric.
        import mlflow.pyfunc
        from mlflow.models import Model

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            card = Model(
                artifact_path=logged.artifact_location,
                model_uuid=logged.model_id,
                run_id=run_id,
                model_id=logged.model_id,
            )
            # save_model sets its own warning filters first and would print to the console, so its warnings are caught
            # here.
            with warnings.catch_warnings(record=True):
                mlflow.pyfunc.save_model(str(path), mlflow_model=card, **model)
            self._client.log_model_artifacts(logged.model_id, str(path))
        self._client.finalize_logged_model(logged.model_id, "READY")

    def _set_alias(self, registered: RegisteredModel, alias: str, newest: int, rank: Rank) -> RegisteredModel:
        """Set an alias to this version, unless the alias names a better version, such as one of another sweep.

        MLflow has no transaction for this. So each sweep that sets the alias afterwards reads all versions that were
        registered since it looked the alias up, and corrects the alias: the last sweep to set it sees all of them.

        """
        best = registered
        for _ in range(ALIAS_TRIES):
            self._client.set_registered_model_alias(best.name, alias, best.version)
            best = max((registered, *self._find_newer(registered.name, newest)), key=rank)
            current = self._find_alias(best.name, alias)
            if current is not None and current.version == best.version:
                break
        return replace(registered, alias=alias) if best.version == registered.version else registered

    def _look_up(self, name: str, alias: str) -> tuple[RegisteredModel | None, int]:
        # The newest version is read first: one that another sweep registers in between is then ranked, too.
        newest = max((int(version.version) for version in self._find_newer(name, 0)), default=0)
        return self._find_alias(name, alias), newest

    def _find_newer(self, name: str, number: int) -> list[RegisteredModel]:
        versions = self._client.search_model_versions(f"name = '{name}'")
        return [_as_registered(version) for version in versions if int(version.version) > number]

    def _find_alias(self, name: str, alias: str) -> RegisteredModel | None:
        try:
            return _as_registered(self._client.get_model_version_by_alias(name, alias))
        except Exception as error:
            # If the model exists and the alias does not, MLflow reports an invalid parameter.
            if getattr(error, "error_code", "") in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def _fetch(self, version: RegisteredModel, folder: Path) -> Path:
        from mlflow.artifacts import download_artifacts

        source = self._client.get_model_version_download_uri(version.name, version.version)
        return Path(download_artifacts(artifact_uri=source, dst_path=str(folder), tracking_uri=reveal(self._uri)))


def _content_digest(model: Mapping[str, Any]) -> str:
    """Return a digest of a model's content: of its files, or else of its arguments."""
    digest = hashlib.sha256()
    for name, location in sorted(dict(model.get("artifacts") or {}).items()):
        root = Path(str(location))
        files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
        for path in files:
            digest.update(f"{name}/{path.relative_to(root)}".encode())
            digest.update(path.read_bytes() if path.is_file() else str(location).encode())
    if not model.get("artifacts"):
        digest.update(repr(sorted((key, str(value)) for key, value in model.items())).encode())
    return digest.hexdigest()[:32]


def _as_registered(version: Any) -> RegisteredModel:
    name, number = str(version.name), str(version.version)
    return RegisteredModel(name, number, f"models:/{name}/{number}", dict(version.tags))
