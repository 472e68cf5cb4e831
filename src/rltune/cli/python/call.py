"""Run a sweep from Python, in the calling process, with the same settings and errors as ``rltune run``."""

from __future__ import annotations

from collections.abc import Sequence
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
from rltune.errors import RltuneError


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
    typed = [*_check_words(words), *spell_settings(settings)]
    command = spell_run(typed)  # Before errors quote the words, their logins are concealed.
    config = read_request(compose_settings("run", RunConfig, typed, config_dir), typed)
    refuse_other_versions()
    from rltune.driver.run import run_sweep

    done = run_sweep(config, stream=find_stream(), typed=command)
    return Sweep(done.folder, config.study.storage)


def _check_words(words: Sequence[Any]) -> list[str]:
    for word in words:
        if not isinstance(word, str):
            raise RltuneError(
                f"{word!r} is no setting", "settings as text or as keywords", 'rltune.sweep("algo=ppo", seed=1)'
            )
    return list(words)
