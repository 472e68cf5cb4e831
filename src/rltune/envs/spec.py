"""Specify an environment by plain values: its id, arguments, wrappers and reward shaping."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rltune.errors import ConfigError, choices, describe_exception, nearest, spell
from rltune.formatting import flatten_settings
from rltune.records import EVALUATION_STEPS

EXTRAS = {"ale_py": "atari", "cv2": "atari", "minigrid": "minigrid"}
"""The extra of rltune that installs each module. Those of Gymnasium's own families follow from their entry points."""

KNOWN_PACKAGES = ("gymnasium", "pettingzoo", "rltune", "ale_py", "minigrid", "mpe2")
"""The packages of the extras and of conf/env. Any policy may name their modules, whoever made it."""

UNSHAPED = {"normalise": False, "scale": 1.0, "clip": None}
"""The settings that leave rewards as the environment gives them."""

RETURN, INFO = "return", "info"
"""The objectives that need no function of the user's."""

OBJECTIVE_USAGE = (
    "return, info with objective.key, or package.module:function of an episode's return, length and last info"
)

PLAIN_RETURN = {"kind": RETURN, "key": None, "direction": "max"}
"""The objective that is the return as it is."""

NATIVE = "vector_entry_point"
"""The value of ``env.vectorize`` for an environment's own vector version."""

LAST = "last"
REDUCTIONS = (LAST, "sum", "mean", "max", "min")
"""How the values that an episode's infos have under a key become one number: the last one, their sum, and so on."""

EPISODE = "episode/"
"""Prefix of the user's own metrics in reports, trackers, constraints and objectives."""

METRIC_NAME = r"[\w. -]+(/[\w. -]+)*"
"""A regular expression for the names that all trackers take."""

METRICS_USAGE = "a list of keys of the infos, or a mapping from keys to " + ", ".join(REDUCTIONS)

WRAPPER_USAGE = "{entry_point: 'module:Class', kwargs: {...}}"

PER_COPY = ("number", "port", "folder", "one_of")
"""What an argument may be that differs between copies of an environment, see `rltune.envs.copies`."""

PER_COPY_EXAMPLES = {"port": "[port,5005]", "one_of": "[one_of,host:5005,host:5006]"}
PER_COPY_USAGE = "number, folder, [port, 5005], or [one_of, first, second, ...]"
MAX_PORT = 65_535
MAX_NUMBERS = 10_000  # More copies than a machine can have at once.

TARGET, ARRAY = "_target_", "numpy.array"
ARRAY_USAGE = "{_target_: numpy.array, object: [0.7, 0.3], dtype: float32}"
"""How an argument is written that is an array, as Hydra writes objects."""

CONTEXTS = ("env_config", "config")
"""Arguments that classes written for RLlib take; such a mapping becomes an RLlib ``EnvContext``."""


class EntryPoint(NamedTuple):
    """A module that settings or a policy's files name, and the name of something in it.

    Who imports it and who asks whether it may be imported take the same object, so that they mean the same module.
    """

    module: str
    name: str

    @classmethod
    def parse(cls, text: object, default: str = "") -> EntryPoint:
        """Split ``module:name``; a text without a colon is a name in the module ``default``."""
        module, colon, name = str(text).rpartition(":")
        return cls(module if colon else default, name)


@dataclass(frozen=True)
class EnvSpec:
    """The specification of an environment, from which it can be built anywhere; it contains plain values only.

    Attributes:
        id: Gymnasium id; ``module:Name-v0`` imports the module first, as Gymnasium does. Or ``module:Class``.
        wrappers: Applied in order, each ``{"entry_point": "module:Class", "kwargs": {...}}``.
        normalise_observations: Whether training normalises observations; policies contain the statistics.
        rewards: ``normalise``, ``scale`` and ``clip``, without those that change nothing.
        objective: ``kind``, ``key`` and ``direction`` of what an episode is worth (`rltune.envs.objective`), with how
            the key's values are reduced and what counts without them; empty for its return.
        metrics: How values in the infos of an episode's steps become one number, by key (`rltune.envs.meter`).
        restarts: How many times a copy is made again within ten minutes after it has failed
            (`rltune.envs.restarts`).
        policies: Which policy acts for which of several agents (`rltune.envs.pettingzoo`); None for one agent.
        evaluation_steps: The steps after which an evaluated episode is cut that does not end by itself; None is the
            default, which an environment with a time limit of its own always has, as it ends its episodes itself.
        per_copy: What each living copy has for itself, by the constructor's argument: ``number``, ``[port, 5005]``,
            ``folder`` or ``[one_of, ...]`` (`rltune.envs.copies`).
        max_copies: The most copies on a machine at once, of all environments that set it; None: no bound.
        joint_actions: Whether training chooses among all combinations of an action's choices, as `rltune.envs.actions`
            says; the build of an algorithm that has no head for each part sets it.
        action_mask: ``auto`` or ``off`` as typed; the build sets it to what the check has found for ``auto``, see
            `rltune.envs.masks.MaskSource`. Without that, nothing is masked.
        encode: What networks make of leaves of the observations, by name (`rltune.envs.observations.make_layout`).
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Mapping[str, Any], ...] = ()
    normalise_observations: bool = False
    rewards: Mapping[str, Any] = field(default_factory=dict)
    policies: str | Mapping[str, str] | None = None
    objective: Mapping[str, Any] = field(default_factory=dict)
    evaluation_steps: int | None = None
    restarts: int = 0
    per_copy: Mapping[str, Any] = field(default_factory=dict)
    max_copies: int | None = None
    joint_actions: bool = False
    action_mask: str | Mapping[str, Any] = "auto"
    encode: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as values that JSON can hold; `spec_of` reads them."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
        plain["wrappers"] = [dict(wrapper) for wrapper in self.wrappers]
        always = ("id", "kwargs", "wrappers", "normalise_observations", "rewards")
        return {name: value for name, value in plain.items() if name in always or (value and value != "auto")}

    @property
    def needs_single_copies(self) -> bool:
        """Whether training steps copy by copy, as only that shapes rewards and puts records into infos."""
        return bool(self.name_needs())

    def name_needs(self) -> str:
        """Name the settings for which copies are stepped one by one; empty if there are none."""
        needed = {"env.rewards": self.rewards, "objective": self.objective, "metrics": self.metrics}
        return " and ".join(key for key, value in {**needed, "env.restarts": self.restarts}.items() if value)

    @property
    def measured(self) -> dict[str, str]:
        """How values in the infos are reduced, by key: those of the metrics and of the objective."""
        own = {str(self.objective["key"]): self.objective.get("reduce", LAST)} if self.scores_infos else {}
        return {**self.metrics, **own}

    @property
    def scores_infos(self) -> bool:
        """Whether the objective is a value of the infos, which an episode may lack."""
        return self.objective.get("kind") == INFO

    def list_normalised(self) -> list[str]:
        """List what training normalises: ``observations``, ``rewards``, both or nothing."""
        parts = {"observations": self.normalise_observations, "rewards": self.rewards.get("normalise")}
        return [part for part, is_normalised in parts.items() if is_normalised]

    @property
    def registration(self) -> EntryPoint:
        """The module that registers the environment, if its id names one; for several agents it may be the id."""
        is_module = self.policies is not None and ":" not in self.id
        return EntryPoint(self.id, "") if is_module else EntryPoint.parse(self.id)

    @property
    def may_be_class(self) -> bool:
        """Whether the id may be ``module:Class``, which Gymnasium's registry does not have."""
        return bool(self.registration.module) and self.registration.name.isidentifier()

    @property
    def scoring(self) -> EntryPoint | None:
        """The function of the user's that scores an episode; None if rltune's own do."""
        return parse_scoring(self.objective)

    @property
    def wrapping(self) -> list[EntryPoint]:
        """The classes of the wrappers."""
        return [parse_wrapper(wrapper, index) for index, wrapper in enumerate(self.wrappers)]

    def list_imports(self) -> list[str]:
        """List the modules that building the environment and scoring its episodes import."""
        points = [self.registration, *self.wrapping, *([self.scoring] if self.scoring else [])]
        return list(dict.fromkeys(point.module for point in points if point.module))

    @property
    def has_variables(self) -> bool:
        """Whether building the environment puts values of this machine, such as environment variables, into it."""
        return has_variables(self.kwargs) or any(has_variables(wrapper) for wrapper in self.wrappers)

    @property
    def digest(self) -> str:
        """A digest of everything that scores depend on: id, arguments, wrappers, objective, and the limit of episodes.

        The shaping of rewards does not belong to it, and neither does the limit's default or what tells copies apart.
        """
        wrappers = [[wrapper.get("entry_point"), dict(wrapper.get("kwargs") or {})] for wrapper in self.wrappers]
        parts: list[Any] = [self.id, dict(self.kwargs), wrappers, *([dict(self.objective)] if self.objective else [])]
        if self.step_limit != EVALUATION_STEPS:
            parts.append({"evaluation_steps": self.step_limit})
        task = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(task.encode()).hexdigest()[:12]

    @property
    def step_limit(self) -> int:
        """The steps after which an evaluated episode is cut that does not end by itself."""
        return EVALUATION_STEPS if self.evaluation_steps is None else self.evaluation_steps

    @property
    def is_numbered(self) -> bool:
        """Whether each living copy has a number of its own on its machine."""
        return bool(self.per_copy) or self.max_copies is not None

    @property
    def needs_context(self) -> bool:
        """Whether an argument becomes RLlib's ``EnvContext``, which says which copy it is."""
        return any(isinstance(self.kwargs.get(name), Mapping) for name in CONTEXTS)

    @property
    def copy_limit(self) -> tuple[str, int] | None:
        """The setting that bounds the copies on a machine most, and the most copies; None without a bound."""
        limits = {} if self.max_copies is None else {"env.max_copies": self.max_copies}
        lists = {name: form for name, form in self.per_copy.items() if not isinstance(form, str)}
        limits |= {f"env.per_copy.{name}": len(form) - 1 for name, form in lists.items() if form[0] == "one_of"}
        if firsts := {form[1]: name for name, form in lists.items() if form[0] == "port"}:
            limits[f"env.per_copy.{firsts[max(firsts)]}"] = _count_numbers(tuple(firsts))
        return min(limits.items(), key=lambda item: item[1]) if limits else None


def parse_wrapper(wrapper: Any, index: int) -> EntryPoint:
    """Return the class of a wrapper; without a module it is one of Gymnasium's.

    Raises:
        ConfigError: It lacks an entry point.
    """
    if not isinstance(wrapper, Mapping) or set(wrapper) - {"entry_point", "kwargs"} or "entry_point" not in wrapper:
        key = f"env.wrappers[{index}]"
        raise ConfigError(key, wrapper, "is no wrapper", WRAPPER_USAGE, "see gymnasium.wrappers for names")
    return EntryPoint.parse(wrapper["entry_point"], "gymnasium.wrappers")


def parse_scoring(objective: Mapping[str, Any]) -> EntryPoint | None:
    """Return the function of the user's that an objective names; None if it is one of rltune's kinds.

    Raises:
        ConfigError: The kind is neither one of rltune's nor ``module:function``.
    """
    kind = objective.get("kind", RETURN)
    if kind in (RETURN, INFO):
        return None
    point = EntryPoint.parse(kind)
    if not all(point):
        raise ConfigError("objective.kind", kind, "", OBJECTIVE_USAGE, choices(str(kind), (RETURN, INFO)))
    return point


def has_variables(arguments: Any) -> bool:
    """Return whether arguments hold an ``${oc.env:NAME}``, so that `resolve_arguments` replaces what they hold."""
    return "${oc.env:" in str(arguments)


def are_resolved(arguments: Any) -> bool:
    """Return whether an environment is built with arguments as they are: `resolve_arguments` would change nothing."""
    return not has_variables(arguments) and TARGET not in str(arguments)


def resolve_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which an environment or wrapper is built, with what YAML cannot hold.

    ``${oc.env:NAME}`` becomes the variable's value, and `ARRAY_USAGE` an array of NumPy's. Call it only to build an
    environment: the values may be secret, and specifications are written to files.

    Raises:
        ConfigError: The variable is not set, or NumPy makes no array of what is given.
    """
    if are_resolved(arguments):
        return dict(arguments)
    resolved = _resolve_variables(arguments) if has_variables(arguments) else arguments
    return cast(dict[str, Any], _make_arrays(resolved))


def _make_arrays(value: Any) -> Any:
    """Return nested arguments with arrays in the place of their descriptions."""
    if isinstance(value, list):
        return [_make_arrays(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    if value.get(TARGET) != ARRAY:  # Environments that make objects of such mappings themselves get them as they are.
        return {name: _make_arrays(part) for name, part in value.items()}
    import numpy as np  # Imported here, because a typing error is answered before NumPy is loaded.

    given = {name: part for name, part in value.items() if name != TARGET}
    try:
        return np.array(*given.pop("_args_", ()), **given)
    except Exception as error:  # NumPy raises many types.
        problem = f"makes no array: {describe_exception(error)}"
        raise ConfigError("env.kwargs", dict(value), problem, ARRAY_USAGE, "see numpy.array") from None


def suggest_array(error: BaseException | None, *parts: Mapping[str, Any]) -> str | None:
    """Suggest an array for a list of numbers among arguments, if an error is one that a list raises in its place.

    Args:
        error: What the code has raised that has got the arguments.
        parts: The arguments.

    Returns:
        What to write; None without such a list, and after another error.
    """
    if not isinstance(error, TypeError | AttributeError | AssertionError):
        return None
    for name, value in (item for part in parts for item in flatten_settings(part)):
        first = value
        while isinstance(first, list | tuple) and first:
            first = first[0]
        if first is not value and isinstance(first, int | float):
            return f"{name}: {{{TARGET}: {ARRAY}, object: {spell(value)}}} if it has to be an array of NumPy's"
    return None


def _resolve_variables(arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(dict(arguments)), resolve=True))
    except OmegaConfBaseException as error:
        raise ConfigError(
            "env.kwargs",
            dict(arguments),
            f": {describe_exception(error)}",
            "environment variables that are set wherever the environment is built, on each node of a cluster",
            "export the variable",
        ) from None


def spec_of(config: Any) -> EnvSpec:
    """Return the specification of an environment from a mapping or a dataclass that has the fields of `EnvSpec`."""
    if isinstance(config, EnvSpec):
        return config
    raw = asdict(config) if is_dataclass(config) and not isinstance(config, type) else dict(config)
    given = (raw.get("rewards") or {}).items()
    rewards = {key: value for key, value in given if value is not None and value != UNSHAPED.get(key)}
    kwargs, per_copy, max_copies = raw.get("kwargs") or {}, raw.get("per_copy") or {}, raw.get("max_copies")
    _check_per_copy(per_copy, kwargs)
    if max_copies is not None and (type(max_copies) is not int or max_copies < 1):
        raise ConfigError("env.max_copies", max_copies, "is out of range", "at least 1, or null", "env.max_copies=4")
    return EnvSpec(
        raw["id"],
        kwargs,
        tuple(raw.get("wrappers") or ()),
        bool(raw.get("normalise_observations")),
        rewards,
        raw.get("policies"),
        raw.get("objective") or {},
        raw.get("evaluation_steps"),
        int(raw.get("restarts") or 0),
        per_copy=per_copy,
        max_copies=max_copies,
        joint_actions=bool(raw.get("joint_actions")),
        action_mask=raw.get("action_mask") or "auto",
        encode=dict(flatten_settings(raw.get("encode") or {})),  # A name may be typed as a mapping in a mapping.
        metrics=parse_metrics(raw.get("metrics")),
    )


def name_metric(key: str) -> str:
    """Return the name of a metric in reports; a key of a nested info has slashes for its points."""
    return EPISODE + key.replace(".", "/")


def parse_metrics(declared: Any) -> dict[str, str]:
    """Return the reduction of each metric by its key of the infos; a list means `LAST`.

    Raises:
        ConfigError: It is neither a list nor a mapping, a key cannot name a number, or a reduction is unknown.
    """
    if not declared:
        return {}
    if isinstance(declared, list | tuple):
        metrics = dict.fromkeys(map(str, declared), LAST)
    elif isinstance(declared, Mapping):
        metrics = {str(key): str(reduction) for key, reduction in flatten_settings(declared)}
    else:
        raise ConfigError("metrics", declared, "is no list", METRICS_USAGE, f"metrics=[{declared}]")
    for key, reduction in metrics.items():
        if not re.fullmatch(METRIC_NAME, key) or ".." in key:
            allowed = "letters, digits, - _ / and points, which lead into nested infos"
            raise ConfigError("metrics", key, "cannot name a number", allowed, "a wrapper that gives it another name")
        if reduction not in REDUCTIONS:
            fix = f"metrics.{key}={nearest(reduction, REDUCTIONS) or LAST}"
            raise ConfigError(f"metrics.{key}", reduction, "is unknown", choices(reduction, REDUCTIONS), fix)
    names = [name_metric(key) for key in metrics]
    if twice := next((key for key, name in zip(metrics, names, strict=True) if names.count(name) > 1), None):
        raise ConfigError("metrics", twice, "has the name of another metric", "names that differ", "leave one out")
    return metrics


def _check_per_copy(per_copy: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse an argument that each copy would have for itself if its form is wrong or it has a fixed value, too.

    Raises:
        ConfigError: Names the argument, the forms that are allowed and one that fits.
    """
    for name, form in per_copy.items():
        key = f"env.per_copy.{name}"
        parts = form if isinstance(form, list | tuple) else [form]
        kind = parts[0] if parts else None
        is_alone = len(parts) == 1
        if name in kwargs:
            value, fix = kwargs[name], f"~env.kwargs.{name}, or ~{key}"
            raise ConfigError(f"env.kwargs.{name}", value, f"is also set by {key}", "one of the two", fix)
        if kind not in PER_COPY:
            close = nearest(str(kind), PER_COPY)
            example = PER_COPY_EXAMPLES.get(close or "port")
            if example and close and not is_alone:
                example = spell([close, *parts[1:]])
            typed = f"'++{key}={example}'" if example else f"++{key}={close}"
            fix = typed if close else f"++{key}=number, or {typed}"
            raise ConfigError(key, form, "is unknown", f"{PER_COPY_USAGE}; {choices(str(kind), PER_COPY)}", fix)
        if kind in ("number", "folder") and (not is_alone or parts is form):
            raise ConfigError(key, form, "is no list", PER_COPY_USAGE, f"++{key}={kind}")
        if kind == "port" and not (
            len(parts) == 2 and type(parts[1]) is int and 0 < parts[1] <= MAX_PORT and parts is form
        ):
            allowed = f"[port, FIRST] with a first port from 1 to {MAX_PORT}; the copy's number is added to it"
            raise ConfigError(key, form, "names no first port", allowed, f"'++{key}={PER_COPY_EXAMPLES['port']}'")
        if kind == "one_of" and is_alone:
            allowed = "[one_of, first, second, ...], one for each copy"
            raise ConfigError(key, form, "names nothing", allowed, f"'++{key}={PER_COPY_EXAMPLES['one_of']}'")
    _check_disjoint(per_copy)


def _check_disjoint(per_copy: Mapping[str, Any]) -> None:
    """Refuse arguments that ask for the same port or element: one copy, or as many as are listed, never get them.

    Raises:
        ConfigError: Names the later argument, and a value with which all of them can be had.
    """
    firsts: dict[int, str] = {}
    owners: dict[str, str] = {}
    for name, form in per_copy.items():
        key = f"env.per_copy.{name}"
        if form[0] == "port":
            if form[1] in firsts:
                others = (*range(form[1] + 1000, MAX_PORT, 1000), *range(form[1] - 1000, 0, -1000))
                fix = f"'++{key}=[port,{next(port for port in others if port not in firsts)}]'"
                problem = f"is the range of env.per_copy.{firsts[form[1]]}, which leads to one port for both"
                raise ConfigError(key, form, problem, "another first port for each argument", fix)
            firsts[form[1]] = name
        elif form[0] == "one_of":
            elements = {spell_element(element): element for element in form[1:]}
            shared = next((owners[text] for text in elements if text in owners), None)
            if shared or len(elements) < len(form) - 1:
                left = [element for text, element in elements.items() if text not in owners]
                fix = f"'++{key}={spell(['one_of', *left])}'" if left else f"~{key}"
                problem = f"has an element of env.per_copy.{shared}" if shared else "has an element twice"
                allowed = "elements that are listed once, as no two living copies share one"
                raise ConfigError(key, form, problem, allowed, fix)
            owners |= dict.fromkeys(elements, name)


def spell_element(element: Any) -> str:
    """Write an element of ``one_of`` so that equal ones, and only those, are written alike."""
    return json.dumps(element, sort_keys=True, default=str)


@functools.cache
def _count_numbers(firsts: tuple[int, ...]) -> int:
    """Count the copies that can live at once with ports of all these ranges, which may overlap."""
    used: set[int] = set()
    num_copies = 0
    for number in range(min(MAX_NUMBERS, MAX_PORT + 1 - max(firsts))):
        if used.isdisjoint(ports := [first + number for first in firsts]):
            used.update(ports)
            num_copies += 1
    return num_copies


def specify_env(env: Any, objective: Any, metrics: Any = None) -> EnvSpec:
    """Return the specification of an environment, with the objective and the metrics that the sweep's settings name.

    Raises:
        ConfigError: The objective names a metric that is none.
    """
    # The key "second" concerns whole trials. All other keys say how one episode is scored.
    wanted = {key: value for key, value in asdict(objective).items() if key != "second"}
    if wanted["missing"] is None:
        del wanted["missing"]
    declared = parse_metrics(metrics)
    if (key := wanted.get("key")) is not None:
        named = {name_metric(each): each for each in declared}
        wanted["key"] = named.get(key, key)
        if key.startswith(EPISODE) and key not in named:
            fix = f"'+metrics.{key.removeprefix(EPISODE).replace('/', '.')}={LAST}'"
            raise ConfigError("objective.key", key, ": there is no such metric", choices(key, named), fix)
        if (reduction := declared.get(wanted["key"], LAST)) != LAST:
            wanted["reduce"] = reduction
    return replace(spec_of(env), objective={} if wanted == PLAIN_RETURN else wanted, metrics=declared)
