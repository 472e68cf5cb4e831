"""Decide whether a command starts a new sweep, resumes an existing one, or has nothing to do.

Nothing is written, except that the state of a sweep which another machine has stored is fetched. Runs in the driver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from rltune.algorithms.arguments import build_search_space, name_arguments
from rltune.checkpoints.store import find_store
from rltune.config.budget import fit_sizes
from rltune.config.changes import (
    ENDURANCE,
    LOCAL,
    RESUME_KEYS,
    check_budgets,
    check_changes,
    drop_cluster_limits,
    keep_measured,
)
from rltune.config.names import make_sweep_name, sweep_folder_of
from rltune.config.schema import RunConfig
from rltune.config.settings_file import read_identity, read_settings, require_own_sweep
from rltune.config.validation import parse_config, to_typed
from rltune.driver.folder import make_name_taken_error
from rltune.driver.plan import Plan, make_plan
from rltune.errors import ConfigError, StudyError, spell
from rltune.formatting import flatten_settings, spell_command
from rltune.ledger.handover import is_stored, read_stored_history
from rltune.ledger.sweep_folder import is_half_made, make_resume_command
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import RETRY
from rltune.search.dimensions import CONTINUOUS
from rltune.search.samplers import find_known_traits
from rltune.secrets import lacks_login, reveal

if TYPE_CHECKING:
    from rltune.ledger.outcome import Outcome

AUTO = "auto"  # resume=auto starts a new sweep or resumes an existing one.
ENDED = ("complete", "stopped", "failed")


def find_begun(config: RunConfig) -> Path | None:
    """Find the folder of an existing sweep with the name in the settings; None if there is no such sweep.

    A sweep that is only in the storage, as for a job on a fresh disk, is fetched.

    Raises:
        StudyError: The storage cannot be used.
    """
    name = make_sweep_name(config)
    folder = sweep_folder_of(config, name)
    is_here = folder.exists() and not is_half_made(folder)
    ref = SweepRef(name, config.output_dir, config.storage)
    if ref.is_stored():
        return ref.folder()
    return folder if is_here else None


def check_request(config: RunConfig, meanwhile: Callable[[], object] | None = None) -> Plan:
    """Check a new sweep's settings as far as possible without Ray, and that its name is free.

    Args:
        config: The settings.
        meanwhile: Called once if the environment's check takes long, as by `rltune.envs.child.Child.call`.

    Raises:
        RltuneError: The request cannot be carried out.
    """
    plan = make_plan(config, meanwhile=meanwhile)
    if config.resume == AUTO:  # With resume=auto, the name may belong to an existing sweep, which is resumed.
        return plan
    folder, name = plan.folder, plan.name
    if folder.exists() and not is_half_made(folder):
        raise make_name_taken_error(name, folder)
    if SweepRef(name, config.output_dir, config.storage).is_stored():
        raise StudyError(
            f": {config.storage} has a sweep of this name",
            "a name of its own for each sweep",
            make_resume_command(folder, {"storage": config.storage}),
            key="name",
            value=name,
        )
    return plan


def check_new_or_begun(config: RunConfig) -> Plan:
    """Check settings as `check_request` does; with ``resume=auto``, the sweep may already exist on this machine.

    A sweep that is only in remote storage is not fetched, because a check leaves nothing behind.

    Raises:
        RltuneError: The request cannot be carried out.
    """
    folder = sweep_folder_of(config, make_sweep_name(config))
    if config.resume != AUTO or not folder.exists() or is_half_made(folder):
        return check_request(config)
    config, _ = compare_with_begun(folder, config)
    require_own_sweep(folder, make_resume_command(folder))
    return plan_begun(config, folder)


def plan_begun(config: RunConfig, folder: Path) -> Plan:
    """Make the plan of a sweep that exists, whose environment must still be the one of its trials.

    Args:
        config: The settings to go on with.
        folder: The sweep's folder.

    Raises:
        RltuneError: The request cannot be carried out, or the environment has other spaces than at the sweep's start.
    """
    from rltune.driver.provenance import compare_environment
    from rltune.ledger.storage import open_ledger

    plan, versions = make_plan(config, folder), None
    # The driver, which opens the ledger later, reports what is wrong with it.
    with contextlib.suppress(StudyError), contextlib.closing(open_ledger(folder, config.study.storage)) as ledger:
        versions = ledger.sweep().versions
    return plan.with_notes(*compare_environment(versions or {}, plan.build.facts, plan.build.env.id))


def compare_with_begun(folder: Path, config: RunConfig) -> tuple[RunConfig, bool]:
    """Compare the settings of a command with those of an existing sweep, and refuse what a resume cannot change.

    Args:
        folder: The sweep's folder.
        config: The settings of this request.

    Returns:
        The settings to go on with, and whether a budget is larger than it was.

    Raises:
        RltuneError: Other settings than budgets and addresses differ, or a budget is smaller.
    """
    settings = read_settings(folder, for_resume=True)
    config = keep_measured(settings, config)
    return config, check_changes(folder.name, *_fit(settings, config))


def _fit(settings: Mapping[str, Any], config: RunConfig) -> tuple[RunConfig, RunConfig]:
    """Return a sweep's settings and those that are wanted now, with the sizes that follow from others.

    Nothing is imported for it: whoever made the sweep may not be trusted yet. So a class of the user's is no grid here.
    """
    fitted = []
    for each in (to_typed(RunConfig, settings), config):
        traits = find_known_traits(each.searcher.kind)
        is_grid = traits is not None and traits.is_grid
        arguments = name_arguments(each.algo, each.env)
        num_points = build_search_space(arguments, each.space).count_points() if is_grid else None
        fitted.append(fit_sizes(each, num_points)[0])
    return fitted[0], fitted[1]


def find_end(folder: Path, ledger_url: str | None) -> Outcome | None:
    """Return the outcome of a sweep that has ended; None if the sweep has something left to do.

    The ledger decides, because a summary may be of an earlier end, before the sweep was extended. A driver that was
    killed before it stored the ledger in remote storage has left that to do.

    Args:
        folder: The sweep's folder.
        ledger_url: The address of the ledger's database with its login.
    """
    from rltune.ledger.outcome import load_outcome
    from rltune.ledger.storage import open_ledger

    try:
        with contextlib.closing(open_ledger(folder, ledger_url)) as ledger:
            status = ledger.sweep().status
            records = (*ledger.trials.records(), *ledger.runs.records())
            if ledger.read_requests(RETRY):
                return None
    except StudyError:
        # The driver, which opens the ledger later, reports what is wrong with it.
        return None
    if not is_stored(read_stored_history(find_store(read_identity(folder)))):
        return None
    outcome = load_outcome(folder) if status in ENDED else None
    if outcome and any(record.state == "RUNNING" for record in records):
        return None  # A resume continues trials that an error has left unfinished.
    if outcome and outcome.unregistered:
        return None  # A resume registers the winner, if MLflow answers by now.
    return outcome


def require_changeable(changes: Mapping[str, Any]) -> None:
    """Refuse to change settings that a resume cannot change.

    Raises:
        StudyError: They are no mapping, or a key is not in conf/resume.yaml.
    """
    if not isinstance(changes, Mapping):
        allowed, fix = "settings by name", 'changes={"budget": {"trials": 48}}'
        raise StudyError("are no settings", allowed, fix, key="changes", value=changes)
    typed = dict(flatten_settings(changes))
    fixed = {key for key in typed if key.startswith(("env.", "failures.")) and key not in ENDURANCE}
    for key in sorted((changes.keys() - set(RESUME_KEYS)) | fixed):
        raise StudyError(
            f": a sweep that is resumed keeps its own {key}",
            f"changes of {', '.join(sorted({*RESUME_KEYS, *ENDURANCE} - {'env', 'failures'}))}",
            spell_command("run name=... starts another sweep"),
            key=key,
            value=typed[key] if key in typed else changes[key],
        )


def change_settings(folder: Path, ref: SweepRef, changes: Mapping[str, Any]) -> RunConfig:
    """Return a sweep's settings with the changes of a resume.

    Args:
        folder: The sweep's folder.
        ref: The sweep; its ``storage`` and its ``ledger_url`` replace those of the settings, if they are given.
        changes: Settings by name; None stands for no change.

    Raises:
        StudyError: A budget is smaller, or an address lacks its login.
    """
    settings = read_settings(folder, for_resume=True)
    storage, ledger_url = (address and reveal(address) for address in (ref.storage, ref.ledger_url))
    addresses = _drop_none({"storage": storage, "study": {"storage": ledger_url}})
    given = _drop_none(changes)
    kept = drop_cluster_limits(settings, [key for key, _ in flatten_settings(given)])
    merged = OmegaConf.merge(kept, addresses, given)
    assert isinstance(merged, DictConfig)
    if OmegaConf.select(merged, "cluster.address") == LOCAL:
        merged.cluster.address = None
    config = parse_config(merged)
    _check_changed_space(folder.name, to_typed(RunConfig, settings), config, given.get("space") or {})
    check_budgets(folder.name, *_fit(settings, config))
    for key, address in (("study.storage", config.study.storage), ("tracking.uri", config.tracking.uri)):
        if address and lacks_login(address):
            raise StudyError(
                ": the login is not saved in any file, so it has to be given again",
                "the whole address",
                make_resume_command(folder),
                key=key,
                value=address,
            )
    return config


def _check_changed_space(name: str, begun: RunConfig, wanted: RunConfig, changes: Mapping[str, Any]) -> None:
    """Refuse a change of what is searched other than of the ranges of searched parameters.

    Args:
        name: The sweep.
        begun: Its settings.
        wanted: The settings that are requested now.
        changes: The new ranges.

    Raises:
        ConfigError: A parameter is not searched, or is not any more; or a grid loses a value.
    """
    if not changes:
        return
    searched = {
        each.name: each for each in build_search_space(name_arguments(begun.algo, begun.env), begun.space).dimensions
    }
    parameters = [parameter for parameter, _ in flatten_settings(changes)]
    is_known = searched.keys() >= set(
        parameters
    )  # Otherwise the settings may lack an argument, such as env.kwargs.wind.
    built = build_search_space(name_arguments(wanted.algo, wanted.env), wanted.space).dimensions if is_known else ()
    now = {each.name: each for each in built}
    other = f"another sweep that learns from this one: {spell_command(f'run ... searcher.from_sweeps=[{name}]')}"
    for parameter, form in flatten_settings(changes):
        if parameter not in searched or (is_known and parameter not in now):
            is_fixed = parameter in searched
            fix = f"'space.{parameter}={spell(['choice', form])}'" if is_fixed else f"leave space.{parameter} out"
            raise ConfigError(
                f"space.{parameter}",
                form,
                f": the sweep {name} {'searches a range of it' if is_fixed else 'does not search it'}",
                f"other ranges of what it searches, {', '.join(searched)}; or {other}",
                fix,
            )
    traits = find_known_traits(wanted.searcher.kind)
    for parameter in parameters if traits is not None and traits.is_grid else ():
        before, dimension = searched[parameter], now[parameter]
        is_listed = not (before.bounds or dimension.bounds or {before.kind, dimension.kind} & {*CONTINUOUS})
        if not (is_listed and all(value in dimension.list_values() for value in before.list_values())):
            raise ConfigError(
                f"space.{parameter}",
                dimension.form,
                f": the grid of {name} has other values of it: {before}",
                "a list or range with these values and more",
                other,
            )


def _drop_none(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Remove all None values from nested settings, in which they stand for no change."""
    nested = {key: _drop_none(value) if isinstance(value, Mapping) else value for key, value in changes.items()}
    return {key: value for key, value in nested.items() if value is not None and value != {}}
