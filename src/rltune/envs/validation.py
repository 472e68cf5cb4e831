"""Before a sweep starts, refuse an environment that cannot be built or stepped, or that no algorithm can learn from."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NoReturn

from rltune.envs.build import import_env_module, import_wrappers, make_bare_env
from rltune.envs.child import acquire_child
from rltune.envs.closing import close_env, limit_close
from rltune.envs.constructors import explain_failed_make, load_entry_point, make_foreign_error
from rltune.envs.facts import EnvFacts, select_json
from rltune.envs.first_steps import check_first_steps, find_setting
from rltune.envs.guest import ONE_PORT_EACH, call_guest, find_outdated, is_address_in_use
from rltune.envs.ids import find_class, find_meant, list_classes, list_ids, make_path_error
from rltune.envs.inspection import check_normalising, digest_sources, find_time_limit
from rltune.envs.layout import MASK, Layout
from rltune.envs.masks import OFF
from rltune.envs.missing import suggest_installation
from rltune.envs.objective import OBJECTIVE, make_score
from rltune.envs.observations import describe_leaf, find_layout, find_network_spaces
from rltune.envs.pettingzoo import check_agents
from rltune.envs.rllib_agents import is_rllib_class
from rltune.envs.spaces import name_setting
from rltune.envs.spec import EnvSpec, spec_of
from rltune.errors import ABSENT, ConfigError, GuestError, describe_exception, nearest
from rltune.formatting import format_params, spell_command

Corners = Sequence[tuple[Mapping[str, Any], EnvSpec]]
"""Environments at the corners of a search space, each with what differs from the settings, by name."""


def examine_env(
    spec: EnvSpec, stall_s: float, meanwhile: Callable[[], object] | None = None, corners: Corners = ()
) -> EnvFacts:
    """Check an environment by `check_envs` in a process of its own, which has ended then.

    Args:
        spec: The environment.
        stall_s: How long a call into it may take, in seconds.
        meanwhile: Called once if the check takes long, as by `Child.call`.
        corners: What it becomes in trials.

    Returns:
        What was learned about it.

    Raises:
        RltuneError: It cannot be built, stepped or learned from, it does not answer, or its process has ended.
    """
    remind = functools.partial(_remind, spec.id, stall_s)
    try:
        answer = acquire_child().call(
            f"{__name__}:describe_env",
            {"spec": spec.to_dict(), "corners": [(dict(values), corner.to_dict()) for values, corner in corners]},
            limit_s=stall_s,
            remind=remind,
            meanwhile=meanwhile,
        )
    except GuestError as fault:
        if fault.key:
            raise
        of_objective = fault.call == OBJECTIVE
        key, value = ("objective.kind", spec.objective["kind"]) if of_objective else ("env.id", spec.id)
        raise fault.rewrite(f": {fault.problem}", key=key, value=value) from None
    return EnvFacts.from_dict(answer)


def qualify_id(env_id: str) -> str:
    """Return an environment's id with its module, if only the program that runs a sweep has registered the id.

    Trials run in other processes. These know what Gymnasium registers, and what the module before the colon does.
    """
    gymnasium = sys.modules.get("gymnasium")
    entry = gymnasium.registry.get(env_id) if gymnasium else None
    point = entry.entry_point if entry else None
    # An entry point may be a text, a class, a function, or arguments bound to one.
    module = (
        point.partition(":")[0] if isinstance(point, str) else getattr(getattr(point, "func", point), "__module__", "")
    )
    return env_id if module.partition(".")[0] in ("", "gymnasium") else f"{module}:{env_id}"


def refuse_program(spec: EnvSpec) -> None:
    """Refuse what only the program or notebook defines that runs a sweep, because trials run in other processes.

    Raises:
        ConfigError: An id, a wrapper or the objective lies in ``__main__``.
    """
    named = [("env.id", spec.id)]
    named += [
        (f"env.wrappers[{index}]", str(wrap["entry_point"]))
        for index, wrap in enumerate(spec.wrappers)
        if "entry_point" in wrap
    ]
    named.append(("objective.kind", str(spec.objective.get("kind", ""))))
    named.append(("env.policies", spec.policies if isinstance(spec.policies, str) else ""))
    for key, value in named:
        module, _, name = value.rpartition(":")
        if module != "__main__":
            continue
        main = sys.modules["__main__"]
        file, run_as = Path(getattr(main, "__file__", None) or ""), getattr(main, "__spec__", None)
        importable = run_as.name if run_as else file.stem if file.suffix == ".py" else ""
        guard = ', with what starts the sweep below if __name__ == "__main__"'
        if not importable or importable.startswith("rltune"):
            importable, guard = "my_env", ", with its definition in a file my_env.py of this folder"
        raise ConfigError(
            key,
            value,
            "is defined by the running program or notebook, which the processes of trials cannot import",
            "a module that they can import, module:Name",
            f"{key}={importable}:{name}{guard}",
        )


def _remind(env_id: str, stall_s: float, call: str, elapsed_s: float) -> None:
    """Print what a slow check waits for."""
    what = f"{call} has taken {elapsed_s:.0f} s" if elapsed_s >= 1 else f"at {call}" if call else "its process starts"
    print(f"checking {env_id}: {what}; failures.stall_s={stall_s:g} limits each call", flush=True)


def describe_env(
    spec: Mapping[str, Any], corners: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = ()
) -> dict[str, Any]:
    """Check an environment by `check_envs`, and return what was learned about it as JSON values.

    Args:
        spec: The environment as `EnvSpec.to_dict` describes it.
        corners: As for `examine_env`, with environments so described.
    """
    warnings.simplefilter("ignore")  # What the process prints becomes part of an error.
    return check_envs(spec_of(spec), [(values, spec_of(corner)) for values, corner in corners]).to_dict()


def check_envs(spec: EnvSpec, corners: Corners) -> EnvFacts:
    """Check an environment by `check_env`, and then what it becomes in trials, each once.

    One policy is searched for, so that all of them must have the same spaces and the same mask.

    Args:
        spec: The environment.
        corners: What it becomes in trials.

    Returns:
        What was learned about it, and the longest of the time limits.

    Raises:
        RltuneError: As `check_env`; of a corner, the error names what is searched.
    """
    facts = check_env(spec)
    built = [(spec.kwargs, spec.wrappers)]
    limits, notes, shortest = [facts.time_limit], list(facts.notes), facts
    for values, corner in corners:
        (name, value), *others = values.items()
        place = f"with {format_params(dict(others))}: " if others else ": "
        fix = f"other values, or ~space.{name}"
        try:
            _check_shaping(corner)
            parts = corner.kwargs, corner.wrappers
            # The shaping of rewards needs no copy, and several agents have none, which their check says.
            if parts in built and corner.policies is None:
                continue
            there = check_env(corner, 1 / len(corners))
        except GuestError as error:
            raise error.rewrite(place + error.what, None, fix, key=f"space.{name}", value=value) from error.__cause__
        except ConfigError as error:
            raise ConfigError(f"space.{name}", value, place + error.what, error.allowed, fix) from None
        built.append(parts)
        for what in ("observation_space", "action_space", "mask", "agents"):
            before, now = getattr(facts, what), getattr(there, what)
            if before != now:
                raise ConfigError(
                    f"space.{name}",
                    value,
                    f"{place}the {what.replace('_', ' ')} becomes {now}",
                    f"values with which it stays {before}, as all trials search for one policy",
                    f"~space.{name}; {spell_command('run -m ')}{name.removeprefix('train_')}=... runs a sweep for each",
                )
        limits.append(there.time_limit)
        shortest = min(shortest, there, key=lambda each: (not each.episode_is_over, each.episode_steps))
        notes += [f"with {format_params(values)}: {note}" for note in there.notes if note not in facts.notes]
    limit = None if None in limits else max(filter(None, limits))
    episode = {name: getattr(shortest, name) for name in ("episode_steps", "episode_is_over")}
    return replace(facts, time_limit=limit, notes=tuple(dict.fromkeys(notes)), **episode)


def check_env(spec: EnvSpec, share: float = 1.0) -> EnvFacts:
    """Build an environment and take some steps, to find a wrong id, argument or wrapper before the first trial.

    It makes one copy, which is closed whatever the check finds.

    Args:
        spec: The environment.
        share: Of the time of a random episode; those of a space's corners share one.

    Returns:
        What was learned about it.

    Raises:
        ConfigError: It cannot be built, stepped or learned from; names the nearest id, or the extra to install.
    """
    if spec.policies is not None:
        return check_agents(spec, share)
    module, colon, _ = spec.id.rpartition(":")
    if colon and not module:
        raise ConfigError(
            "env.id", spec.id, "names no module before its colon", "Name-v0 or module:Name-v0", "env.id=CartPole-v1"
        )
    _check_shaping(spec)
    if (refusal := make_path_error(spec.id)) is not None:
        raise refusal
    if module:
        import_env_module(module, spec.id)
    make_score(spec.objective)
    env = bare = _make_bare_env(spec)
    try:
        if is_rllib_class(kind := type(bare.unwrapped)):  # It derives from Gymnasium's class, too.
            raise make_foreign_error(spec, kind)
        try:
            for wrap in import_wrappers(spec):
                with call_guest("make of a wrapper"):
                    env = wrap(env)
            _check_spaces(env)
            spaces = env.observation_space, env.action_space
            find_network_spaces(*spaces, spec)
        except ConfigError as error:
            raise name_setting(error, "env.id", spec.id) from None
        except GuestError as fault:
            if not isinstance(fault.__cause__, Exception):
                raise
            key, value, place, advice = find_setting(spec, bare, fault.__cause__)
            if key == "env.id":
                raise ConfigError(key, value, f"{place}: {fault.problem}", fault.allowed, advice or fault.fix) from None
            raise ConfigError(
                key,
                value,
                f"{place}: {describe_exception(fault.__cause__)}",
                "arguments that the wrappers take",
                advice or "env.wrappers=[]",
            ) from None
        check_normalising(env, spec)
        episode = check_first_steps(env, spec, share, bare)
        mask = episode.mask
        layout = find_layout(spaces[0], replace(spec, action_mask=mask.to_dict() if mask else OFF))
        leaves = [leaf for leaf in layout.leaves if leaf.kind != MASK]
        seen = [] if Layout(leaves).is_row else [describe_leaf(leaf) for leaf in leaves]
        metadata, sources = select_json(env.metadata if isinstance(env.metadata, dict) else {}), digest_sources(env)
    except Exception:
        with call_guest("close"):
            close_env(env)
        raise
    notes = [*seen, *episode.notes, *_list_native_notes(env, spec), *check_close(env)]
    return EnvFacts(
        *spaces,
        find_time_limit(env),
        mask,
        metadata,
        notes=tuple(notes),
        sources=sources,
        episode_steps=episode.steps,
        episode_is_over=episode.is_over,
    )


def check_close(env: Any) -> list[str]:
    """Close an environment, and return a note if its ``close`` raises, which does no harm to episodes.

    Raises:
        GuestError: It calls ``sys.exit``.
    """
    try:
        with limit_close(), call_guest("close"):
            env.close()
    except GuestError as fault:
        if isinstance(fault.__cause__, SystemExit):
            raise
        return [f"{fault.problem}; the episodes that were played count"]
    return []


def _list_native_notes(env: Any, spec: EnvSpec) -> list[str]:
    """Return a note if training leaves the environment's own vector version out, because single copies are needed."""
    is_atari = spec.id.startswith("ale_py:")  # It has the standard wrappers in itself, and shapes rewards.
    needs = (replace(spec, rewards={}) if is_atari else spec).name_needs()
    if not needs or (spec.wrappers and not is_atari) or not getattr(env.spec, "vector_entry_point", None):
        return []
    return [f"copies of {spec.id} step one by one, and not in its own vector version: {needs} needs that"]


def _check_spaces(env: Any) -> None:
    """Refuse an environment that lacks one of its spaces."""
    from gymnasium import Space

    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), Space):
            allowed = "an environment that has both of its spaces once it is made"
            raise ConfigError("", ABSENT, f"it has no {name}", allowed, f"self.{name} = ... in its constructor")


def _check_shaping(spec: EnvSpec) -> None:
    """Refuse a reward scale or clip that is not positive."""
    clip = spec.rewards.get("clip", 1.0)
    if not clip > 0 or not spec.rewards.get("scale", 1.0) > 0:
        raise ConfigError(
            "env.rewards",
            ABSENT,
            f": scale={spec.rewards.get('scale', 1.0)}, clip={clip}",
            "numbers above 0",
            "env.rewards.clip=1",
        )


def _make_bare_env(spec: EnvSpec) -> Any:
    """Build the environment without wrappers, and turn any exception into a ConfigError."""
    try:
        with call_guest("make"):
            return make_bare_env(spec)
    except GuestError as fault:
        if not isinstance(fault.__cause__, Exception):
            raise
        if find_outdated(fault.__cause__) is not None:
            raise fault.rewrite(f": {fault.problem}", key="env.id", value=spec.id) from fault.__cause__
        _explain_failed_make(spec, fault.__cause__, fault)


def _explain_failed_make(spec: EnvSpec, exception: Exception, fault: GuestError) -> NoReturn:
    """Raise the error that says why an environment cannot be made.

    Args:
        spec: The environment.
        exception: What its module or constructor has raised.
        fault: The same as the door says it.
    """
    import gymnasium

    if _is_vector_alone(spec.id):
        raise ConfigError(
            "env.id",
            spec.id,
            "exists only as a vector environment",
            "an environment of which single copies can be made, because evaluations and policies play single ones",
            "gymnasium.register(..., entry_point=...), a class of gymnasium.Env, beside its vector_entry_point",
        )
    before = exception.__context__  # The next lines change it.
    is_unknown = isinstance(exception, gymnasium.error.Error | ModuleNotFoundError)
    if is_unknown and (meant := find_meant(spec.id)) not in ("", spec.id):
        module, _, name = meant.rpartition(":")
        problem, allowed = f": {describe_exception(exception)}", f"{_list_registered(module)}; did you mean '{name}'?"
        raise ConfigError("env.id", spec.id, problem, allowed, f"env.id={meant}") from None
    is_known = spec.id.rpartition(":")[2] in gymnasium.registry or find_class(spec.id) is not None
    if is_known and isinstance(exception, gymnasium.error.UnregisteredEnv):  # Of another one, which its own code makes.
        raise explain_failed_make(spec, exception, before) from None
    try:
        raise exception
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            "env.id", spec.id, f"needs a package: {error}", "its extra installed", _suggest_install(spec.id)
        ) from None
    except gymnasium.error.NamespaceNotFound as error:
        module, _, name = spec.id.rpartition(":")
        if module or _find_registering_module(name):
            raise _explain_unknown(spec, describe_exception(error)) from None
        fix = "pip install 'rltune[atari]'" if spec.id.startswith("ALE/") else "install the package that registers it"
        raise ConfigError(
            "env.id", spec.id, f": {describe_exception(error)}", "an installed package, or module:Name-v0", fix
        ) from None
    except gymnasium.error.UnregisteredEnv as error:
        raise _explain_unknown(spec, describe_exception(error)) from None
    except ModuleNotFoundError as error:
        raise ConfigError(
            "env.id",
            spec.id,
            f"needs a package: {error}",
            "the packages that the environment imports, installed",
            suggest_installation(error),
        ) from None
    except Exception as error:
        if isinstance(error, gymnasium.error.Error) and not is_known:
            raise _explain_unknown(spec, describe_exception(error)) from None  # It is malformed, or deprecated.
        if is_address_in_use(error):
            problem = f"cannot be made: {describe_exception(error)}"
            raise ConfigError("env.id", spec.id, problem, *ONE_PORT_EACH) from None
        raise explain_failed_make(spec, error, before) from None


def _is_vector_alone(env_id: str) -> bool:
    """Return whether Gymnasium knows an id by a vector environment alone, of which no single copy can be made."""
    from gymnasium.envs.registration import registry
    from gymnasium.vector import VectorEnv

    if (entry := registry.get(env_id.rpartition(":")[2])) is None:
        return False
    if entry.entry_point is None:
        return entry.vector_entry_point is not None
    point = load_entry_point(entry)
    return isinstance(point, type) and issubclass(point, VectorEnv)


def _explain_unknown(spec: EnvSpec, reason: str) -> ConfigError:
    """Explain why an environment id is not registered: it is misspelt, lacks its module, or names another class.

    Args:
        reason: Gymnasium's words.
    """
    from gymnasium.envs.registration import registry

    env_id = spec.id
    module, colon, name = env_id.rpartition(":")
    defined = getattr(sys.modules.get(module), name, None)
    if isinstance(defined, type):
        return make_foreign_error(spec, defined)
    source = _find_registering_module(name)
    source = None if source == module else source  # That module was imported, and does not register the id.
    close = nearest(name, registry, 0.75)
    if close and not source:
        return ConfigError(
            "env.id",
            env_id,
            f": {reason}",
            f"a registered Gymnasium id, or module:Name-v0; did you mean '{close}'?",
            f"env.id={module}{colon}{close}",
        )
    listed = _list_registered(module) if module else ""
    plugins = [plugin for plugin in entry_points(group="gymnasium.envs") if _is_plugin_of(plugin, module)]
    if plugins and not list_ids(module):
        # Gymnasium has called what packages declare as its plug-ins until its version 1.0.
        calls = [
            f"from {point.module.removesuffix('.__init__')} import {point.attr}; {point.attr}()" for point in plugins
        ]
        return ConfigError(
            "env.id",
            env_id,
            f": {reason}",
            "an id that its module registers when it is imported, which a plug-in of Gymnasium before 1.0 does not",
            f"a file my_env.py with the line {' or '.join(dict.fromkeys(calls))}, then env.id=my_env:{name}",
        )
    if module:
        return ConfigError(
            "env.id",
            env_id,
            f": {reason}",
            listed or f"an id that {module} registers, and it registers none",
            f"env.id={source}:{name}" if source else f"gymnasium.register(id='{name}', entry_point=...) in {module}",
        )
    # Names of RLlib's `register_env` have no version.
    is_class = not re.search(r"-v[0-9]+$", name)
    return ConfigError(
        "env.id",
        env_id,
        f": {reason}",
        "a registered Gymnasium id; an environment of yours needs its module, module:Name-v0 or module:Class",
        f"env.id={source or 'my_module'}:{'Class' if is_class and not source else name}",
    )


def _is_plugin_of(plugin: EntryPoint, module: str) -> bool:
    """Return whether a plug-in of Gymnasium's is a function of a module's package, or of any if none is named."""
    return bool(plugin.attr) and (not module or plugin.module.partition(".")[0] == module.partition(".")[0])


def _list_registered(module: str) -> str:
    """List the ids that a module has registered and its classes without an id; empty if there are none."""
    ids = [f"{module}:{name}" for name in list_ids(module) | list_classes(module)]
    return f"one of: {', '.join(ids)}" if ids else ""


def _find_registering_module(name: str) -> str | None:
    """Find the module in the working directory that registers an id such as ``Thermo-v0``, or defines its class."""
    named = re.compile(
        rf"[\"']{re.escape(name)}[\"']|^class {re.escape(re.sub(r'-v[0-9]+$', '', name))}\b", re.MULTILINE
    )
    for path in sorted(Path.cwd().glob("*.py")):
        with contextlib.suppress(OSError):
            if named.search(path.read_text(errors="replace")):
                return path.stem
    return None


def _suggest_install(env_id: str) -> str:
    """Return the installation command for an environment whose package is missing."""
    import gymnasium

    entry = gymnasium.envs.registration.registry.get(env_id)
    point = str(entry.entry_point) if entry else ""
    extra = next((name for name in ("box2d", "mujoco", "atari") if name in point), None)
    return f"pip install 'rltune[{extra}]'" if extra else "install the package that the message names"


def can_normalise_rewards(env_runners: int, vectorize: str) -> bool:
    """Return whether rewards can be normalised: only where one process has all copies, as they share the deviation.

    Args:
        env_runners: How many processes sample besides the trial's own.
        vectorize: How copies of the environment step together.
    """
    return not env_runners and vectorize in ("auto", "sync")
