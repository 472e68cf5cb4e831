"""Train one seed of a configuration with RLlib, behind the `Runner` interface.

Together with `rltune.trial.metrics` the only place that reads RLlib's result dictionary. Runs in a worker.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ray.rllib.core import COMPONENT_ENV_TO_MODULE_CONNECTOR

from rltune.algorithms.arguments import count_learners
from rltune.algorithms.build import DEFAULT_MODULE, Build, build_config
from rltune.algorithms.callbacks import has_callbacks, read_logged
from rltune.algorithms.connectors import NormaliseObservations, VectorFilter
from rltune.algorithms.episodes import read_episodes
from rltune.algorithms.far_values import SEEN, describe_far_value
from rltune.compat.rllib_internals import list_connectors, list_remote_runners
from rltune.config.capabilities import capabilities_of
from rltune.engine import build_algorithm
from rltune.engine.algorithm import FastAlgorithm
from rltune.engine.kernels.compiler import set_num_threads
from rltune.engine.sampling.observation_filter import wants_normalisation
from rltune.envs.episode import EpisodeRecord
from rltune.envs.observations import find_layout, find_network_spaces
from rltune.envs.rewards import read_reward_moments, write_reward_moments
from rltune.envs.searched import ENV, SEARCHED, TRAIN_ENV, select_values
from rltune.envs.step_count import count_steps_of
from rltune.errors import ConfigError, NonFiniteError
from rltune.policies.bundle_writer import read_filter_stats, write_bundle, write_policies
from rltune.policies.evaluation import Copies, evaluate
from rltune.policies.policy import load_playable
from rltune.policies.result import Evaluation
from rltune.policies.rllib_policy import leave_reason
from rltune.policies.uri import Source
from rltune.trial.gpu_memory import cap_memory, free_memory
from rltune.trial.metrics import Progress, read_result
from rltune.trial.recent_episodes import EPISODES_FILE, RecentEpisodes

ANSWER_S = 5.0  # At the end of a trial, an env runner that is still sampling gets at most this long to stop.
OFFLINE_EPISODES = 10  # An offline algorithm is evaluated on this many episodes after each iteration.


class AlgorithmRunner:
    """A `Runner` that trains an RLlib algorithm.

    Args:
        build: What stays the same over the sweep.
        params: The sample's values.
        seed: This runner's own seed.
        engine: ``fast`` or ``rllib``, see `rltune.engine.build_algorithm`.
        threads: Torch threads of this process.
        scored_steps: The last environment steps whose episodes the returns are the mean of.

    Attributes:
        config: RLlib's, validated.
        algorithm: What it built.
    """

    def __init__(
        self, build: Build, params: Mapping[str, Any], seed: int, engine: str, threads: int, scored_steps: float
    ) -> None:
        set_num_threads(threads)
        if not count_learners(build.algo):  # With remote learners, this process does not use the GPU.
            cap_memory(build.gpus)
        self._searched = select_values(params, ENV)
        build = build.with_params(params)
        self.config = build_config(build, {}, seed)
        self._recent = RecentEpisodes(scored_steps, tuple(build.env.metrics))
        self.algorithm = build_algorithm(self.config, engine, build.precision)
        # A single remote learner shares its GPU with other trials, so its memory is capped. Several learners have whole
        # GPUs.
        if build.gpus and self.config.num_learners == 1:
            cap = functools.partial(_cap_learner, share=build.gpus)
            self.algorithm.learner_group.foreach_learner(cap)
        self._count_steps()
        self._require_checked_spaces(build)
        self._normalises_rewards = bool(build.env.rewards.get("normalise")) and not self.config.is_offline
        self._env, self._train_env, self._facts, self._evaluated = build.env, build.train_env, build.facts, 0
        self._num_cut, self._restarts, self._fault = 0, 0, ""
        self._far_value = ""
        self._has_callbacks, self._logged = has_callbacks(self.config), dict[str, float]()
        self._copies = build.copies
        self._stage = Copies()  # An offline algorithm plays its episodes here, after each iteration.
        self._steps_trained: float | None = None
        self._learner: Mapping[str, float] = {}
        able = capabilities_of(type(self.config))
        self._statistics, self._data = able.statistics, able.data

    def _count_steps(self) -> None:
        """Count the environment steps of stock RLlib in this process; the fast engine counts its own."""
        envs = getattr(getattr(self.algorithm, "env_runner", None), "env", None)
        if envs is not None and not isinstance(self.algorithm, FastAlgorithm):
            count_steps_of(envs)

    def _require_checked_spaces(self, build: Build) -> None:
        """Refuse other spaces than the check has found, such as between the ends of an argument's range.

        Raises:
            ConfigError: Networks would see other observations, or choose other actions.
        """
        envs = getattr(getattr(self.algorithm, "env_runner", None), "env", None)
        pair = build.facts.find_policy_spaces()
        if envs is None or pair is None:
            return
        seen, chosen = find_network_spaces(*pair, build.training_env)
        now = envs.single_observation_space, envs.single_action_space
        if (now[0].shape, now[1]) != (seen.shape, chosen):
            spec = build.training_env
            raise ConfigError(
                "env.id",
                spec.id,
                f"with env.kwargs={dict(spec.kwargs)} has the spaces {now[0]} and {now[1]}",
                f"those of the check, {seen} and {chosen}",
                "search other values",
            )

    def train(self) -> Progress:
        """Train one iteration of the RLlib algorithm, and return the progress after it.

        Raises:
            SamplingEnded: It was to end early. The engine's next checkpoint has what it had sampled, where it can have
                the environments too; stock RLlib's has not.
            NonFiniteError: The loss is NaN or infinite.
        """
        result = self.algorithm.train()
        progress = self._with_last_update(result, read_result(result, self._statistics))
        if self.config.is_offline:
            episodes = self._play_episodes()
            trained = result["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"]
            progress = replace(progress, env_steps=int(trained), episodes=self._evaluated)
        else:
            # Until an env runner has returned samples, stock RLlib's results have no "env_runners".
            episodes = read_episodes(result.get("env_runners", {}))
            self._count_failures(episodes)
            # RLlib also counts episodes that a failure has cut.
            num_ended = progress.episodes - self._num_cut
            progress = replace(progress, episodes=num_ended, env_restarts=self._restarts, fault=self._fault)
        self._far_value = self._far_value or self._find_far_value()
        progress = replace(progress, far_value=self._far_value)
        self._recent.add(progress.env_steps, episodes)
        # Before the first recent episode, RLlib's count is replaced: it may be ahead of the records.
        known = self._recent.summarize() or {"episodes": 0}
        progress = replace(progress, **known)
        if self._has_callbacks:
            logged, refused = read_logged(result)
            self._logged |= logged
            progress = replace(progress, metrics={**self._logged, **progress.metrics}, refused=refused)
        loss = progress.learner.get("total_loss", 0.0)
        if not math.isfinite(loss):
            raise NonFiniteError(f"non-finite numbers: total_loss={loss}")
        return progress

    def _with_last_update(self, result: Mapping[str, Any], progress: Progress) -> Progress:
        """If an iteration had no update, report the statistics of the last update again.

        Stock RLlib (2.60) reports NaN then, which would end the trial as diverged.
        """
        modules = result.get("learners", {}).values()
        trained = sum(module.get("num_module_steps_trained_lifetime", 0) for module in modules)
        if trained and trained == self._steps_trained:
            return replace(progress, learner=self._learner)
        self._steps_trained, self._learner = trained, progress.learner
        return progress

    def _count_failures(self, episodes: list[EpisodeRecord]) -> None:
        """Count the failures of the environment in the records of an iteration's episodes."""
        for episode in episodes:
            self._num_cut += episode.cut
            self._restarts += episode.restarts
            self._fault = self._fault or episode.fault

    def _play_episodes(self) -> list[EpisodeRecord]:
        """Play greedy episodes with an offline algorithm's policy, because the training itself plays none."""
        seed = int(self.config.seed or 0) + self._evaluated
        evaluation = self.play(episodes=OFFLINE_EPISODES, seed=seed, copies=self._stage)
        self._evaluated += OFFLINE_EPISODES
        values = zip(*evaluation.metrics.values(), strict=True) if evaluation.metrics else itertools.repeat(())
        return [
            # What an episode without a score has returned is not known.
            EpisodeRecord(
                0.0 if math.isnan(score) else score,
                length,
                score,
                metrics=tuple(math.nan if value is None else value for value in row),
            )
            for score, length, row in zip(evaluation.returns, evaluation.lengths, values, strict=False)
        ]

    def play(self, *, copies: Copies | None, **episodes: Any) -> Evaluation:
        """Play episodes with the policy as it is now, whose normalisation learns nothing from them."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            try:
                self._write_policy(folder / "policy", self._describe_training({}))
            except ValueError:  # A bundle cannot express the network, which RLlib loads from its own files then.
                self.save(folder, {})
            return evaluate(load_playable(Source(scratch, trust=True)), copies=copies, **episodes)

    def save(self, folder: Path, info: Mapping[str, Any]) -> None:
        """Write the training state (``algorithm/``, ``episodes.json``) and the policy bundle (``policy/``).

        A network that a bundle cannot express leaves ``policy-missing.txt`` with the reason instead.
        """
        self.algorithm.save_to_path(folder / "algorithm")
        self._save_episodes(folder)
        info = self._describe_training(info)
        try:
            self._write_policy(folder / "policy", info)
        except ValueError as error:
            leave_reason(folder, str(error), info)

    def _describe_training(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Add to a policy's metadata the environment, with what this trial normalises, and its copies in a process.

        It is the one in which the policy is judged. If it has learned in another one, then that comes beside it.
        """
        more: dict[str, Any] = {TRAIN_ENV: self._train_env.to_dict()} if self._train_env else {}
        more |= {SEARCHED: self._searched} if self._searched else {}
        return {**info, "env": self._env.to_dict(), **more, "copies": self._copies}

    def _write_policy(self, folder: Path, info: Mapping[str, Any]) -> None:
        makers = list_connectors(self.config)
        if own := [name for name, make in makers.items() if not isinstance(make, NormaliseObservations)]:
            raise ValueError(f"a bundle cannot express your own {own[0]}")
        # Policies speak the environment's language, and not that of the network.
        spaces = self._facts.find_policy_spaces()
        if spaces is None:
            modules = {name: self.algorithm.get_module(name) for name in self.config.policies}
            write_policies(modules, folder, facts=self._facts, info=dict(info), actions=self._actions())
            return
        # An offline algorithm has no env runner with a copy of the module, so the learner's module is written.
        offline = self.config.is_offline
        observation_space, action_space = spaces
        write_bundle(
            self._learner_module() if offline else self.algorithm.get_module(),
            folder,
            info=dict(info),
            observation_stats=self._observation_stats(),
            observation_space=observation_space,
            action_space=action_space,
            layout=find_layout(observation_space, self._env),
            actions=self._actions(),
        )

    def _learner_module(self) -> Any:
        (answer,) = self.algorithm.learner_group.foreach_learner(lambda learner: learner.module)
        return answer.get()[DEFAULT_MODULE]

    def _actions(self) -> Literal["normalize", "clip"]:
        """Return how RLlib brings the network's numbers into the action space, as its config says."""
        return "normalize" if self.config.normalize_actions else "clip"

    def _observation_stats(self) -> dict[str, Any] | None:
        """Return the statistics of the observation normalisation; None without normalisation."""
        if not wants_normalisation(self.config):
            return None
        stats = getattr(self.algorithm, "observation_stats", None)
        if stats:
            return {**stats(), "clip": SEEN}
        parts = dict(self.algorithm.env_runner.get_checkpointable_components())
        return read_filter_stats(parts[COMPONENT_ENV_TO_MODULE_CONNECTOR])

    def _find_far_value(self) -> str:
        """Return a note on the first far value in normalised observations; empty without one."""
        if not wants_normalisation(self.config):
            return ""
        runner = self.algorithm.env_runner
        normaliser = getattr(runner, "normaliser", None)
        if normaliser is None:  # Stock RLlib's pipeline has it.
            pipeline = dict(runner.get_checkpointable_components())[COMPONENT_ENV_TO_MODULE_CONNECTOR]
            normaliser = next(piece for piece in pipeline.connectors if isinstance(piece, VectorFilter))
        space = self._facts.observation_space
        return (
            "" if normaliser.far is None else describe_far_value(normaliser.far, space, find_layout(space, self._env))
        )

    def restore(self, folder: Path) -> None:
        """Restore the state that `save` wrote."""
        self.algorithm.restore_from_path(folder / "algorithm")
        self._count_steps()
        self._load_episodes(folder)

    def _save_episodes(self, folder: Path) -> None:
        """Save what RLlib's checkpoint lacks: recent episodes, last statistics, and the reward normalisation."""
        kept: dict[str, Any] = {"recent": self._recent.state(), "evaluated": self._evaluated}
        kept |= {"failures": [self._num_cut, self._restarts, self._fault]}
        kept |= {"far_value": self._far_value}
        kept |= {"steps_trained": self._steps_trained, "learner": dict(self._learner)}
        if self._normalises_rewards:
            kept["reward_moments"] = read_reward_moments(self.algorithm.env_runner.env)
        (folder / EPISODES_FILE).write_text(json.dumps(kept))

    def _load_episodes(self, folder: Path) -> None:
        """Restore what `_save_episodes` has saved."""
        kept = json.loads((folder / EPISODES_FILE).read_text())
        self._recent.load(kept["recent"])
        self._num_cut, self._restarts, self._fault = kept.get("failures", (0, 0, ""))
        self._far_value = kept.get("far_value", "")
        self._evaluated = kept["evaluated"]
        # After a restore, the replay memory is filled before the first update. Until then, these statistics are
        # reported.
        self._steps_trained, self._learner = kept["steps_trained"], kept["learner"]
        if self._normalises_rewards:
            write_reward_moments(self.algorithm.env_runner.env, kept.get("reward_moments", []))

    @property
    def kept_steps(self) -> int:
        """The environment steps of an unfinished iteration, which the fast engine keeps."""
        sampler = getattr(getattr(self.algorithm, "env_runner", None), "sampler", None)
        return getattr(sampler, "kept_steps", 0)

    @property
    def replay_bytes(self) -> int:
        """The size in bytes of the fast engine's replay memory as `save_replay` would write it; 0 without one."""
        replay = getattr(self.algorithm, "replay", None)
        return replay.num_bytes if replay is not None else 0

    def save_replay(self, folder: Path) -> None:
        """Write the replay memory of the fast engine."""
        self.algorithm.save_replay(folder)

    def load_replay(self, folder: Path | None) -> int:
        """Load the engine's replay memory, or else let learning wait for new samples, as at the start."""
        if self._data != "replay" or (folder is not None and self.algorithm.load_replay(folder)):
            return 0
        start = int(getattr(self.config, "num_steps_sampled_before_learning_starts", 0))
        if not hasattr(self.algorithm, "replay"):
            # Stock RLlib (2.60) does not save its replay memory. It would not wait for new samples, because it counts
            # the steps of the whole trial, and would draw batches from a nearly empty memory. So the threshold is
            # raised.
            config = self.algorithm.config.copy(copy_frozen=False)
            sampled = self.algorithm.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime"), default=0)
            config.num_steps_sampled_before_learning_starts = start + int(sampled)
            config.freeze()
            self.algorithm.config = config
        return start

    def close_envs(self) -> None:
        """Close the environments, so that the evaluation of a trained policy may have copies of its own."""
        self._stage.close()
        group = getattr(self.algorithm, "env_runner_group", None)
        if group is not None:
            group.foreach_env_runner(_close_envs, timeout_seconds=ANSWER_S)

    def stop(self) -> None:
        """Stop the algorithm: close its environments and free its memory."""
        self._stage.close()
        self._end_silent_runners()
        self.algorithm.stop()
        free_memory()

    def _end_silent_runners(self) -> None:
        """Kill remote env runners that hang, because RLlib (2.60) would wait for each of them without a time-out."""
        group = getattr(self.algorithm, "env_runner_group", None)
        remote = list_remote_runners(group)
        if not remote:
            return
        import ray

        pings = {actor.ping.remote(): actor for actor in remote}
        _, silent = ray.wait(list(pings), num_returns=len(pings), timeout=ANSWER_S)
        for ping in silent:
            ray.kill(pings[ping])


def _close_envs(env_runner: Any) -> None:
    """Close an env runner's environments for good, in its process."""
    env_runner.stop()
    env_runner.env = None


def _cap_learner(learner: Any, share: float) -> None:
    """Limit a remote learner, which is a process of its own, to the trial's share of its GPU."""
    cap_memory(share)
