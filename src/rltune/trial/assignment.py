"""The message by which the driver tells a worker which trial to run: parameters, seeds, budget and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rltune.algorithms.build import Build
from rltune.config.early_end import EarlyEnd
from rltune.envs.facts import EnvFacts
from rltune.envs.objective import Objective
from rltune.envs.spec import spec_of
from rltune.records import SCORED_SHARE, TRIALS, trial_dir_of


@dataclass(frozen=True)
class Assignment:
    """What a worker needs to run a trial, as plain values that Ray Tune sends to it.

    Attributes:
        number: The trial's number in the study.
        params: The sample's values by name.
        seeds: One per replicate.
        sweep: The sweep's folder, absolute; it is also the store where `store` is None, so that all nodes share it.
        env_steps: The budget of each seed.
        reports: Reports over the whole budget.
        target: The score at which a trial ends, see `rltune.config.early_end.EarlyEnd`; None without one.
        plateau: The reports without a better score after which it ends; None: any number.
        checkpoint_every_s: Seconds between two checkpoints of the latest state.
        saves_early: Whether an attempt at the trial has failed, see `rltune.trial.checkpointing.FIRST_GAP`.
        replay_gb: Size up to which that state has the replay memories of all seeds.
        stall_s: Seconds without progress after which the worker ends.
        threads: Torch threads.
        engine: ``fast`` or ``rllib``.
        build: The arguments of `rltune.algorithms.build.Build`, plain.
        store: The store's address in remote storage; None where the sweep's folder is the store.
        token: The file by which the worker's node shows that it uses the driver's store; None if all trials run on
            the driver's node.
        latest: The last recorded checkpoint to go on from; None starts anew.
        older: Another one, for when that is damaged; None without.
        best: The checkpoint of the best objective recorded so far; None without.
        tags: What else the policy's info names: sweep, env_name, trial and run.
        kind: TRIALS for a trial of the search, CERTIFY for a run of the certification. Also the folder in the sweep's
            that holds this trial's own.
        score: The episodes by which each report is scored: ``episodes``, ``seed`` and ``env``, as
            `rltune.policies.evaluation.evaluate` takes them. None: the training's own.
        episodes: Episodes that the best policy plays after the whole budget; 0: none.
        evaluation_seed: The environment seed of the first of them.
        evaluation_env: What is changed of the environment for them.
        choice_env: What is changed of it for as many episodes more, by which runs are chosen; None: by the former.
        attempt: A name that no other attempt at this trial has. Its checkpoints have a folder of that name: a worker
            that was cut off may still write those of an earlier attempt.
        folder: The folder in which the command was typed, to which the environment's relative paths lead.
    """

    number: int
    params: Mapping[str, Any]
    seeds: tuple[int, ...]
    sweep: str
    env_steps: int
    reports: int
    checkpoint_every_s: float
    replay_gb: float
    stall_s: float
    threads: int
    engine: str
    build: Mapping[str, Any]
    store: str | None = None
    token: str | None = None
    latest: Mapping[str, Any] | None = None
    older: Mapping[str, Any] | None = None
    best: Mapping[str, Any] | None = None
    tags: Mapping[str, Any] | None = None
    kind: str = TRIALS
    score: Mapping[str, Any] | None = None
    episodes: int = 0
    evaluation_seed: int = 0
    evaluation_env: Mapping[str, Any] = field(default_factory=dict)
    choice_env: Mapping[str, Any] | None = None
    target: float | None = None
    plateau: int | None = None
    attempt: str = "first"
    saves_early: bool = False
    folder: str = "."

    @property
    def scored_steps(self) -> float:
        """A report's score is the mean over the episodes of this many last environment steps of each seed."""
        return self.env_steps * SCORED_SHARE

    @property
    def early_end(self) -> EarlyEnd:
        """When the trial ends before its budget is spent."""
        direction = Objective.from_settings(self.build["env"].get("objective")).direction
        return EarlyEnd(self.target, self.plateau, direction)

    @property
    def trial_dir(self) -> str:
        """The trial's folder, relative to the sweep's folder."""
        return trial_dir_of(self.kind, self.number)

    def to_config(self) -> dict[str, Any]:
        """Return this assignment as the config of Tune's trainable."""
        return {"assignment": dict(vars(self))}

    def to_build(self) -> Build:
        """Return the settings from which the trial's runners are built."""
        env, facts = spec_of(self.build["env"]), EnvFacts.from_dict(self.build["facts"])
        return Build(**{**self.build, "env": env, "facts": facts})
