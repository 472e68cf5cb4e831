"""Download a policy's files from MLflow, and upload files to the MLflow run that a policy came from. Runs anywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rltune.compat.mlflow_store import check_version, follow_move
from rltune.config.uris import keep_local_direct
from rltune.errors import PolicyError, choices, describe_exception
from rltune.policies.uri import Source

# MLflow reads this variable when it is imported, so it is set before; a value that the user has set is kept.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
keep_local_direct()


def download_part(source: Source, part: str, folder: str) -> Path:
    """Download the policy or the RLlib checkpoint of a registered model or of a run.

    Args:
        source: ``models:/<name>@<alias>``, ``models:/<name>/<version>``, ``runs:/<id>`` or ``runs:/<id>/<path>``.
        part: ``policy`` or ``algorithm``.

    Raises:
        PolicyError: There is no such model, run or file; the nearest name is given.
    """
    # A policy's files are small, so MLflow's progress bar would only clutter the output.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError  # If its database is damaged, MLflow lets SQLAlchemy's error through.

    if not _has_store():
        raise source.make_error(
            f"there is no MLflow store at {mlflow.get_tracking_uri()}",
            "the store that the sweep logged to",
            "run this in the sweep's project folder, or set MLFLOW_TRACKING_URI",
        )
    check_version(mlflow.get_tracking_uri(), "policy")
    follow_move(mlflow.get_tracking_uri())
    try:
        copy = Path(mlflow.artifacts.download_artifacts(artifact_uri=_find_artifact(source, part), dst_path=folder))
        if any(copy.iterdir()):
            return copy
        place = Path(mlflow.MlflowClient().get_run(str(find_run(source))).info.artifact_uri).parents[2]
    except (MlflowException, OSError, SQLAlchemyError) as error:
        raise _make_missing_error(source, error) from error
    here = Path.cwd() / place.name
    problem = f"MLflow has none of its files: it looks for them in {place}"
    raise source.make_error(problem, f"the folder {place.name} that was there", f"move it to {place}, or to {here}")


def find_run(source: Source) -> str | None:
    """Return the id of the MLflow run that a model was registered from, or that the URI names.

    Returns:
        The run's id; None where the URI is another kind's, or MLflow does not know it here.
    """
    from mlflow.exceptions import MlflowException

    if source.scheme == "runs":
        return source.path.partition("/")[0]
    if source.scheme != "models" or not _has_store():
        return None
    try:
        return _read_models_run(source)
    except MlflowException:
        return None


def upload_folder(run_id: str, folder: Path, name: str) -> bool:
    """Upload a folder to an MLflow run as the artifact ``name``; return False if MLflow refuses it or has no store."""
    import mlflow
    from mlflow.exceptions import MlflowException

    if not _has_store():
        return False
    try:
        mlflow.MlflowClient().log_artifacts(run_id, str(folder), name)
    except MlflowException:
        return False
    return True


def _has_store() -> bool:
    """Return whether MLflow's store exists; MLflow would create an empty SQLite file in place of a missing one."""
    import mlflow

    store = mlflow.get_tracking_uri()
    return not store.startswith("sqlite:///") or Path(store.removeprefix("sqlite:///")).exists()


def _find_artifact(source: Source, part: str) -> str:
    """Return the MLflow artifact URI of a policy's files, in a registered model or in a run."""
    from mlflow import MlflowClient

    if source.scheme == "models":
        # A registered model has no RLlib checkpoint; the run from which it was registered has one.
        return source.uri if part == "policy" else f"runs:/{_read_models_run(source)}/checkpoint/{part}"
    run_id, _, path = source.path.partition("/")
    if path:
        return source.uri
    client = MlflowClient()
    if client.list_artifacts(run_id, f"checkpoint/{part}"):
        return f"runs:/{run_id}/checkpoint/{part}"
    outputs = client.get_run(run_id).outputs
    if part == "policy" and outputs and outputs.model_outputs:
        return f"models:/{outputs.model_outputs[-1].model_id}"
    raise FileNotFoundError(f"run {run_id} has neither checkpoint/{part} nor a model")


def _read_models_run(source: Source) -> str:
    """Return the id of the run from which a model version was registered."""
    from mlflow import MlflowClient

    client = MlflowClient()
    name, at, alias = source.path.partition("@")
    version = client.get_model_version_by_alias(name, alias) if at else client.get_model_version(*name.rsplit("/", 1))
    return str(version.run_id)


def _make_missing_error(source: Source, error: Exception) -> PolicyError:
    """Make the error for a model or run that MLflow lacks; it suggests existing names if MLflow can list them."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    problem = describe_exception(error)
    if source.scheme == "runs":
        return source.make_error(
            problem, "the run of a trial that ran to its end", "its id is in the run's page of `mlflow ui`"
        )
    try:
        names = [model.name for model in MlflowClient().search_registered_models(max_results=1000)]
    except (MlflowException, SQLAlchemyError):
        return source.make_error(problem, "a tracking store that answers", "check MLFLOW_TRACKING_URI")
    name = re.split(r"[/@]", source.path)[0]
    allowed = "an alias or version that it has" if name in names else choices(name, names)
    return source.make_error(problem, allowed, "see the Models page of `mlflow ui`")
