"""Write settings as Hydra overrides, from Python values and from overrides as users type them."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, get_args

from rltune.compose.groups import find_options
from rltune.config.advice import advise_option
from rltune.config.bounds import find_type
from rltune.envs.spec import ARRAY, TARGET
from rltune.errors import ConfigError
from rltune.other_tools import find_answer
from rltune.search.dimensions import KINDS

OPEN = (
    "algo",
    "constraints",
    "env",
    "metrics",
    "scheduler",
    "searcher",
    "space",
)  # Config groups to which users may add keys.

MAPPINGS = ("env.kwargs", "env.per_copy", "env.encode", "metrics", "score.env", "certify.env")
"""Settings whose keys are an environment's own, or in no file."""
FREE = ("env.encode.", "metrics.", "score.env.", "certify.env.")
"""Groups in which any word adds a key; keys of env.kwargs may be in a file."""
REPLACED = ("env.policies",)
"""Mappings that replace those of files and are not merged with them: the first pattern that matches an agent counts."""
_QUOTED_KEY = re.compile(r"([{,]\s*)(['\"])([\w/.*?@|+-]+)\2(\s*:)")
_NUMBER = re.compile(r"(?i)[+-]?(?:[\d._]+(?:e[+-]?\d+)?|inf|nan)|true|false")
_IN_ENV = re.compile(r"(?:^|\.)(?:train_)?env\.(?:kwargs|wrappers)")
_COMMA = re.compile(r"(?<!\\),(?![^{]*\}|[^(]*\))")  # No comma that is escaped or stands in braces or parentheses.
_PART = re.compile(
    r"""
    \s*'(?:\\.|[^'\\])*'\s*(?![^][{},]) | \s*"(?:\\.|[^"\\])*"\s*(?![^][{},])  # a quoted text
    | [][{},]  # what a list or mapping is made of
    | (?:\$\{[^}]*\} | \\. | [^][{},\\])+ | .  # a text
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
_CALLED = re.compile(r"(\+*space\.[\w.]+)=((?:\w+\.)*)(\w+)\((.*)\)")


def spell_word(word: str, schema: type) -> str:
    """Translate one setting, as users type it, to Hydra's override grammar."""
    return write_whole_numbers(quote_free_text(write_range(add_to_mapping(unquote_keys(word)))), schema)


def unquote_keys(word: str) -> str:
    """Write the keys of a mapping without the quotes of JSON, which Hydra's grammar does not have."""
    key, _, value = word.partition("=")
    return f"{key}=" + _QUOTED_KEY.sub(r"\1\3\4", value) if value.startswith(("{", "[{")) else word


def expand_group(word: str, schema: type) -> list[str]:
    """Write ``space={lr: 1e-3}``, settings of a config group in one mapping, as a word for each of them.

    Such a word replaces the name of the group's file in Hydra's grammar. Other words stay as they are.
    """
    from hydra.errors import HydraException

    key, _, value = word.partition("=")
    name = key.lstrip("+")
    if not value.startswith("{") or name in ("portfolio", "experiment") or not find_options(name):
        return [word]
    try:
        settings = _make_parser().parse_override(spell_word(word, schema)).value()
    except HydraException:
        return [word]
    return list(spell_settings({name: settings}))


def replace_mapping(word: str) -> list[str]:
    """Write ``env.policies={...}``, with or without ``+``, so that it replaces what a file has, as two words."""
    key, _, value = word.partition("=")
    name = key.lstrip("+")
    return [f"{name}=null", f"++{name}={value}"] if name in REPLACED and value.startswith("{") else [word]


def add_to_mapping(word: str) -> str:
    """Let ``env.kwargs={size: 4}`` and ``score.env.kwargs.split=test`` add keys, for which Hydra wants a ``++``."""
    key, _, value = word.partition("=")
    is_whole = key in MAPPINGS and value.lstrip().startswith("{")
    return f"++{word}" if is_whole or key.startswith(FREE) else word


def write_range(word: str) -> str:
    """Write ``space.lr=loguniform(1e-4,1e-2)`` as a list, also with another tool's words, ``tune.loguniform(...)``.

    ``choice(...)`` stays, as Hydra's ``-m`` understands it.
    """
    match = _CALLED.fullmatch(word)
    if match is None:
        return word
    key, package, kind, args = match.groups()
    if not (kind in KINDS or find_answer("kind", kind)) or (kind == "choice" and not package):
        return word
    if re.fullmatch(r"\[[^\[\]]*\]", args):  # `tune.choice([1, 2])` lists its values.
        args = args[1:-1]
    return f"{key}=[{kind},{args}]"


def write_whole_numbers(word: str, schema: type) -> str:
    """Write ``budget.env_steps=1e5`` as 100000, because OmegaConf accepts no float for an integer setting."""
    key, equals, value = word.partition("=")
    kind = find_type(schema, key.lstrip("+"))
    if not equals or int not in (kind, *get_args(kind)):
        return word
    return "=".join([key, ",".join(map(_write_whole_number, value.split(",")))])


def _write_whole_number(text: str) -> str:
    with contextlib.suppress(ValueError, OverflowError):
        if float(text) == int(float(text)) and not text.strip().lstrip("+-").isdigit():
            return str(int(float(text)))
    return text


def quote_free_text(word: str) -> str:
    """Quote values that Hydra's grammar cannot read or would not read as strings.

    These are texts with letters of other scripts or marks, such as ``output_dir=/data/Läufe (neu)`` and
    ``constraints.train_s=< 60``, also in lists and mappings; addresses in ``notify``; and names that look like
    numbers: the sweeps ``1.10`` and ``1.1`` differ. What is no value of any kind, such as a list without its end, is
    left as it is.
    """
    key, equals, value = word.partition("=")
    name = key.lstrip("+")
    is_address = name == "notify" and value not in ("", "null") and not value.startswith(("'", '"', "${"))
    is_number = name == "name" and bool(_NUMBER.fullmatch(value))
    if is_address or is_number:
        return f"{key}={spell_value(key, value)}"
    if not equals or _is_readable(value):
        return word
    if (start := value.lstrip()[:1]) in ("'", '"'):
        return word
    if start in ("[", "{"):
        quoted = _quote_parts(value)
    else:  # Several, for -m, are separated by commas.
        call = re.fullmatch(r"choice\((.*)\)", value, re.DOTALL)
        texts = ",".join(map(_quote_text, _COMMA.split(call[1] if call else value)))
        quoted = f"choice({texts})" if call else texts
    return f"{key}={quoted}" if _is_readable(quoted) else word


def _is_readable(value: str) -> bool:
    """Return whether Hydra's grammar has a value, or several for ``-m``."""
    from hydra.errors import HydraException

    try:
        _make_parser().parse_rule(f"key={value}", "override")
    except HydraException:
        return False
    return True


@functools.cache
def _make_parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _quote_parts(value: str) -> str:
    """Quote the texts in a list or mapping that Hydra's grammar cannot read."""
    quoted, open_brackets = [], [""]
    for part in _PART.findall(value):
        key = ""
        if part in "[{":
            open_brackets.append(part)
        elif part in "]}":
            open_brackets.pop() if len(open_brackets) > 1 else None
        elif open_brackets[-1] == "{" and not part.startswith(","):
            key, colon, part = part.partition(":")
            key += colon
        quoted.append(key + (part if part.strip() in "[]{},:" else _quote_text(part)))
    return "".join(quoted)


def _quote_text(text: str) -> str:
    """Quote a text that Hydra's grammar cannot read."""
    if _is_readable(text):
        return text
    return spell_value("", _ESCAPED.sub(r"\1", text.strip()))


def spell_settings(settings: Mapping[str, Any]) -> Iterator[str]:
    """Write a dictionary of settings as Hydra overrides; keys of nested mappings are joined with dots."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            force = "++" if key in OPEN else ""
            # A number's name has slashes, which Hydra's grammar does not allow in a key, so dots take their place.
            dotted = {name.replace("/", "."): leaf for name, leaf in value.items()} if key == "constraints" else value
            for name, leaf in _flatten(key, dotted):
                yield f"{force}{name}={spell_value(name, leaf)}"
        else:
            yield f"{key}={spell_value(key, value)}"


def _flatten(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    # A mapping is written whole if one of its names can be in no key of Hydra's grammar.
    is_flat = isinstance(value, Mapping) and all(re.fullmatch(r"[\w.$-]+", str(name)) for name in value)
    if is_flat and value and key not in REPLACED:
        for name, nested in value.items():
            yield from _flatten(f"{key}.{name}", nested)
    else:
        yield key, value


def spell_value(key: str, value: Any) -> str:
    """Write a Python value in Hydra's override grammar; a range of Ray Tune's or Optuna's as one of ours.

    Raises:
        ConfigError: A setting cannot have a value of this type.
    """
    # Convert a NumPy scalar, which has `item` and no length.
    value = value.item() if hasattr(value, "item") and not hasattr(value, "__len__") else value
    if type(value).__module__ == "numpy" and _IN_ENV.search(key):  # An argument of an environment stays an array.
        value = {TARGET: ARRAY, "object": value.tolist(), "dtype": str(value.dtype)}
    value = value.tolist() if hasattr(value, "tolist") else value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else str(float(value))
    if isinstance(value, str | Path):
        # Hydra halves backslashes before a quote, also before the closing one, so they are doubled.
        return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + "\\'" * len(match[2]), str(value)) + "'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}: {spell_value(key, nested)}" for name, nested in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(spell_value(key, element) for element in value) + "]"
    foreign = _read_range(value)
    if foreign and not foreign.lost and key.startswith("space."):
        return spell_value(key, foreign.form)
    raise ConfigError(key, value, *_explain_value(key, value, foreign))


class _Foreign(NamedTuple):
    """A range of Ray Tune's or a distribution of Optuna's as a range of ours.

    Attributes:
        form: The range, which is the closest one if something is lost.
        lost: What no range of ours has; empty if nothing.
    """

    form: list[Any]
    lost: str = ""


def _read_range(value: Any) -> _Foreign | None:
    """Read a range of Ray Tune's or a distribution of Optuna's; None for anything else.

    Neither is imported: such an object exists only where its library was loaded.
    """
    if not type(value).__module__.startswith(("ray.tune.", "optuna.distributions")):
        return None
    parts = vars(value)
    if (values := parts.get("categories", parts.get("choices"))) is not None:
        return _Foreign(["choice", *values])
    is_ray, sampler = "sampler" in parts, parts.get("sampler")
    low, high = (parts.get(name) for name in (("lower", "upper") if is_ray else ("low", "high")))
    if low is None or high is None:
        return None
    inner = getattr(sampler, "sampler", sampler)  # Of a range in steps, the one that draws.
    step = parts.get("step") or getattr(sampler, "q", None)
    is_log = bool(parts.get("log")) or type(inner).__name__ == "_LogUniform"
    is_int = type(value).__name__.startswith("Int")
    if is_ray and is_int and not step:
        high -= 1  # Ray Tune's ranges of integers end before their upper end, but for those in steps.
    if is_int and step == 1:
        step = None
    if type(inner).__name__ == "_Normal":
        low, high = inner.mean - 2 * inner.sd, inner.mean + 2 * inner.sd
        return _Foreign(["uniform", low, high], "a normal distribution")
    steps = [step] if step and not is_log else []
    linear = "randint" if is_int else "quniform" if steps else "uniform"
    logarithmic = "lograndint" if is_int else "loguniform"
    lost = "steps on a logarithmic scale" if step and is_log else ""
    return _Foreign([logarithmic if is_log else linear, low, high, *steps], lost)


def _explain_value(key: str, value: Any, foreign: _Foreign | None) -> tuple[str, str, str]:
    """Explain that a setting cannot be an object: the problem, what is allowed and what to type."""
    kind = type(value).__name__
    if foreign and key.startswith("space."):
        return f"has {foreign.lost}", "ranges as in docs/search-spaces.md", f"{key}={foreign.form}"
    if foreign:
        name = key if key.startswith("env.") else key.rpartition(".")[2]
        return "is a range", "one value; what is searched stands in space", f"space.{name}={foreign.form}"
    if key in ("scheduler", "searcher"):  # A scheduler of Ray Tune's, or a sampler or a pruner of Optuna's.
        allowed, fix = advise_option(key, kind, list(find_options(key)))
        return "is no name of a file", allowed, fix or f"see docs/searching.md for {key}.kind"
    if key in ("env", "env.id"):
        return _explain_env(value)
    is_range = key.startswith("space.") and type(value).__module__.startswith("ray.tune.")
    if is_range and (answer := find_answer("kind", "sample_from")):
        return f"is a {kind} of Ray Tune's", answer.note, "see docs/search-spaces.md"
    return (
        f"is a {kind}",
        "numbers, text, true or false, None, lists and mappings of them",
        f"{key}= of one of these; a class is named by its text, 'package.module:Class'",
    )


def _explain_env(value: Any) -> tuple[str, str, str]:
    """Explain that an environment is named by a text and is no object of the program that runs the sweep."""
    allowed = "an id of Gymnasium's or module:Class, since trials run in other processes and import the module"
    if isinstance(value, FunctionType):
        fix = "gymnasium.register('My-v0', ...) with it in a file my_env.py, then env={'id': 'my_env:My-v0'}"
        return "is a function", allowed, fix
    if not isinstance(value, type) and (env_id := getattr(getattr(value, "spec", None), "id", None)):
        return "is an environment that was made already", allowed, f"env={{'id': {env_id!r}}}"
    made = value if isinstance(value, type) else type(value)
    problem = "is a class" if made is value else f"is a {made.__name__}"
    if made.__module__ == "__main__":
        return problem, allowed, f"put the class into a file my_env.py, then env={{'id': 'my_env:{made.__name__}'}}"
    return problem, allowed, f"env={{'id': '{made.__module__}:{made.__name__}'}}"
