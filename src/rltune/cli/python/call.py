"""Run a sweep from Python, in the calling process, with the same settings and errors as ``rltune run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltune.cli.python.notebook import find_stream
from rltune.cli.python.sweep import Sweep
from rltune.cli.run import spell_run
from rltune.compose.composing import compose_settings, read_request
from rltune.compose.overrides import spell_settings
from rltune.config.schema import RunConfig
from rltune.config.versions import refuse_other_versions
from rltune.envs.child import begin_child
from rltune.errors import ConfigError, RltuneError


def sweep(*words: str, config_dir: str | Path | None = None, **settings: Any) -> Sweep:
    """Run a sweep: search, certify the winner, register it and write the report, as ``rltune run`` does.

    ``rltune.sweep("algo=ppo", "env=cartpole", budget={"trials": 8}, space={"lr": ["loguniform", 1e-4, 1e-2]})``

    If the notebook's kernel is interrupted, then the sweep ends within seconds and keeps what was trained;
    ``Sweep.resume`` continues it.

    Args:
        words: Groups and settings as they are typed: ``"env=cartpole"``, ``"space.lr=3e-4"``, ``"~space.lr"``.
        config_dir: A folder with your own groups, in addition to ``conf/`` in the working directory.
        settings: Settings as Python values: ``algo="dqn"``, ``budget={"trials": 8}`` for ``budget.trials=8``.

    Returns:
        The sweep, even if no trial succeeded or the sweep was interrupted: see its ``status``.

    Raises:
        RltuneError: The request cannot be carried out; nothing was written.
    """
    begin_child()
    config, command = _read(words, config_dir, settings)
    from rltune.driver.run import run_sweep

    done = run_sweep(config, stream=find_stream(), typed=command)
    return Sweep(done.folder, config.study.storage)


def check_sweep(*words: str, config_dir: str | Path | None = None, **settings: Any) -> dict[str, Any]:
    """Check a sweep without starting it, as ``rltune run check=true`` does.

    Args:
        words: As for `sweep`.
        config_dir: As for `sweep`.
        settings: As for `sweep`.

    Returns:
        What would run: ``algorithm``, ``environment``, ``trials``, ``search_env_steps``, ``certification_env_steps``,
        ``searched`` (the ranges by name) and ``notes``.

    Raises:
        RltuneError: The request cannot be carried out.
    """
    begin_child()
    config, _ = _read(words, config_dir, settings)
    from rltune.driver.plan import describe_plan
    from rltune.driver.starting import check_new_or_begun

    return describe_plan(check_new_or_begun(config))


def _read(words: Sequence[Any], config_dir: str | Path | None, settings: Mapping[str, Any]) -> tuple[RunConfig, str]:
    """Read a request; return it with the command that asks for the same."""
    typed = [*_check_words(words), *spell_settings(settings)]
    if check := next((word for word in typed if word.startswith("check=")), None):
        key, _, value = check.partition("=")
        fix = 'rltune.check_sweep("env=cartpole"), with the same arguments'
        raise ConfigError(key, value, ": a call of its own checks", "the settings of a sweep", fix)
    command = spell_run(typed)  # Before errors quote the words, their logins are concealed.
    config = read_request(compose_settings("run", RunConfig, typed, config_dir), typed)
    refuse_other_versions()
    from rltune.envs.validation import qualify_id

    return replace(config, env=replace(config.env, id=qualify_id(config.env.id))), command


def _check_words(words: Sequence[Any]) -> list[str]:
    for word in words:
        if not isinstance(word, str):
            raise RltuneError(
                f"{word!r} is no setting", "settings as text or as keywords", 'rltune.sweep("algo=ppo", seed=1)'
            )
    return list(words)
