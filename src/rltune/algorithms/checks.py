"""Refuse settings of an algorithm with which RLlib would not train, without importing RLlib.

A new check of an algorithm's settings belongs into `check_algorithm`. RLlib's own validation, which has to import it,
comes later, see `rltune.algorithms.preflight`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rltune.algorithms.arguments import (
    ENCODER,
    ENCODER_KWARGS,
    MODULE_CLASS,
    apply_params,
    check_values,
    count_learners,
    locate_argument,
    read_argument,
    read_encoder,
    read_shipped,
)
from rltune.algorithms.rllib_source import list_keywords
from rltune.config.capabilities import UNKNOWN, Capabilities, list_algos
from rltune.errors import ConfigError, choices, spell
from rltune.formatting import format_value
from rltune.search.space import Space

_MODEL = ("rl_module", "model_config")
_RELATIONS = (
    (("training", "minibatch_size"), ("training", "train_batch_size_per_learner")),
    (("training", "n_step"), ("env_runners", "rollout_fragment_length")),
    (("training", "v_min"), ("training", "v_max")),
)
"""Pairs of arguments of which RLlib wants the first to be at most the second."""


def check_algorithm(algo: Mapping[str, Any], space: Space, row: Capabilities | None, *, several_agents: bool) -> None:
    """Refuse settings of an algorithm with which RLlib would not train.

    Args:
        algo: The algo file.
        space: The search space.
        row: The algorithm's features; None if its class has to be imported to know them.
        several_agents: Whether the environment has several agents.

    Raises:
        ConfigError: Names the first of them, what is allowed and what to type.
    """
    check_values(algo, space, row or UNKNOWN)
    _check_names(algo, row or UNKNOWN)
    _check_layers(algo)
    _check_encoder(algo, space, row or UNKNOWN, several_agents)
    if row is not None:
        _check_agents(algo, row, several_agents)
        _check_lstm(algo, space, row, several_agents)
        _check_relations(algo, space, row)


def _check_names(algo: Mapping[str, Any], row: Capabilities) -> None:
    """Refuse arguments of ``training`` that RLlib's config does not have. Those of the shipped file are known to it."""
    shipped, target = read_shipped(algo, row).get("training") or {}, str(algo["class"])
    arguments = algo.get("training") or {}
    own = [name for name in arguments if name not in shipped]
    known = list_keywords(target, "training") if own else None
    if known and (unknown := [name for name in own if name not in known]):
        raise make_unknown_error(target.rpartition(":")[2], "training", unknown[0], arguments[unknown[0]], known)


def _check_layers(algo: Mapping[str, Any]) -> None:
    """Refuse sizes of layers that are no list."""
    for name in ("fcnet_hiddens", "head_fcnet_hiddens"):
        sizes = read_argument(algo, (*_MODEL, name))
        if sizes is not None and not isinstance(sizes, list | tuple):
            key = f"algo.rl_module.model_config.{name}"
            raise ConfigError(key, sizes, "is no list", "the units of each layer", f"{key}=[{sizes}]")


def list_encoders(algo: Mapping[str, Any], space: Space) -> list[tuple[str, dict[str, Any]]]:
    """List the encoders of the user's, with their arguments, at the corners of a search space.

    Args:
        algo: The algo file.
        space: The search space.
    """
    encoders: list[tuple[str, dict[str, Any]]] = []
    for values in ({}, *space.corners()):
        encoder = read_encoder(apply_params(algo, values))
        if encoder is not None and encoder not in encoders:
            encoders.append(encoder)
    return encoders


def _check_encoder(algo: Mapping[str, Any], space: Space, row: Capabilities, several_agents: bool) -> None:
    """Refuse an encoder of the user's where none is trained, one without a module, and arguments that none takes."""
    key, kwargs = f"algo.rl_module.{ENCODER}", read_argument(algo, ("rl_module", ENCODER_KWARGS)) or {}
    encoders = list_encoders(algo, space)
    drop = f"{key}=null" + f" ~space.{ENCODER}" * (ENCODER in space.names)
    if encoders and (several_agents or not row.own_encoders):
        who = "the policies of several agents have" if row.own_encoders else f"algo={algo['name']} trains"
        able = f"{list_algos(lambda row: row.own_encoders)}, with one agent"
        raise ConfigError(key, encoders[0][0], f": {who} no encoder of yours", able, f"algo=ppo, or {drop}")
    if encoders and (module_class := read_argument(algo, ("rl_module", MODULE_CLASS))):
        problem = f": algo.rl_module.{MODULE_CLASS}={module_class} has its own encoder"
        raise ConfigError(key, encoders[0][0], problem, "one of the two", drop)
    for target, _ in encoders:
        module, colon, name = target.partition(":")
        if not (module and colon and name) or module == "__main__":
            allowed = "module:Class in a file that the processes of trials can import"
            fix = f"{key}=my_nets:{name or target.rpartition('.')[2]}"
            raise ConfigError(key, target, "names no class that others can import", allowed, fix)
    searched = [each for each in space.names if each.startswith(f"{ENCODER_KWARGS}.")]
    if not isinstance(kwargs, Mapping) or (not encoders and (kwargs or searched)):
        problem = ": no trial has an encoder that takes them" if isinstance(kwargs, Mapping) else "is no mapping"
        fix = f"{key}=module:Class, or {' '.join([f'{key}_kwargs={{}}', *(f'~space.{each}' for each in searched)])}"
        raise ConfigError(f"{key}_kwargs", kwargs, problem, "the arguments of an encoder of yours", fix)
    in_file = read_argument(algo, ("rl_module", ENCODER))
    for dimension in space.dimensions:
        path = dimension.name.split(".")
        if path[0] != ENCODER_KWARGS or read_argument(algo, ("rl_module", *path)) is not None:
            continue
        if in_file in dimension.when.get(ENCODER, (in_file,)):
            value = format_value(space.list_marks(dimension.name)[0])
            raise ConfigError(
                f"space.{dimension.name}",
                dimension.form,
                ": the baseline has no value for it",
                "a value in the algo's settings, or a condition that the baseline does not meet: "
                f"[when,{{{ENCODER}: module:Class}},[...]]",
                f"++algo.rl_module.{dimension.name}={value}",
            )
    for name in ("conv_filters", "conv_activation"):
        if encoders and all(apply_params(algo, each)["rl_module"].get(ENCODER) for each in space.corners()):
            typed = read_argument(algo, (*_MODEL, name))
            if typed is not None:
                setting = f"algo.rl_module.model_config.{name}"
                problem = f": the encoder {encoders[0][0]} sees images in its own way"
                raise ConfigError(setting, typed, problem, f"{key}_kwargs for its layers", f"~{setting}")


def make_unknown_error(config: str, section: str, name: str, value: Any, known: list[str]) -> ConfigError:
    """Make the error for an argument that RLlib's config does not have.

    Args:
        config: The config's class.
        section: The argument's section of the algo file.
        name: The argument.
        value: Its value.
        known: The arguments that the section has.
    """
    key = f"algo.{section}.{name}"
    problem, fix = f": {config} has no such argument", f"correct or remove it: ~{key}"
    return ConfigError(key, value, problem, choices(name, known), fix)


def _check_agents(algo: Mapping[str, Any], row: Capabilities, several_agents: bool) -> None:
    """Refuse several agents for algorithms that train one."""
    if several_agents and not row.several_agents:
        raise ConfigError(
            "algo",
            algo["name"],
            "is for one agent, and env.policies asks for several",
            list_algos(lambda row: row.several_agents),
            "algo=ppo",
        )


def _check_lstm(algo: Mapping[str, Any], space: Space, row: Capabilities, several_agents: bool) -> None:
    """Refuse an LSTM for algorithms that RLlib cannot train with it: they would fail at the first update (Ray 2.60)."""
    if (several_agents or not row.lstm) and any(_list_values(algo, space, (*_MODEL, "use_lstm"))):
        cls = str(algo["class"]).rpartition(":")[2]
        who = "policies of several agents act with" if row.lstm else f"RLlib 2.60's {cls} trains"
        raise ConfigError(
            "algo.rl_module.model_config.use_lstm",
            True,
            f": {who} no LSTM",
            f"use_lstm with {list_algos(lambda row: row.lstm)} and one agent",
            "algo.rl_module.model_config.use_lstm=false, or algo=ppo",
        )


def _check_relations(algo: Mapping[str, Any], space: Space, row: Capabilities) -> None:
    """Refuse values that are too large beside those of another argument, at any corner of the space.

    With several learners, a batch is larger than its setting says, and offline algorithms have no such relations.
    """
    for smaller, larger in _RELATIONS if not row.offline and count_learners(algo) <= 1 else ():
        values, limits = _list_values(algo, space, smaller), _list_values(algo, space, larger)
        for value, limit in zip(values, limits, strict=True):
            if not (_is_number(value) and _is_number(limit) and value > limit):
                continue
            least = min(each for each in limits if _is_number(each))
            name = ".".join(smaller)
            dimension = next((each for each in space.dimensions if locate_argument(algo, each.name) == smaller), None)
            parameter = next((each for each in space.names if locate_argument(algo, each) == smaller), None)
            key = f"space.{parameter}" if parameter else f"algo.{name}"
            fix = f"{key}={spell(least)}"
            if dimension and dimension.kind != "choice" and not dimension.bounds:
                low, _, *step = dimension.args
                related = replace(dimension, args=(low, larger[-1], *step), when={})
                with contextlib.suppress(ValueError):  # No value of the range is small enough everywhere.
                    narrow = related.given({larger[-1]: least})
                    fix = f"{key}={spell(narrow.form if low < narrow.args[1] else low)}, or {key}={spell(related.form)}"
            raise ConfigError(
                key,
                value,
                f"exceeds {larger[-1]}={limit}",
                f"{smaller[-1]} at most as large as {larger[-1]}, in every trial",
                fix,
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list_values(algo: Mapping[str, Any], space: Space, path: tuple[str, ...]) -> list[Any]:
    """List the values of an argument at each corner of the space."""
    names = [name for name in space.names if locate_argument(algo, name) == path]
    in_file = read_argument(algo, path)
    return [corner.get(names[0], in_file) if names else in_file for corner in space.corners()]
