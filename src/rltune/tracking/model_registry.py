"""Register models on an MLflow server without pickle, once per content, and set their aliases.

`rltune.tracking.mlflow_tracker` uses it; `mlflow_runs` has the runs that models belong to. Runs in the feed's thread.
"""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rltune.secrets import reveal

DIGEST_TAG = "rltune.digest"
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


class ModelRegistry:
    """The model registry of one MLflow server.

    Args:
        client: MLflow's.
        uri: Its tracking address.
        experiment: The id of the experiment that models are logged in.
    """

    def __init__(self, client: Any, uri: str, experiment: str) -> None:
        self._client, self._uri, self._experiment = client, uri, experiment

    def register(
        self,
        name: str,
        runs: Sequence[str],
        model: Mapping[str, Any],
        tags: Mapping[str, str],
        description: str,
        about: str,
    ) -> RegisteredModel:
        """Log a pyfunc model to a run and register it, once per content; see `MLflowTracker.register`.

        Args:
            name: The registered model.
            runs: The run that trained it, then the other runs that should list it.
            model: As for `MLflowTracker.register`.
            tags: The version's.
            description: The version's.
            about: The registered model's description, unless it has one.
        """
        digest = _content_digest(model)
        try:
            self._client.create_registered_model(name, description=about)
        except Exception as error:
            if getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS":
                raise
            if not self._client.get_registered_model(name).description:
                self._client.update_registered_model(name, about)
        version = self._find_version(name, runs[0], digest)
        if version is None:
            version = self._create_version(name, runs, model, {**tags, DIGEST_TAG: digest}, description)
        return _as_registered(version)

    def _find_version(self, name: str, run_id: str, digest: str) -> Any:
        versions = self._client.search_model_versions(f"run_id = '{run_id}'")
        same = [version for version in versions if version.name == name and version.tags.get(DIGEST_TAG) == digest]
        return same[0] if same else None

    def _create_version(
        self, name: str, runs: Sequence[str], model: Mapping[str, Any], tags: Mapping[str, str], description: str
    ) -> Any:
        from mlflow.entities import LoggedModelOutput

        run_id = runs[0]
        # A driver that was killed before it registered the version may have left this logged model, which is reused.
        same = f"tags.`{DIGEST_TAG}` = '{tags[DIGEST_TAG]}' AND source_run_id = '{run_id}'"
        logged = next(iter(self._client.search_logged_models([self._experiment], same)), None)
        if logged is None:
            logged = self._client.create_logged_model(self._experiment, "policy", run_id, dict(tags), None, "policy")
        for output_of in runs:  # MLflow refuses to add an output to a run a second time.
            outputs = getattr(self._client.get_run(output_of).outputs, "model_outputs", [])
            if all(output.model_id != logged.model_id for output in outputs):
                self._client.log_outputs(output_of, [LoggedModelOutput(logged.model_id, 0)])
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

    def set_alias(self, registered: RegisteredModel, alias: str, newest: int, rank: Rank) -> RegisteredModel:
        """Set an alias to this version, unless the alias names a better version, such as one of another sweep.

        MLflow has no transaction for this. So each sweep that sets the alias afterwards reads all versions that were
        registered since it looked the alias up, and corrects the alias: the last sweep to set it sees all of them.

        Args:
            registered: The version.
            alias: The alias.
            newest: The newest version's number when the alias was looked up.
            rank: Ranks versions; the highest is to have the alias.

        Returns:
            The version; its ``alias`` is None if a better version has it.
        """
        best = registered
        for _ in range(ALIAS_TRIES):
            self._client.set_registered_model_alias(best.name, alias, best.version)
            best = max((registered, *self._find_newer(registered.name, newest)), key=rank)
            current = self.champion(best.name, alias)
            if current is not None and current.version == best.version:
                break
        return replace(registered, alias=alias) if best.version == registered.version else registered

    def find_newest(self, name: str) -> int:
        """Return the number of the newest version of a registered model; 0 if it has none."""
        return max((int(version.version) for version in self._find_newer(name, 0)), default=0)

    def _find_newer(self, name: str, number: int) -> list[RegisteredModel]:
        versions = self._client.search_model_versions(f"name = '{name}'")
        return [_as_registered(version) for version in versions if int(version.version) > number]

    def champion(self, name: str, alias: str) -> RegisteredModel | None:
        """Return the version with an alias; None if the model or the alias does not exist."""
        try:
            return _as_registered(self._client.get_model_version_by_alias(name, alias))
        except Exception as error:
            # If the model exists and the alias does not, MLflow reports an invalid parameter.
            if getattr(error, "error_code", "") in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def fetch(self, version: RegisteredModel, folder: Path) -> Path:
        """Download the files of a model version into a folder."""
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
