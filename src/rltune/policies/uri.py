"""Find the files of a policy from its URI, downloading them if they are in MLflow.

A URI is ``models:/<name>@<alias>``, ``models:/<name>/<version>``, ``runs:/<id>``, ``sweep:<name>``,
``sweep:<name>/<trial>``, or a folder. Nothing is loaded here. Only the first three forms import MLflow. A ledger is
not opened for a certified winner. Runs anywhere.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import compute_digest, find_store, is_own_checkpoint
from rltune.config.capabilities import list_algos
from rltune.config.settings_file import SweepIdentity, read_identity
from rltune.envs.spec import KNOWN_PACKAGES, spec_of
from rltune.errors import PolicyError, StudyError
from rltune.formatting import spell_command
from rltune.ledger.sweep_folder import SETTINGS, spell_output_dir
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import is_certified

if TYPE_CHECKING:
    from rltune.records import CheckpointRecord, Direction, TrialRecord

FORMS = (
    "models:/<name>@champion, models:/<name>/<version>, runs:/<id>, sweep:<name or latest>, "
    "sweep:<name>/<trial>, or a checkpoint's folder"
)
MLFLOW = ("models", "runs")  # For these URI schemes, the policy's files are in MLflow.
TRUST = "add trust=true to the command if you trust its author"
TRUST_AUTHOR = f"{TRUST}; rltune.load_policy(uri, trust=True)"
HARMLESS = (
    "modules of Gymnasium and of rltune's extras, those that are imported already, and policies of sweeps that you ran"
)


@dataclass(frozen=True)
class Source:
    """The URI of a policy, and what is needed to resolve it.

    Attributes:
        uri: The policy's URI, as the user wrote it.
        sweeps: Where the sweeps of ``sweep:<name>`` are kept; the reference's own name is not used.
        trust: Whether to load files that somebody else made or changed, and files that run code when they are loaded.
    """

    uri: str
    sweeps: SweepRef = field(default_factory=SweepRef)
    trust: bool = False

    @property
    def scheme(self) -> str:
        """The URI's part before the colon in lower case, such as ``models``; empty for a folder."""
        match = re.match(r"([a-z][a-z0-9+.-]+):", self.uri, re.IGNORECASE)
        return match[1].lower() if match else ""

    @property
    def path(self) -> str:
        """The URI's part after the colon without outer slashes, such as ``<name>/<version>``."""
        return self.uri.partition(":")[2].strip("/")

    def make_error(self, problem: str, allowed: str, fix: str) -> PolicyError:
        """Make the error that no policy can be loaded from this URI, for the given reason."""
        return PolicyError(f": {problem}", allowed, fix, key="policy", value=self.uri)


class NeedsRLlibError(PolicyError):
    """The network of this checkpoint can only act with RLlib."""


def spell_uri(policy: object) -> str:
    """Return the URI of a policy as text.

    Raises:
        PolicyError: It is neither a text nor a path.
    """
    if isinstance(policy, str | Path):
        return str(policy)
    allowed = "a policy, or its URI: models:/<name>@champion, sweep:<name>, or a checkpoint's folder"
    fix = 'rltune.load_policy("sweep:latest"), or .policy() of an open sweep'
    raise PolicyError("is no policy", allowed, fix, key="policy", value=f"a {type(policy).__name__}")


@contextmanager
def locate_trusted_algorithm(source: Source) -> Iterator[Path]:
    """Yield the folder of an RLlib checkpoint if its author is trusted, because loading it runs pickled code.

    Raises:
        PolicyError: There is no such checkpoint, or its files are not as a sweep of this user wrote them.
    """
    if not source.trust and source.scheme in MLFLOW:
        raise _make_trust_error(source, "comes from a tracking store")
    with locate_policy(source, "algorithm") as folder:
        if not source.trust and not is_own_checkpoint(folder.parent):
            raise _make_trust_error(source, f"{folder.parent} is not as a sweep of yours wrote it")
        yield folder


def _make_trust_error(source: Source, reason: str) -> PolicyError:
    return source.make_error(
        f"{reason}, and RLlib's checkpoints run code when they are loaded",
        "checkpoints of sweeps that you ran",
        f"{TRUST}; rltune.load_algorithm({source.uri!r}, trust=True)",
    )


FORMS_OF_ENV: dict[str, Any] = {
    "id": str,
    "kwargs": Mapping,
    "per_copy": Mapping,
    "rewards": Mapping,
    "objective": Mapping,
    "wrappers": (list, tuple),
    "policies": (str, Mapping),
}
"""The types of what a policy's files say about its environment."""


def read_environment(policy: Any) -> Mapping[str, Any]:
    """Return the specification of the environment in a policy's files; empty if they name none.

    Raises:
        PolicyError: It is no specification.
    """
    spec = policy.info.get("env") or {}
    wrong = "env" if not isinstance(spec, Mapping) else None
    for key, form in FORMS_OF_ENV.items() if wrong is None else ():
        if spec.get(key) is not None and not isinstance(spec[key], form):
            wrong = f"env.{key}"
    if wrong:
        raise PolicyError(
            f"this policy's files hold an {wrong} of another type",
            "a bundle as a trial's checkpoint holds it",
            "give evaluate another checkpoint of the trial",
        )
    return cast(Mapping[str, Any], spec)


def require_own_environment(spec: Mapping[str, Any], policy: Any) -> None:
    """Refuse a policy's environment if building it would import a module, or read a variable, of the author's choice.

    Args:
        spec: The environment's specification in the policy's files.
        policy: The policy; a policy whose ``is_trusted`` returns True may import any module.

    Raises:
        PolicyError: The environment would do so; the error names the module.
    """
    typed = spec_of(spec)
    modules = [name for name in typed.list_imports() if not _is_harmless(name)]
    if not (modules or typed.has_variables) or policy.is_trusted():
        return
    would = f"import '{modules[0]}'" if modules else "read environment variables"
    raise PolicyError(
        f"this policy's environment {typed.id} would {would}, which its author has chosen", HARMLESS, TRUST_AUTHOR
    )


def require_own_code(module: str, policy: Any, what: str) -> None:
    """Refuse to import a module that a policy's author has chosen.

    Args:
        module: The module.
        policy: As for `require_own_environment`.
        what: What of the policy would import it, such as ``encoder my_nets:Attention``.

    Raises:
        PolicyError: The module is not harmless, and the author is not trusted.
    """
    if _is_harmless(module) or policy.is_trusted():
        return
    raise PolicyError(
        f"this policy's {what} would import '{module}', which its author has chosen", HARMLESS, TRUST_AUTHOR
    )


def _is_harmless(module: str) -> bool:
    """Return whether anybody may name a module: it is imported already, or belongs to an installed known package.

    A file of the working folder may have the name of a known package that is not installed.
    """
    package = module.partition(".")[0]
    if module in sys.modules:
        return True
    if package not in KNOWN_PACKAGES:
        return False
    installed = [folder for folder in sys.path if Path(folder).resolve() != Path.cwd()]
    return package in sys.modules or PathFinder.find_spec(package, installed) is not None


@contextmanager
def locate_policy(source: Source, part: str = "policy") -> Iterator[Path]:
    """Yield the folder of a checkpoint's policy or RLlib part; a downloaded copy is deleted when the context ends.

    Args:
        part: ``policy`` (the bundle) or ``algorithm`` (RLlib's checkpoint).

    Yields:
        The part's folder; a temporary copy where the files come from MLflow.

    Raises:
        PolicyError: There is no checkpoint at the URI, or it lacks this part.
    """
    if source.scheme in MLFLOW:
        from rltune.policies.mlflow_artifacts import download_part

        with tempfile.TemporaryDirectory(prefix="rltune-policy-") as copy:
            yield _find_part(download_part(source, part, copy), part, source)
    elif source.scheme == "sweep":
        yield _find_part(_locate_sweep_checkpoint(source), part, source)
    elif source.scheme and not Path(source.uri).exists():
        raise source.make_error(f"unknown kind of address '{source.scheme}:'", FORMS, "policy=sweep:latest")
    else:
        yield _find_part(Path(source.uri).expanduser().absolute(), part, source)


def _find_part(folder: Path, part: str, source: Source) -> Path:
    """Find the policy or RLlib part in a folder that is a checkpoint, an MLflow model or the part itself."""
    mark = "policy.json" if part == "policy" else "rllib_checkpoint.json"
    places = (folder / mark, folder / part / mark, *sorted(folder.glob(f"artifacts/*/{mark}")))
    if file := next(filter(Path.is_file, places), None):
        return file.parent
    reason = folder / "policy-missing.txt"
    if part == "policy" and reason.is_file():
        raise NeedsRLlibError(
            f": {reason.read_text().strip()}",
            f"networks that act without RLlib: those of {list_algos(lambda row: row.network, 'and')}",
            spell_command(f"evaluate policy=sweep:<name>, or rltune.load_algorithm({source.uri!r}): both run RLlib"),
            key="policy",
            value=source.uri,
        )
    if not folder.exists():
        raise source.make_error(f"there is no folder {folder}", FORMS, _suggest_sweep(folder, source))
    if (folder / SETTINGS).is_file():
        raise source.make_error(f"{folder} is a sweep's folder", FORMS, _suggest_sweep(folder, source))
    raise source.make_error(f"no {part} in {folder}", f"a folder that holds {mark} or {part}/{mark}", FORMS)


def _suggest_sweep(folder: Path, source: Source) -> str:
    """Suggest what to type for a sweep's folder, its name without ``sweep:``, or a winner that is gone; else latest."""
    if source.scheme == "sweep":
        return f"policy=sweep:{source.path.partition('/')[0]}/<trial>"
    if (folder / SETTINGS).is_file():
        return f"policy=sweep:{folder.name}{spell_output_dir(folder.parent)}"
    is_name = (source.sweeps.root / source.uri.partition("/")[0] / SETTINGS).is_file()
    return f"policy=sweep:{source.uri if is_name else 'latest'}"


# -- Functions for URIs of sweeps and trials --------------------------------------------


def _locate_sweep_checkpoint(source: Source) -> Path:
    """Find the winner's checkpoint for ``sweep:<name>``, or a trial's best one for ``sweep:<name>/<trial>``."""
    sweep, trial = _split_sweep_uri(source)
    if trial is not None:
        return _verify_checkpoint(sweep, _read_trial_checkpoint(sweep, trial, source), source)
    if winner := _find_winner(sweep, source):
        return find_store(sweep).find(str(winner["checkpoint"])) or sweep.folder / winner["checkpoint"]
    return _verify_checkpoint(sweep, _read_best_checkpoint(sweep, source), source)


def _split_sweep_uri(source: Source) -> tuple[SweepIdentity, int | None]:
    """Split ``sweep:<name>/<trial>`` into the sweep and the trial's number, None for ``sweep:<name>``."""
    name, _, trial = source.path.partition("/")
    try:
        sweep = read_identity(replace(source.sweeps, name=name).folder(), any_format=True)
    except StoreError:
        raise
    except StudyError as error:
        raise PolicyError(
            error.problem,
            error.allowed,
            error.fix.replace("sweep=", "policy=sweep:") + ", from the folder that holds outputs/",
            key="policy",
            value=source.uri,
        ) from None
    if trial and not trial.isdigit():
        raise source.make_error(f"'{trial}' is no trial", "a number", f"policy=sweep:{name}/0")
    return sweep, int(trial) if trial else None


def _find_winner(sweep: SweepIdentity, source: Source) -> Mapping[str, Any] | None:
    """Return the winner of a sweep; None without one, or if a driver has gone on with the sweep since its last end."""
    winner = _read_winner(sweep.folder, source)
    if winner is None or is_certified(winner):
        return winner
    from rltune.ledger.storage import open_ledger_of

    try:
        with closing(open_ledger_of(sweep, source.sweeps.ledger_url)) as ledger:
            return replace(ledger.sweep(), winner=winner).current_winner
    except StudyError:
        return winner  # The ledger is elsewhere, perhaps behind a login, so that only the last end is known.


def _read_winner(folder: Path, source: Source) -> Mapping[str, Any] | None:
    """Read the winner of the last end from a sweep's summary.json; None without one, or before the first end."""
    summary = folder / "summary.json"
    try:
        winner: Mapping[str, Any] | None = json.loads(summary.read_text()).get("winner") if summary.is_file() else None
    except (ValueError, AttributeError):
        raise source.make_error(
            f"{summary} is damaged",
            "the summary as the sweep wrote it",
            f"policy=sweep:{folder.name}/<trial>, or rm {summary} to take the best trial of the ledger",
        ) from None
    return winner


def _read_trials(sweep: SweepIdentity, source: Source) -> tuple[Sequence[TrialRecord], Direction]:
    """Read the trials of a sweep, and whether its scores are maximized, from its ledger."""
    from rltune.ledger.storage import open_ledger_of  # SQLAlchemy is slow to import, and only URIs of sweeps need it.

    try:
        ledger = open_ledger_of(sweep, source.sweeps.ledger_url)
    except StudyError as error:
        raise source.make_error(
            error.what, error.allowed, f"{error.fix}; or policy={sweep.folder}/trials/<number>/<checkpoint>"
        ) from None
    with closing(ledger):
        return ledger.trials.records(), ledger.criteria.direction


def _read_trial_checkpoint(sweep: SweepIdentity, number: int, source: Source) -> CheckpointRecord:
    """Return the ledger's record of the best checkpoint of a given trial."""
    trials, _ = _read_trials(sweep, source)
    name = sweep.folder.name
    checkpoints = {trial.number: trial.checkpoint for trial in trials if trial.checkpoint}
    allowed = f"trials with a checkpoint: {', '.join(map(str, checkpoints)) or 'none'}"
    if number >= len(trials):
        raise source.make_error(f"{name} has {len(trials)} trials", allowed, spell_command(f"show sweep={name}"))
    if number not in checkpoints:
        raise source.make_error(
            f"trial {number} ({trials[number].state}) has no checkpoint", allowed, f"policy=sweep:{name}"
        )
    return checkpoints[number]


def _read_best_checkpoint(sweep: SweepIdentity, source: Source) -> CheckpointRecord:
    """Return the ledger's record of the best trial's checkpoint in a sweep that has no winner."""
    from rltune.ledger.ranking import find_nearest, rank_records

    trials, direction = _read_trials(sweep, source)
    name = sweep.folder.name
    for trial in rank_records(trials, direction):
        if trial.checkpoint:
            return trial.checkpoint
    if nearest := find_nearest(trials):
        raise source.make_error(
            f"no trial of {name} keeps its constraints",
            "a trial by its number",
            f"policy=sweep:{name}/{nearest.number}",
        )
    raise source.make_error(
        f"no trial of {name} has a checkpoint yet",
        "a sweep with at least one finished episode",
        spell_command(f"show sweep={name}"),
    )


def _verify_checkpoint(sweep: SweepIdentity, record: CheckpointRecord, source: Source) -> Path:
    """Return the folder of a checkpoint after comparing its files with the digest in the ledger."""
    checkpoint = find_store(sweep).find(record.path)
    if checkpoint is None:
        raise source.make_error(
            f"its checkpoint {sweep.folder / record.path} is gone",
            "a trial whose checkpoint is still there",
            f"policy=sweep:{sweep.folder.name} is the winner; policy=runs:/<the trial's MLflow run>",
        )
    if not source.trust and compute_digest(checkpoint) != record.digest:
        raise source.make_error(
            f"the files in {checkpoint} are not those that the ledger recorded",
            "an unchanged checkpoint",
            f"rltune.load_policy({source.uri!r}, trust=True) takes them as they are",
        )
    return checkpoint


# -- Functions that find the MLflow run of a policy -------------------------------------


def keep_with_run(source: Source, folder: Path, name: str) -> str | None:
    """Upload a folder's files to the MLflow run that a policy came from.

    Args:
        name: The folder among the run's artifacts.

    Returns:
        The run's id; None where the policy has no run, or MLflow does not have the run.
    """
    from rltune.policies.mlflow_artifacts import find_run, upload_folder

    run_id = _find_run_in_ledger(source) if source.scheme == "sweep" else find_run(source)
    return run_id if run_id and upload_folder(run_id, folder, name) else None


def _find_run_in_ledger(source: Source) -> str | None:
    sweep, trial = _split_sweep_uri(source)
    number = trial if trial is not None else (_find_winner(sweep, source) or {}).get("trial")
    trials, _ = _read_trials(sweep, source)
    return next((trial.mlflow_run_id for trial in trials if trial.number == number), None)
