"""Turn errors of Hydra and OmegaConf into rltune's errors: the key, what is allowed, what to type."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_origin

from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigTypeError,
    GrammarParseError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    ValidationError,
)
from yaml import YAMLError

from rltune.config.advice import STOP, advise, advise_option, find_group, translate
from rltune.config.bounds import describe_allowed, find_item_type, find_type, list_bounds, name_type
from rltune.config.capabilities import MODEL_SETTINGS, SECTIONS, find_capabilities
from rltune.config.names import conf_dir
from rltune.config.schema import RunConfig
from rltune.config.uris import conceal_setting
from rltune.envs.searched import is_of_env
from rltune.errors import ABSENT, ConfigError, RltuneError, choices, nearest, spell
from rltune.formatting import spell_command
from rltune.other_tools import Answer, find_answer

_OPTION = re.compile(r"(?!(null|true|false)$)'?[A-Za-z_][\w./@-]*'?")  # What may name an option of a group.
_SEVERAL = re.compile("Ambiguous value|Error resolving interpolation|Sweep parameters|In '.*Could not load")
_SPACE_MAPPING = re.compile(r"\+*(space\.[^.=]+)=(\{\s*['\"]?(\w+).*\})")  # As other tools write a range.
NAMED_GROUPS = ("experiment", "tuned", "portfolio", "recipe")  # Config groups that have no class in the schema.
# Hydra's flags. Settings that are typed with dashes are refused.
FLAGS = {
    *("-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "--resolve", "-p", "--package", "-r", "--run"),
    *("-m", "--multirun", "-sc", "--shell-completion", "-cd", "--config-dir", "--experimental-rerun", "-i", "--info"),
}
INSTEAD = {"config-path": "--config-dir=", "cp": "--config-dir=", "config-name": "experiment=", "cn": "experiment="}
INSTEAD |= {"dry-run": "check=true", "dryrun": "check=true"}
"""What to type in place of Hydra's flags for another folder or file of settings, whose files rltune's own must be, and
in place of other programs' flag for a check: without one, what is suggested would start a sweep."""
ACTING = ("hydra.searchpath", "hydra.mode", "hydra.verbose", "hydra.help")  # The settings of Hydra that act here.


def split_word(word: str) -> tuple[str, object]:
    """Split one setting, as users type it, into key and value for an error; ABSENT stands for no value.

    A value that is no number, ``true``, ``false`` or ``null`` stays the text that was typed.
    """
    key, equals, text = word.partition("=")
    words = {"true": True, "false": False, "null": None}
    if not equals or text.lower() in words:
        return key, words[text.lower()] if equals else ABSENT
    for convert in (int, float):
        with contextlib.suppress(ValueError):
            return key, convert(text)
    return key, text


def explain(error: Exception, root: str, schema: type, words: Sequence[str]) -> RltuneError:
    """Turn an error of Hydra or OmegaConf into an `RltuneError` about the typed words that caused it.

    Args:
        root: The command.
        schema: The dataclass of its settings.
        words: The overrides, as they were typed.
    """
    from hydra.errors import (
        ConfigCompositionException,
        HydraException,
        MissingConfigException,
        OverrideParseException,
    )

    help_line = spell_command(f"{root} --help")
    # Hydra's parser of config groups raises ValueError or TypeError, for example for tuned=null and space=[1].
    if not isinstance(error, HydraException | OmegaConfBaseException):
        for key, _, option in (word.lstrip("+").partition("=") for word in words):
            if re.match(r"space\.[^.]+\.", key) and not is_of_env(key.removeprefix("space.")):
                return _explain_mapping(key, option)
            if not _OPTION.fullmatch(option) and (conf_dir() / key).is_dir():
                options = sorted(path.stem for path in (conf_dir() / key).glob("*.yaml"))
                allowed, fix = advise_option(key, option, options)
                return ConfigError(key, option, "is no file of its group", allowed, fix or f"~{key}")
        if isinstance(error, TypeError):
            raise error  # A fault of ours.
        return RltuneError(str(error), "group=option; ~group leaves it out", help_line)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_several = lines and _SEVERAL.match(lines[0])
    if is_several and (several := _explain_several(words, root, schema)):
        return several
    cause: Any = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(error, MissingConfigException) and error.options is not None:
        return explain_option(str(error.missing_cfg_file), error.options, help_line)
    if isinstance(error, OverrideParseException):
        if "=" not in error.override:
            return explain_bare_word(error.override, root, schema, words)
        name = error.override.partition("=")[0].lstrip("+")
        typed = next((word for word in words if word.partition("=")[0].lstrip("+") == name), error.override)
        key, value = split_word(conceal_setting("", typed))
        if not key.isascii():
            allowed = "keys of Latin letters, as Hydra's are, on the command line; keys of any letters in a file"
            line = f"{key.rpartition('.')[2]}: {spell(value)}"
            fix = f"conf/env/mine.yaml with {{name: mine, id: ..., kwargs: {{{line}}}}}, then env=mine"
            return ConfigError(key, value, ": Hydra cannot read the key", allowed, fix)
        allowed = "key=value, each quote and bracket closed: a list is [a,b], a mapping {a: b}"
        fix = shlex.quote(conceal_setting("", closed)) if (closed := _close_brackets(typed, words)) else help_line
        return ConfigError(key, value, ": Hydra cannot read the value", allowed, fix)
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return explain_key(cause, root, schema, words)
    if lines and (group := re.match(r"Could not override '([\w/]+)'", lines[0])):  # This group is another command's.
        keys = sorted(field.name for field in fields(schema))
        typed = next((word for word in words if word.startswith(f"{group[1]}=")), group[1])
        return ConfigError(*split_word(typed), ": no such key", choices(group[1], keys), help_line)
    if lines and (group := re.match(r"Multiple values for ([\w/]+)\.", lines[0])):
        typed = next((word for word in words if word.lstrip("+").startswith(f"{group[1]}=")), f"+{group[1]}=")
        fix = typed.lstrip("+")
        return ConfigError(*split_word(typed), ": + adds a group, and this one has an option", "one option", fix)
    if lines and (there := re.match(r"Could not append to config\. An item is already at '([^']+)'", lines[0])):
        typed = next((word for word in words if word.startswith(f"+{there[1]}=")), f"+{there[1]}=")
        fix = typed.lstrip("+")
        fix = f"'{fix}'" if " " in fix else fix
        return ConfigError(*split_word(typed), ": + adds a key, and this one has a value", "the key without +", fix)
    if isinstance(error, ConfigCompositionException) and len(lines) > 1:
        return RltuneError(f"{lines[0]} {lines[1]}", "the keys that its schema has", help_line)
    return RltuneError(lines[0] if lines else type(error).__name__, "see the message", help_line)


def _close_brackets(word: str, words: Sequence[str]) -> str:
    """Join a list or mapping that the shell has split at its spaces, or add the brackets that it lacks at its end.

    Returns:
        The whole setting; empty if no bracket is open.
    """
    texts = itertools.accumulate(words[words.index(word) + 1 :] if word in words else (), "{} {}".format, initial=word)
    opened = [(text, _list_open_brackets(text)) for text in texts]
    if not opened[0][1]:
        return ""
    return next((text for text, brackets in opened if not brackets), f"{word}{opened[0][1]}")


def _list_open_brackets(text: str) -> str:
    """Return the brackets that close those which are open at the end of a text."""
    closing = ""
    for letter in text:
        if letter in "[{":
            closing = f"{']' if letter == '[' else '}'}{closing}"
        elif closing and letter == closing[0]:
            closing = closing[1:]
    return closing


def explain_bare_word(word: str, root: str, schema: type, words: Sequence[str] = ()) -> RltuneError:
    """Explain that a word has no key; suggest ``sweep=my-sweep``, ``env=cartpole`` or ``env.id=shop:Shop-v0``.

    Args:
        word: The word.
        root: The command.
        schema: The dataclass of its settings.
        words: The overrides, as they were typed; spaces around an equals sign make several words of one setting.
    """
    names = {field.name for field in fields(schema)}
    subject = {"sweep", "sweeps", "policy"} & names
    after = list(words[words.index(word) + 1 :][:2]) if word in words else []
    groups = [name for name in ("env", "algo", "experiment") if (conf_dir() / name / f"{word}.yaml").is_file()]
    fix = spell_command(f"{root} --help")
    if word.startswith(("+", "~")):
        pass
    elif after[:1] == ["="] and len(after) == 2:
        fix = shlex.quote(f"{word}={after[1]}")
    elif subject:
        fix = spell_command(f"{root} {subject.pop()}={word}")
    elif groups:
        fix = f"{groups[0]}={word}"
    elif re.fullmatch(r"[\w.]+:[\w./-]+|[\w/]+-v\d+", word):
        fix = f"env.id={word}"
    return ConfigError(word, ABSENT, ": not a setting", "key=value, quoted where the shell needs it", fix)


def refuse_flags(root: str, words: Sequence[str], flags: Collection[str] = FLAGS) -> None:
    """Refuse settings that are typed as flags, such as ``--algo ppo`` or ``--algo=ppo``.

    Args:
        root: The command.
        words: The command line, as it was typed.
        flags: The flags that the command has.

    Raises:
        ConfigError: Names the flags, and spells them as settings.
    """
    refused = [word for word in words if word.startswith("-") and word.partition("=")[0] not in flags]
    if not refused:
        return
    if refused[0].partition("=")[0] in FLAGS:
        raise ConfigError(
            *split_word(refused[0]),
            f": not a flag of {root}, which composes no groups",
            "key=value, json=true and --help",
            spell_command(f"{root} --help"),
        )
    settings: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if word in refused:
            name = key.lstrip("-")
            value = "true" if name == "json" and not equals else value
            settings.append(f"{INSTEAD.get(name) or name.replace('-', '_') + '='}{value}")
        elif settings and settings[-1].endswith("=") and not equals:
            settings[-1] += word
        else:
            settings.append(word)
    if root in ("run", "submit"):
        settings = [_translate_setting(setting) for setting in settings]
    # A flag that has no value here has no meaning either.
    typed = " ".join(setting for setting in settings if not setting.endswith("=") or setting in words)
    raise ConfigError(
        *split_word(refused[0]),
        ": no such flag",
        "settings as key=value or group=option, without dashes",
        spell_command(f"{root} {typed}"),
    )


def _translate_setting(word: str) -> str:
    """Write a setting that has another tool's name with rltune's name, if this needs no look at the other settings."""
    key, equals, value = word.partition("=")
    answer = find_answer("setting", key)
    if not equals or answer is None or find_type(RunConfig, key) is not None:
        return word
    name = next((name for name in answer.names if find_type(RunConfig, name) is not None), None)
    if name is None:
        return word if answer.names or answer.fix.startswith("leave") else answer.fix
    return translate(name, value)


def refuse_hydra_words(words: Sequence[str]) -> None:
    """Refuse settings of Hydra itself that would change nothing, because Hydra only composes here.

    Args:
        words: The command line, as it was typed.

    Raises:
        ConfigError: Names the first of them, and what to type instead.
    """
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        if not re.match(r"hydra[./]", key) or key.startswith(ACTING):
            continue
        answer = find_answer("hydra", key[len("hydra.") :]) or Answer()
        fix = f"{answer.names[0]}={value}" if answer.names else f"leave {key} out"
        raise ConfigError(
            *split_word(word),
            ": Hydra only composes the settings here, so nothing reads this",
            answer.note or f"{', '.join(ACTING)}; a sweep's files lie in output_dir, in a folder with its name",
            fix,
        )


def _explain_several(words: Sequence[str], root: str, schema: type) -> RltuneError | None:
    """Explain an error from several values for one setting: suggest a choice in the space, or several runs by ``-m``.

    Returns:
        The error; None if no word has several values.
    """
    for word in words:
        key, _, value = word.partition("=")
        kind = find_type(schema, key.lstrip("+"))
        is_group = is_dataclass(kind) or get_origin(kind) is dict or key in NAMED_GROUPS
        listed = re.fullmatch(r"\[(.*)\]" if is_group else r"choice\((.*)\)", value)
        values = listed[1] if listed else value
        if "," not in values or (not listed and value[0] in "[{'\""):
            continue
        if key.lstrip("+").startswith("space."):
            return ConfigError(
                key, value, ": several values of a parameter", "a range or a choice", f"{key}=[choice,{values}]"
            )
        return ConfigError(
            key,
            value,
            f": {key} takes one value",
            "a single value; -m runs a sweep for each of several, one after the other",
            spell_command(f"{root} -m {key}={values}"),
        )
    return None


def explain_option(file: str, options: Sequence[str], help_line: str) -> RltuneError:
    """Explain that a config group has no such option; for an environment's id, suggest ``env=gym env.id=ID``."""
    group, _, option = file.partition("/") if file.startswith("env/") else file.rpartition("/")
    allowed, fix = advise_option(group, option, list(options))
    base = re.match(r"(?:[\w.]+:)?(?:[\w-]+/)*([\w.-]+)-v\d+$", option) if group == "env" else None
    if base and base[1].lower() not in options:
        fix = f"env=gym env.id={option}"
    elif base:
        fix = f"env={base[1].lower()}"
    return RltuneError(f": no such file conf/{group}/{option}.yaml", allowed, fix or help_line, key=group, value=option)


def explain_key(cause: OmegaConfBaseException, root: str, schema: type, words: Sequence[str]) -> RltuneError:
    """Turn OmegaConf's error about a key, its type or its value into an `RltuneError`; see `explain`."""
    help_line = spell_command(f"{root} --help")
    if isinstance(cause, GrammarParseError | InterpolationResolutionError):
        word = next((word for word in words if "${" in word), str(cause.full_key))
        problem = f": {str(cause).splitlines()[0]}"
        allowed = "${oc.env:NAME} for the value of an environment variable that is set"
        return ConfigError(*split_word(word), problem, allowed, help_line)
    if foreign := next(filter(None, map(_SPACE_MAPPING.match, words)), None):
        return _explain_mapping(f"{foreign[1]}.{foreign[3]}", foreign[2])
    if isinstance(cause, ConfigTypeError) and (mixed := _explain_mixed(words, str(cause.full_key), schema, help_line)):
        return mixed
    parent: Any = cause.parent_node
    siblings = sorted(str(key) for key in parent if key != "hydra") if isinstance(parent, DictConfig) else []
    # For an unknown config group, Hydra names only the group, although the user has typed a key in it.
    full_key = f"{cause.full_key}."
    keys = {word: f"{word.partition('=')[0].lstrip('+~')}." for word in words}
    typed = [word for word, key in keys.items() if key.startswith(full_key)]
    # A mapping may be typed for the group: `env.kwargs={size: 4}` for the key `env.kwargs.size`.
    typed += [word for word, key in keys.items() if full_key.startswith(key)]
    override = next(iter(typed), str(cause.full_key))
    if str(cause.key) in siblings:
        has_value = not (OmegaConf.is_missing(parent, cause.key) or OmegaConf.is_interpolation(parent, str(cause.key)))
        default = parent.get(cause.key) if has_value else None
        bounds = list_bounds(schema).get(str(cause.full_key))
        if default is None and bounds:
            default = bounds.suggest(override.partition("=")[2])
        fix = help_line if default is None or isinstance(default, Container) else f"{cause.full_key}={default}"
        allowed = describe_allowed(schema, str(cause.full_key)) or "a value of the key's type"
        if isinstance(default, DictConfig) and (names := [str(name) for name in default]):
            allowed, fix = f"one of its settings: {', '.join(names)}", override.replace("=", f".{names[0]}=", 1)
        typed_key, _, value = override.partition("=")
        if (item := find_item_type(schema, str(cause.full_key))) and not value.startswith("["):
            is_item = item is str or (item is int and value.isdecimal())
            fix = f"{typed_key}=[{shlex.quote(value)}]" if is_item else help_line
            return ConfigError(*split_word(override), "is no list", allowed, fix)
        # OmegaConf names the types of Python.
        name = name_type(schema, str(cause.full_key)) if isinstance(cause, ValidationError) else ""
        problem = f"is not {name}" if name else f": {str(cause).splitlines()[0]}"
        return ConfigError(*split_word(override), problem, allowed, fix)
    if root == "resume" and find_type(RunConfig, str(cause.full_key)):
        return _explain_fixed(override, siblings)
    return explain_unknown(override, str(cause.full_key), _read_settings(cause, schema), help_line)


def _explain_mixed(words: Sequence[str], full_key: str, schema: type, help_line: str) -> ConfigError | None:
    """Explain that a key has a list where a mapping belongs, or a mapping where a list belongs.

    Either another word has set the key to the other one, or the key takes only the other one.

    Returns:
        The error; None if no word sets the key.
    """
    settings = {word: (word.partition("=")[0].lstrip("+"), word.partition("=")[2]) for word in words}
    # A word such as env=gym chooses a file.
    typed = [
        word
        for word, (key, value) in settings.items()
        if key == full_key or (full_key.startswith(f"{key}.") and value.startswith(("[", "{")))
    ]
    if not typed:
        return None
    key, value = settings[typed[-1]]
    if len(typed) == 1 and key.startswith("space.") and (word := re.match(r"\{\s*['\"]?(\w+)", value)):
        return _explain_mapping(f"{key}.{word[1]}", value)
    is_list = value.startswith("[")
    problem = f": {'a list' if is_list else 'a mapping'} where {'a mapping' if is_list else 'a list'} belongs"
    if len(typed) > 1:
        allowed = f"one value of {settings[typed[0]][0]}"
        return ConfigError(*split_word(typed[-1]), problem, allowed, f"leave {typed[0]} out")
    allowed = describe_allowed(schema, key) or ("{name: value}" if is_list else "a list")
    fix = f"'{key}=[{value}]'" if value.startswith("{") else help_line
    return ConfigError(*split_word(typed[0]), problem, allowed, fix)


def _read_settings(cause: OmegaConfBaseException, schema: type) -> dict[str, Any]:
    """Return all settings among which OmegaConf met an unknown key, nested and with interpolations unresolved."""
    parent: Any = cause.parent_node
    if not isinstance(parent, DictConfig):
        return {}
    # A relative key has a dot for the node itself and one for each node above.
    to_root = "." * (str(cause.full_key).count(".") + 1)
    settings: dict[str, Any] = {}
    for name in (field.name for field in fields(schema)):
        with contextlib.suppress(OmegaConfBaseException):
            node = OmegaConf.select(parent, f"{to_root}{name}")
            settings[name] = OmegaConf.to_container(node) if isinstance(node, Container) else node
    return settings


def explain_unknown(word: str, key: str, settings: Mapping[str, Any], help_line: str) -> RltuneError:
    """Explain that a typed word names no setting.

    Args:
        word: The word, ``key=value``. Its key may be deeper than the unknown one: ``budgett.trials`` than ``budgett``.
        key: The unknown key.
        settings: All settings, nested.
        help_line: What to type if nothing is close.
    """
    typed, value = _split_stop(*word.lstrip("+~").partition("=")[::2])
    if typed.startswith(f"{STOP}."):
        key = typed
    if mapping := re.match(r"space\.[^.=]+=\{\s*['\"]?(\w+)", word.lstrip("+")):
        return _explain_mapping(f"{typed}.{mapping[1]}", value)
    if is_of_env(typed.removeprefix("space.")) and typed.startswith("space."):
        return ConfigError(*split_word(word), ": no such key", *_advise_plus(word))
    is_section = key.startswith("algo.") and key.removeprefix("algo.") in SECTIONS
    if is_section or find_answer("setting", typed.rpartition(".")[2]):
        key = typed  # Hydra names the section, which only the algorithm's file lacks.
    answer = find_answer("setting", key.rpartition(".")[2])
    addable = _list_addable(key, settings) if "algo" in settings else []
    # RLlib still takes former names, such as num_sgd_iter, for which other tools' words have better ones.
    is_former = answer is not None and key.startswith("algo.training.")
    if addable and not is_former and (answer is None or key.rpartition(".")[2] in addable):
        allowed, fix = _advise_addition(key, word, settings, addable)
    else:
        allowed, fix = advise(key, value, settings)
    if answer is None or not answer.fix:  # What was typed below the unknown key belongs below the right one, too.
        fix = fix.replace("=", f"{typed.removeprefix(key)}=", 1)
    return ConfigError(*split_word(word), ": no such key", allowed, fix or help_line)


def _split_stop(key: str, value: str) -> tuple[str, str]:
    """Return the first entry of Ray Tune's ``stop={episode_return_mean: 475}`` as key and value, others as they are."""
    entry = re.fullmatch(r"\{\s*['\"]?([\w./]+)['\"]?\s*:\s*['\"]?([^,}'\"]+?)['\"]?\s*[,}].*", value)
    return (f"{STOP}.{entry[1]}", entry[2]) if entry and key == STOP else (key, value)


def _advise_addition(key: str, word: str, settings: Mapping[str, Any], addable: Sequence[str]) -> tuple[str, str]:
    """Say what is allowed in a group to which ``+`` adds keys, and what to type; empty if no name is close.

    Args:
        key: The unknown key in this group.
        word: The word in which it was typed.
        settings: All settings, nested.
        addable: The names that the group may have.
    """
    group, _, last = key.rpartition(".")
    if last in addable:
        return _advise_plus(word)
    close = nearest(last, addable)
    fix = ""
    if group == "space" and last in _list_training(settings):
        fix = f"+algo.training.{last}=null +{word}"
    elif close:
        plus = "" if close in find_group(settings, group) else "+"
        fix = f"{plus}{group}.{close}={word.partition('=')[2]}"
    return choices(last, addable, close), fix


def _advise_plus(word: str) -> tuple[str, str]:
    """Say that a word adds a key, and how to type it."""
    added = f"+{word.lstrip('+')}"
    return "with +, a key that the files in conf/ do not set", f"'{added}'" if " " in added else added


def _list_training(settings: Mapping[str, Any]) -> list[str]:
    """List the arguments of the algorithm's section ``training``; empty if its class has no source."""
    from rltune.algorithms.rllib_source import list_keywords

    return list_keywords(str((settings.get("algo") or {}).get("class")), "training") or []


def _explain_mapping(key: str, text: str) -> ConfigError:
    """Explain that a range is a list, for a mapping as other tools have it: ``space.lr={grid_search: [1, 2]}``.

    Args:
        key: The key in the mapping, ``space.lr.grid_search``.
        text: The mapping or its value, as it was typed.
    """
    from rltune.search.dimensions import make_mapping_error

    name, _, word = key.removeprefix("space.").rpartition(".")
    try:
        typed = OmegaConf.to_container(OmegaConf.create(f"typed: {text}"))["typed"]  # type: ignore[call-overload,index]  # a mapping
    except (OmegaConfBaseException, YAMLError):
        typed = text
    return make_mapping_error(name, typed if isinstance(typed, dict) else {word: typed})


def _list_addable(key: str, settings: Mapping[str, Any]) -> list[str]:
    """List the names that ``+`` can add to a key's group, whether they are there or not; empty if any or none can be.

    Raises:
        RltuneError: The searcher or scheduler of the settings does not exist.
    """
    from rltune.algorithms.arguments import list_arguments
    from rltune.search.samplers import list_sampler_arguments
    from rltune.search.schedulers import list_rule_arguments

    group, _, last = key.rpartition(".")
    algo = settings.get("algo") or {}
    if group == "env.kwargs":
        return [*((settings.get("env") or {}).get("kwargs") or {}), last]
    if group == "algo.rl_module.encoder_kwargs":  # Their names are the user's.
        return [last]
    if group == "space" and algo:
        return list(list_arguments(algo))
    if group == "algo.rl_module.model_config":
        return list(MODEL_SETTINGS)
    if group == "algo.training.replay_buffer_config":
        row = find_capabilities(algo)
        return list(row.replay_settings) if row else [last]
    if group == "algo.training":
        return _list_training(settings)
    if group.startswith("algo."):
        row = find_capabilities(algo)
        others = () if row is None or row.own_encoders else ("encoder", "encoder_kwargs")
        return [name for name in SECTIONS.get(group.removeprefix("algo."), ()) or () if name not in others]
    if group == "searcher.args":
        return list_sampler_arguments(settings["searcher"]["kind"])
    if group == "scheduler.args":
        return list(list_rule_arguments(settings["scheduler"]["kind"]))
    return []


def _explain_fixed(override: str, changeable: Sequence[str]) -> ConfigError:
    return ConfigError(
        *split_word(override),
        ": this setting cannot change after a sweep's start",
        f"a change of {', '.join(changeable)}",
        f"{spell_command('run')} with the same settings, {override} and another name",
    )
