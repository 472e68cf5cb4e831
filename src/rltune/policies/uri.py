"""Find a policy's files: from any form of its URI to a folder on this machine.

``models:/<name>@<alias>`` · ``models:/<name>/<version>`` · ``runs:/<id>`` · ``sweep:<name>`` ·
``sweep:<name>/<trial>`` · a folder. Nothing is loaded here. Only the first three forms import mlflow; only those of a
sweep without a winner, or with a trial, open the ledger. Runs anywhere.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import compute_digest, find_store, is_own_checkpoint
from rltune.config.capabilities import list_algos
from rltune.envs.build import find_modules
from rltune.errors import PolicyError, StudyError
from rltune.formatting import spell_command
from rltune.study.sweep_folder import make_resume_command
from rltune.study.sweep_ref import SweepRef

if TYPE_CHECKING:
    from rltune.records import CheckpointRecord, TrialRecord

FORMS = (
    "models:/<name>@champion, models:/<name>/<version>, runs:/<id>, sweep:<name or latest>, "
    "sweep:<name>/<trial>, or a checkpoint's folder"
)
TRUST = "add trust=true to the command if you trust its author"
_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]+):", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """Where a policy is loaded from.

    Attributes:
        uri: As the person wrote it.
        sweeps: Where sweeps are kept, for ``sweep:<name>``; the name is the URI's.
        trust: Take what somebody else has made or changed, and what runs code when it is loaded.
    """

    uri: str
    sweeps: SweepRef = field(default_factory=SweepRef)
    trust: bool = False


class NeedsRLlibError(PolicyError):
    """A checkpoint whose network acts in RLlib alone."""


@contextmanager
def locate_trusted_algorithm(source: Source) -> Iterator[Path]:
    """Yield the folder of RLlib's checkpoint if its author may be trusted: loading it runs code.

    Raises:
        PolicyError: There is none, or it is not as a sweep of this user wrote it.
    """
    if not source.trust and source.uri.lower().startswith(("models:", "runs:")):
        raise _make_trust_error(source.uri, "comes from a tracking store")
    with locate_policy(source, "algorithm") as folder:
        if not source.trust and not is_own_checkpoint(folder.parent):
            raise _make_trust_error(source.uri, f"{folder.parent} is not as a sweep of yours wrote it")
        yield folder


def _make_trust_error(uri: str, why: str) -> PolicyError:
    return PolicyError(
        f"policy={uri}: {why}, and RLlib's checkpoints run code when they are loaded",
        "checkpoints of sweeps that you ran",
        f"{TRUST}; rltune.load_algorithm({uri!r}, trust=True)",
    )


def require_own_environment(spec: Mapping[str, Any], policy: Any) -> None:
    """Refuse to build an environment that a policy names if that would import what its author alone has chosen.

    Args:
        spec: The environment, as far as the policy names it.
        policy: The policy, whose ``is_trusted`` is asked.

    Raises:
        PolicyError: Names the module.
    """
    modules = find_modules(spec)
    if modules and not policy.is_trusted():
        raise PolicyError(
            f"this policy's environment {spec['id']} would import '{modules[0]}', which its author has chosen",
            "modules of Gymnasium and of rltune's extras, those that are imported already, and policies of sweeps that "
            "you ran",
            f"{TRUST}; rltune.load_policy(uri, trust=True)",
        )


@contextmanager
def locate_policy(source: Source, part: str = "policy") -> Iterator[Path]:
    """Yield the folder with one part of a checkpoint, there for as long as the context is open.

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
        from rltune.policies.mlflow_artifacts import download_part

        with tempfile.TemporaryDirectory(prefix="rltune-policy-") as copy:
            yield _find_part(download_part(source.uri, part, copy), part, source.uri)
    elif kind == "sweep":
        yield _find_part(_locate_in_sweep(source), part, source.uri)
    elif kind and not Path(source.uri).exists():
        raise PolicyError(f"policy={source.uri}: unknown kind of address '{kind}:'", FORMS, "policy=sweep:latest")
    else:
        yield _find_part(Path(source.uri).expanduser().absolute(), part, source.uri)


def _find_part(folder: Path, part: str, uri: str) -> Path:
    """Find one part of a checkpoint in a folder that is the checkpoint, the part or an MLflow model."""
    mark = "policy.json" if part == "policy" else "rllib_checkpoint.json"
    for candidate in (folder, folder / part, folder / "artifacts" / part):
        if (candidate / mark).is_file():
            return candidate
    found = sorted(path.parent for path in (folder / "artifacts").glob(f"*/{mark}"))
    if found:
        return found[0]
    reason = folder / "policy-missing.txt"
    if part == "policy" and reason.is_file():
        raise NeedsRLlibError(
            f"policy={uri}: {reason.read_text().strip()}",
            f"networks that act without RLlib: those of {list_algos(lambda row: row.network, 'and')}",
            spell_command(f"evaluate policy=sweep:<name>, or rltune.load_algorithm({uri!r}): both run RLlib"),
        )
    if not folder.exists():
        raise PolicyError(f"policy={uri}: there is no folder {folder}", FORMS, "policy=sweep:latest")
    raise PolicyError(f"policy={uri}: no {part} in {folder}", f"a folder that holds {mark} or {part}/{mark}", FORMS)


# -- sweeps -----------------------------------------------------------------------------


def _locate_in_sweep(source: Source) -> Path:
    """Find the checkpoint of ``sweep:<name>`` (its winner) or ``sweep:<name>/<trial>`` (that trial's best)."""
    folder, trial = _split_sweep_uri(source)
    if trial is not None:
        return _check_recorded(folder, _choose_checkpoint_of(folder, trial, source), source)
    winner = _read_winner(folder, source)
    if winner:
        return find_store(folder).find(str(winner["checkpoint"])) or folder / winner["checkpoint"]
    return _check_recorded(folder, _choose_best_checkpoint(folder, source), source)


def _split_sweep_uri(source: Source) -> tuple[Path, int | None]:
    """Split ``sweep:<name>/<trial>`` into the sweep's folder and the trial's number; None where none is named."""
    name, _, trial = source.uri.split(":", 1)[1].strip("/").partition("/")
    try:
        folder = replace(source.sweeps, name=name).folder()
    except StoreError:
        raise
    except StudyError as error:
        raise PolicyError(
            f"policy={source.uri}: {error.what.partition(': ')[2]}",
            error.allowed,
            f"{error.fix}, from the folder that holds outputs/",
        ) from None
    if trial and not trial.isdigit():
        raise PolicyError(f"policy={source.uri}: '{trial}' is no trial", "a number", f"policy=sweep:{name}/0")
    return folder, int(trial) if trial else None


def _read_winner(folder: Path, source: Source) -> Mapping[str, Any] | None:
    """Read the winner from a sweep's summary; None where the sweep has none, or has not ended yet."""
    summary = folder / "summary.json"
    try:
        found: Mapping[str, Any] | None = json.loads(summary.read_text()).get("winner") if summary.is_file() else None
    except (ValueError, AttributeError):
        raise PolicyError(
            f"policy={source.uri}: {summary} is damaged",
            "the summary as the sweep wrote it",
            f"policy=sweep:{folder.name}/<trial>, or rm {summary} to take the best trial of the ledger",
        ) from None
    return found


def _read_ledger(folder: Path, source: Source) -> Sequence[TrialRecord]:
    """Read a sweep's trials, wherever its ledger is."""
    from rltune.study.storage import open_ledger  # brings SQLAlchemy with it, which no other form needs

    try:
        ledger = open_ledger(folder, source.sweeps.ledger_url)
    except StudyError as error:
        raise PolicyError(
            f"policy={source.uri}: {error.what}",
            error.allowed,
            f"{error.fix}; or policy={folder}/trials/<number>/<checkpoint>",
        ) from None
    with closing(ledger):
        return ledger.trials.records()


def _choose_checkpoint_of(folder: Path, number: int, source: Source) -> CheckpointRecord:
    """Give what the ledger recorded of a trial's best checkpoint."""
    records = _read_ledger(folder, source)
    with_one = {record.number: record.checkpoint for record in records if record.checkpoint}
    allowed = f"trials with a checkpoint: {', '.join(map(str, with_one)) or 'none'}"
    if number >= len(records):
        raise PolicyError(
            f"policy={source.uri}: {folder.name} has {len(records)} trials",
            allowed,
            spell_command(f"show sweep={folder.name}"),
        )
    if number not in with_one:
        raise PolicyError(
            f"policy={source.uri}: trial {number} ({records[number].state}) has no checkpoint",
            allowed,
            f"policy=sweep:{folder.name}",
        )
    return with_one[number]


def _choose_best_checkpoint(folder: Path, source: Source) -> CheckpointRecord:
    """Give what the ledger recorded of the best checkpoint of a sweep without a winner."""
    from rltune.study.outcome import explain_no_winner
    from rltune.study.ranking import find_nearest, rank_records

    records = _read_ledger(folder, source)
    for record in rank_records(records):
        if record.checkpoint:
            return record.checkpoint
    if nearest := find_nearest(records):
        raise PolicyError(
            f"policy={source.uri}: {explain_no_winner(records)}",
            "a trial by its number",
            f"policy=sweep:{folder.name}/{nearest.number}",
        )
    raise PolicyError(
        f"policy={source.uri}: no trial of {folder.name} has a checkpoint yet",
        "a sweep with at least one finished episode",
        make_resume_command(folder),
    )


def _check_recorded(folder: Path, record: CheckpointRecord, source: Source) -> Path:
    """Give the folder of a recorded checkpoint, if its files are still those that the ledger recorded."""
    checkpoint = find_store(folder).find(record.path)
    if checkpoint is None:
        raise PolicyError(
            f"policy={source.uri}: its checkpoint {folder / record.path} is gone",
            "a trial whose checkpoint is still there",
            f"policy=sweep:{folder.name} is the winner; policy=runs:/<the trial's MLflow run>",
        )
    if not source.trust and compute_digest(checkpoint) != record.digest:
        raise PolicyError(
            f"policy={source.uri}: the files in {checkpoint} are not those that the ledger recorded",
            "an unchanged checkpoint",
            f"rltune.load_policy({source.uri!r}, trust=True) takes them as they are",
        )
    return checkpoint


# -- the run that a policy came from ----------------------------------------------------


def keep_with_run(source: Source, folder: Path, name: str) -> str | None:
    """Keep a folder's files with the MLflow run that a policy came from.

    Args:
        source: The policy.
        folder: The files.
        name: The artifacts' folder.

    Returns:
        The run's id; None where the policy has no run, or MLflow does not know it here.
    """
    from rltune.policies.mlflow_artifacts import find_run, upload_folder

    kind = source.uri.partition(":")[0].lower()
    run_id = _find_run_in_ledger(source) if kind == "sweep" else find_run(source.uri)
    return run_id if run_id and upload_folder(run_id, folder, name) else None


def _find_run_in_ledger(source: Source) -> str | None:
    folder, trial = _split_sweep_uri(source)
    number = trial if trial is not None else (_read_winner(folder, source) or {}).get("trial")
    records = {record.number: record for record in _read_ledger(folder, source)}
    return records[number].mlflow_run_id if number in records else None
