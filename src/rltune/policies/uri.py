"""Where a policy's files are: from any URI form to a folder on this machine.

``models:/<name>@<alias>`` · ``models:/<name>/<version>`` · ``runs:/<id>`` · ``sweep:<name>`` ·
``sweep:<name>/<trial>`` · a folder. Nothing is loaded here, and only the first three import mlflow.
``policy`` reads what is found. Runs anywhere.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltune.config.capabilities import list_algos
from rltune.errors import PolicyError, choices
from rltune.study.checkpoints import compute_digest

FORMS = (
    "models:/<name>@champion, models:/<name>/<version>, runs:/<id>, sweep:<name or latest>, "
    "sweep:<name>/<trial>, or a checkpoint's folder"
)
# What a sweep's folder holds; the first that exists also dates it, for sweep:latest.
_MARKS = ("config.yaml", "study.db", "summary.json")
_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]+):", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """What a policy is loaded from.

    Attributes:
        uri: As the person wrote it.
        output_dir: The folder of all sweeps.
        trust: Take files that are not those that the ledger recorded.
    """

    uri: str
    output_dir: Path
    trust: bool = False


class NeedsRLlibError(PolicyError):
    """A checkpoint whose network acts in RLlib alone."""


@contextmanager
def is_trusted(source: Source) -> Iterator[Path]:
    """The folder of RLlib's checkpoint, which runs code when it is loaded, if its author may be trusted.

    Raises:
        PolicyError: There is none, another user owns its files, or they come from a tracking server.
    """
    if not source.trust and source.uri.lower().startswith(("models:", "runs:")):
        raise _untrusted(source.uri, "comes from a tracking store")
    with locate_policy(source, "algorithm") as folder:
        strangers = [path for path in (folder, *folder.rglob("*")) if path.stat().st_uid != os.getuid()]
        if strangers and not source.trust:
            raise _untrusted(source.uri, f"{strangers[0]} belongs to another user")
        yield folder


def _untrusted(uri: str, why: str) -> PolicyError:
    return PolicyError(
        f"policy={uri}: {why}, and RLlib's checkpoints run code when they are loaded",
        "checkpoints that you made",
        f"rltune.load_algorithm({uri!r}, trust=True) if you trust its author",
    )


@contextmanager
def locate_policy(source: Source, part: str = "policy") -> Iterator[Path]:
    """The folder with one part of a checkpoint, here for as long as the context is open.

    Args:
        source: Where to look.
        part: ``policy`` (the bundle) or ``algorithm`` (RLlib's checkpoint).

    Yields:
        The part's folder; a copy in a temporary folder where it came from MLflow.

    Raises:
        PolicyError: There is nothing at the URI, or not this part.
    """
    scheme = _SCHEME.match(source.uri)
    kind = scheme.group(1).lower() if scheme else ""
    if kind in ("models", "runs"):
        with tempfile.TemporaryDirectory(prefix="rltune-policy-") as copy:
            yield _part(_downloaded(source.uri, part, copy), part, source.uri)
    elif kind == "sweep":
        yield _part(_of_sweep(source), part, source.uri)
    elif kind and not Path(source.uri).exists():
        raise PolicyError(f"policy={source.uri}: unknown kind of address '{kind}:'", FORMS, "policy=sweep:latest")
    else:
        yield _part(Path(source.uri).expanduser().absolute(), part, source.uri)


def _part(folder: Path, part: str, uri: str) -> Path:
    """One part of a checkpoint in a folder that may be the checkpoint, the part or an MLflow model."""
    mark = "policy.json" if part == "policy" else "rllib_checkpoint.json"
    for place in (folder, folder / part, folder / "artifacts" / part):
        if (place / mark).is_file():
            return place
    found = sorted(path.parent for path in (folder / "artifacts").glob(f"*/{mark}"))
    if found:
        return found[0]
    reason = folder / "policy-missing.txt"
    if part == "policy" and reason.is_file():
        raise NeedsRLlibError(
            f"policy={uri}: {reason.read_text().strip()}",
            f"networks that act without RLlib: those of {list_algos(lambda row: row.network, 'and')}",
            f"python -m sweeps.evaluate policy=sweep:<name>, or rltune.load_algorithm({uri!r}): both run RLlib",
        )
    if not folder.exists():
        raise PolicyError(f"policy={uri}: there is no folder {folder}", FORMS, "policy=sweep:latest")
    raise PolicyError(f"policy={uri}: no {part} in {folder}", f"a folder that holds {mark} or {part}/{mark}", FORMS)


# -- sweeps -----------------------------------------------------------------------------


def _of_sweep(source: Source) -> Path:
    """The checkpoint of ``sweep:<name>`` (its winner) or ``sweep:<name>/<trial>`` (that trial's best)."""
    name, _, trial = source.uri.split(":", 1)[1].strip("/").partition("/")
    folder = _sweep_folder(name, source.output_dir)
    if trial:
        if not trial.isdigit():
            raise PolicyError(f"policy={source.uri}: '{trial}' is no trial", "a number", f"policy=sweep:{name}/0")
        return _of_trial(folder, int(trial), source)
    summary = folder / "summary.json"
    try:
        winner = json.loads(summary.read_text()).get("winner") if summary.is_file() else None
    except (ValueError, AttributeError):
        raise PolicyError(
            f"policy={source.uri}: {summary} is damaged",
            "the summary as the sweep wrote it",
            f"policy=sweep:{name}/<trial>, or rm {summary} to take the best trial of the ledger",
        ) from None
    if winner:
        return folder / str(winner["checkpoint"])
    return _best(folder, source)


def _sweep_folder(name: str, output_dir: Path) -> Path:
    """A sweep's folder by name, or the newest one's for ``latest``."""
    root = output_dir.expanduser().absolute()
    found: dict[str, float] = {}
    for folder in root.iterdir() if root.is_dir() else ():
        marks = [folder / mark for mark in _MARKS if (folder / mark).is_file()]
        if marks:
            found[folder.name] = marks[0].stat().st_mtime
    if name == "latest" and found:
        return root / max(found, key=lambda key: found[key])
    if name not in found:
        raise PolicyError(
            f"policy=sweep:{name}: no such sweep in {root}",
            choices(name, found),
            "python -m sweeps.list, from the folder that holds outputs/",
        )
    return root / name


def _trials(folder: Path) -> tuple[list[Any], bool]:
    """The ledger's trials, and whether a lower objective is better."""
    if not (folder / "study.db").is_file():
        raise PolicyError(
            f"policy=sweep:{folder.name}: {folder} has no ledger (study.db)",
            "a sweep whose study is in its own folder",
            f"policy={folder}/trials/<number>/<checkpoint>",
        )
    import optuna
    from optuna.study import StudyDirection

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.load_study(study_name=None, storage=f"sqlite:///{folder / 'study.db'}")
    return study.get_trials(deepcopy=False), study.direction == StudyDirection.MINIMIZE


def _of_trial(folder: Path, number: int, source: Source) -> Path:
    trials, _ = _trials(folder)
    with_one = [trial.number for trial in trials if trial.user_attrs.get("checkpoint")]
    allowed = f"trials with a checkpoint: {', '.join(map(str, with_one)) or 'none'}"
    if number >= len(trials):
        raise PolicyError(
            f"policy={source.uri}: {folder.name} has {len(trials)} trials",
            allowed,
            f"python -m sweeps.show sweep={folder.name}",
        )
    record = trials[number].user_attrs.get("checkpoint")
    if not record:
        state = trials[number].state.name
        raise PolicyError(
            f"policy={source.uri}: trial {number} ({state}) has no checkpoint",
            allowed,
            f"policy=sweep:{folder.name}",
        )
    return _recorded(folder, record, source)


def _best(folder: Path, source: Source) -> Path:
    """The best recorded checkpoint of a sweep without a winner; trials that ran to their end come first."""
    trials, minimise = _trials(folder)
    ranked = []
    for trial in trials:
        record = trial.user_attrs.get("checkpoint") or {}
        if trial.state.name != "FAIL" and record.get("objective") is not None:
            value = float(record["objective"])
            ranked.append((trial.state.name != "COMPLETE", value if minimise else -value, trial.number, record))
    if not ranked:
        raise PolicyError(
            f"policy={source.uri}: no trial of {folder.name} has a checkpoint yet",
            "a sweep with at least one finished episode",
            f"python -m sweeps.resume sweep={folder.name}",
        )
    return _recorded(folder, min(ranked)[3], source)


def _recorded(folder: Path, record: Mapping[str, Any], source: Source) -> Path:
    """A checkpoint of the ledger, if its files are still those that it recorded."""
    checkpoint = folder / str(record["path"])
    if not checkpoint.is_dir():
        raise PolicyError(
            f"policy={source.uri}: its checkpoint {checkpoint} is gone",
            "a trial whose checkpoint is still there; sweeps.prune leaves the best ones and what MLflow has",
            f"policy=sweep:{folder.name} is the winner; policy=runs:/<the trial's MLflow run>",
        )
    if not source.trust and record.get("digest") and compute_digest(checkpoint) != record["digest"]:
        raise PolicyError(
            f"policy={source.uri}: the files in {checkpoint} are not those that the ledger recorded",
            "an unchanged checkpoint",
            f"rltune.load_policy({source.uri!r}, trust=True) takes them as they are",
        )
    return checkpoint


# -- MLflow -----------------------------------------------------------------------------


def _downloaded(uri: str, part: str, copy: str) -> Path:
    """A registered model's or a run's files, copied into a folder."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # a bar for a few kilobytes
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    store = mlflow.get_tracking_uri()
    # MLflow would make an empty store in the current folder and then find nothing in it.
    if store.startswith("sqlite:///") and not Path(store.removeprefix("sqlite:///")).exists():
        raise PolicyError(
            f"policy={uri}: there is no MLflow store at {store}",
            "the store that the sweep logged to",
            "run this in the sweep's project folder, or set MLFLOW_TRACKING_URI",
        )
    try:
        return Path(mlflow.artifacts.download_artifacts(artifact_uri=_artifact(uri, part), dst_path=copy))
    except (MlflowException, OSError) as error:
        raise _not_found(uri, error) from error


def _artifact(uri: str, part: str) -> str:
    """The address of the files: of a model, or of a run's checkpoint or model."""
    from mlflow import MlflowClient

    client = MlflowClient()
    kind, rest = uri.split(":", 1)
    rest = rest.lstrip("/")
    if kind.lower() == "models":
        if part == "policy":
            return uri
        # A model is only the policy; the checkpoint to train on is with the run that it came from.
        name, at, alias = rest.partition("@")
        version = (
            client.get_model_version_by_alias(name, alias) if at else client.get_model_version(*rest.rsplit("/", 1))
        )
        return f"runs:/{version.run_id}/checkpoint/{part}"
    run_id, _, path = rest.partition("/")
    if path:
        return uri
    if client.list_artifacts(run_id, f"checkpoint/{part}"):
        return f"runs:/{run_id}/checkpoint/{part}"
    outputs = client.get_run(run_id).outputs
    if part == "policy" and outputs and outputs.model_outputs:
        return f"models:/{outputs.model_outputs[-1].model_id}"
    raise FileNotFoundError(f"run {run_id} has neither checkpoint/{part} nor a model")


def keep_with_run(source: Source, folder: Path, name: str) -> str | None:
    """Keep a folder's files with the MLflow run that a policy came from.

    Args:
        source: The policy.
        folder: The files.
        name: The artifacts' folder.

    Returns:
        The run's id; None where the policy has no run, or MLflow does not know it here.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    store = mlflow.get_tracking_uri()
    if store.startswith("sqlite:///") and not Path(store.removeprefix("sqlite:///")).exists():
        return None
    try:
        run_id = _run_of(source)
        if run_id:
            mlflow.MlflowClient().log_artifacts(run_id, str(folder), name)
    except MlflowException:
        return None
    return run_id


def _run_of(source: Source) -> str | None:
    kind, _, rest = source.uri.partition(":")
    rest = rest.strip("/")
    if kind.lower() == "runs":
        return rest.partition("/")[0]
    if kind.lower() == "models":
        return _artifact(source.uri, "run").split("/")[1]
    if kind.lower() != "sweep":
        return None
    name, _, trial = rest.partition("/")
    folder = _sweep_folder(name, source.output_dir)
    summary = folder / "summary.json"
    if not trial and summary.is_file():
        trial = str((json.loads(summary.read_text()).get("winner") or {}).get("trial"))
    known = {str(one.number): one.user_attrs.get("mlflow_run_id") for one in _trials(folder)[0]}
    return known.get(trial)


def _not_found(uri: str, error: Exception) -> PolicyError:
    """MLflow's refusal with the names that would have been right, where it can still be asked."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    what = f"policy={uri}: {str(error).splitlines()[0]}"
    if uri.startswith("runs:"):
        return PolicyError(what, "the run of a trial that ran to its end", "its id is in the run's page of `mlflow ui`")
    try:
        names = [model.name for model in MlflowClient().search_registered_models(max_results=1000)]
    except MlflowException:
        return PolicyError(what, FORMS, "check MLFLOW_TRACKING_URI")
    wanted = re.split(r"[/@]", uri.split(":", 1)[1].lstrip("/"))[0]
    allowed = "an alias or version that it has" if wanted in names else choices(wanted, names)
    return PolicyError(what, allowed, "see the Models page of `mlflow ui`")
