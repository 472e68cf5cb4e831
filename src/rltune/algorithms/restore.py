"""Restore a whole RLlib algorithm from a checkpoint, to continue its training."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rltune.cluster.ray_cluster import ensure_ray
from rltune.errors import PolicyError
from rltune.ledger.sweep_ref import LATEST, SweepRef
from rltune.policies.policy import load_policy
from rltune.policies.rllib_policy import INFO_FILE
from rltune.policies.uri import Source, locate_trusted_algorithm, spell_uri

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm


def load_algorithm(
    uri: str | Path,
    *,
    trust: bool = False,
    output_dir: str | Path = "outputs",
    storage: str | None = None,
    ledger_url: str | None = None,
) -> Algorithm:
    """Load an RLlib algorithm from a checkpoint, to continue its training. Starts Ray unless it already runs.

    RLlib's checkpoints contain pickles, so that loading one may run any code of its author. Without ``trust``, only
    checkpoints of this user's sweeps are loaded.

    Args:
        uri: As for ``load_policy``; a registered model leads to the run that it came from.
        trust: Whether you trust the author of the checkpoint.
        output_dir: The folder of all sweeps.
        storage: As for ``load_policy``.
        ledger_url: As for ``load_policy``.

    Returns:
        An RLlib ``Algorithm``; call ``train()`` on it and ``stop()`` at the end.

    Raises:
        PolicyError: The checkpoint does not exist, or is not trusted.
    """
    source = Source(spell_uri(uri), SweepRef(LATEST, output_dir, storage, ledger_url), trust)
    with locate_trusted_algorithm(source) as folder:
        ensure_ray()
        from ray.rllib.algorithms.algorithm import Algorithm

        logging.getLogger("ray.rllib").setLevel(logging.ERROR)
        register_environment(folder)
        return Algorithm.from_checkpoint(str(folder))


def register_environment(folder: Path) -> None:
    """Register the environment that a checkpoint was trained in with Ray, under the name in RLlib's config."""
    from rltune.algorithms.rllib_env import register_for_rllib
    from rltune.envs.searched import ENV, TRAIN_ENV
    from rltune.envs.spec import spec_of

    about = folder.parent / INFO_FILE
    try:
        info = json.loads(about.read_text()) if about.is_file() else load_policy(folder.parent / "policy").info
    except PolicyError:
        return
    for key in (ENV, TRAIN_ENV):
        if info.get(key):
            register_for_rllib(spec_of(info[key]))
