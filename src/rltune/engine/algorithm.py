"""The parts that all fast algorithms share: building without Ray, results, the trial's state and checkpoints.

`FastAlgorithm` stands before an RLlib algorithm in the list of bases. RLlib's learner stays the owner of module,
optimizers and schedules, so state dicts and checkpoints are RLlib's; only ``training_step`` and what it needs are new.
Runs in the worker that holds the trial.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

import numpy as np
import torch
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.env import INPUT_ENV_SPACES
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.debug.deterministic import update_global_seed_if_necessary
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.tune import Trainable

from rltune.algorithms.episodes import EPISODES
from rltune.engine.networks.mixed_precision import FLOAT32
from rltune.engine.sampling.env_runner import ArrayEnvRunner, LocalRunners, StockCheckpoint
from rltune.engine.sampling.observation_filter import RunningMoments
from rltune.envs.episode import EpisodeRecord
from rltune.envs.step_count import STEPS
from rltune.errors import NonFiniteError

COUNTERS = ("num_env_steps_sampled_lifetime", "num_episodes_lifetime")
ENGINE_STATE = "rltune_engine"
"""Key in ``get_state`` for what RLlib's state has no place for; stock RLlib ignores it."""
SAMPLING_STATE = "rltune_sampling"
"""Key for where the local runner's sampling stands."""

logger = logging.getLogger(__name__)


class FastAlgorithm(StockCheckpoint):
    """Mixin for fast algorithms with everything around the hot loop that their RLlib class expects.

    Args:
        precision: The precision of the networks' products, one of ``precisions``.
    """

    runner_class: type = ArrayEnvRunner
    precisions: tuple[str, ...] = (FLOAT32,)

    def __init__(self, config: Any, precision: str = FLOAT32, **kwargs: Any) -> None:
        self.precision = precision
        self._config_dict: dict[str, Any] | None = None
        if not isinstance(config, dict):
            # RLlib would start a thread that polls the system's load, and stop() would wait up to 0.7 s for its next
            # poll.
            config = config.copy(copy_frozen=False)
            config.log_sys_usage = False
        super().__init__(config=config, **kwargs)

    # -- Methods that build the engine ------------------------------------------------------------------

    def setup(self, config: Any) -> None:
        """Build the env runners, the learner and the hot loop.

        This is RLlib's ``Algorithm.setup`` (ray 2.60) without what needs Ray. Calling ``super().setup`` and undoing
        the rest fails: its ``EnvRunnerGroup`` puts the config into Ray's object store, which starts Ray.
        """
        update_global_seed_if_necessary("torch", self.config.seed)
        self.callbacks = [cls() for cls in _as_list(self.config.callbacks_class)]
        self.logged = MetricsLogger(root=True)  # What they log goes into the next result, as with stock RLlib.
        # RLlib's other methods (evaluate, save_to_path, stop) read these attributes; the fast engine uses none of them.
        self.offline_data = None
        self.evaluation_config = self.config.get_evaluation_config_object()
        self.evaluation_dataset = None
        self.reward_estimators: dict[str, Any] = {}
        self.env_to_module_connector = self.module_to_env_connector = None
        self._aggregator_actor_manager = None
        self.env_runner_group = self._make_runners()
        try:
            self._build_learner()
        # The caller may build stock RLlib then, so this attempt must not leave its environments open.
        except BaseException:
            self.env_runner_group.stop()
            raise
        self.publish_weights()
        _call_back(self, "on_algorithm_init")

    def _build_learner(self) -> None:
        """Build the learner for the spaces of the env runners, and the hot loop."""
        self.spaces = self.env_runner_group.get_spaces()
        spaces = {INPUT_ENV_SPACES: (self.config.observation_space, self.config.action_space), **self.spaces}
        spec = self.config.get_multi_rl_module_spec(spaces=spaces, inference_only=False)
        self.learner_group = self.config.build_learner_group(rl_module_spec=spec)
        self.device: torch.device = next(self.learner_module.parameters()).device
        self.episodes: deque[tuple[float, int]] = deque(maxlen=self.config.metrics_num_episodes_for_smoothing)
        self._ended: list[EpisodeRecord] = []  # Episodes that have ended in the current iteration.
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.learner_stats: dict[str, Any] = {}
        self._set_up_metrics()
        self.build_loop()

    def _make_runners(self) -> Any:
        config = self.config.copy(copy_frozen=False)
        config.env_runner_cls = self.runner_class
        config.freeze()
        if config.num_env_runners == 0:
            return LocalRunners(config)
        return EnvRunnerGroup(
            env_creator=self.env_creator,
            validate_env=None,
            default_policy_class=None,
            config=config,
            local_env_runner=True,
            logdir=self.logdir,
            tune_trial_id=self.trial_id,
        )

    def build_loop(self) -> None:
        """Build the hot loop on the learner's module and optimizers; called again after a restore."""
        raise NotImplementedError

    # -- Methods for subclasses -------------------------------------------------------------------------

    @property
    def learner(self) -> Any:
        """RLlib's local learner."""
        return self.learner_group._learner

    @property
    def learner_module(self) -> Any:
        """The module that the learner trains, without the wrapper of distributed learners."""
        return self.learner.module[DEFAULT_MODULE_ID].unwrapped()

    def publish_weights(self) -> None:
        """Give the local env runner the learner's current weights.

        On the CPU its parameters become the learner's own memory, so that no later call has to copy; on a GPU they
        are copied. So are buffers, which training does not change: those of an extractor may hold random numbers.
        """
        runner = self.env_runner_group.local_env_runner
        source = dict(self.learner_module.named_parameters())
        buffers = dict(self.learner_module.named_buffers())
        with torch.no_grad():
            for name, buffer in runner.module.named_buffers():
                buffer.copy_(buffers[name])
            for name, param in runner.module.named_parameters():
                if self.device.type == "cpu":
                    # RLlib expects the runner's own Parameter objects, so only the memory behind them is shared.
                    param.data = source[name].data
                else:
                    param.copy_(source[name])
        if self.device.type == "cpu":
            # The runner's network has views of the parameters' previous memory, so it is built again.
            runner.bind_module()

    def count(self, steps: int, episodes: list[EpisodeRecord]) -> None:
        """Add to the counters of sampled environment steps and ended episodes.

        Args:
            steps: Environment steps, resets not counted.
            episodes: The episodes that ended.
        """
        self.counters["num_env_steps_sampled_lifetime"] += steps
        self.counters["num_episodes_lifetime"] += len(episodes)
        self.episodes.extend((episode.total, episode.length) for episode in episodes if not episode.cut)
        self._ended.extend(episodes)

    def check_finite(self, values: dict[str, float], data: torch.Tensor) -> None:
        """Raise an error, which ends the trial, if a statistic or a weight is NaN or infinite.

        Args:
            values: The learner's statistics by name.
            data: The flat parameters.

        Raises:
            NonFiniteError: One of them is NaN or infinite.
        """
        if np.isfinite(list(values.values())).all() and bool(torch.isfinite(data).all()):
            return
        bad = [name for name, value in values.items() if not np.isfinite(value)] or ["a weight"]
        steps = self.counters["num_env_steps_sampled_lifetime"]
        raise NonFiniteError(f"non-finite numbers: {bad[0]} is not finite after {steps} steps")

    def observation_stats(self) -> dict[str, Any] | None:
        """Return mean, variance (float64) and count of the observation normalisation; None without normalisation."""
        normaliser: RunningMoments | None = self.env_runner_group.local_env_runner.normaliser
        return normaliser.stats() if normaliser is not None else None

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule | None:
        """Return the local runner's module with the current weights; None for any id but the default module's."""
        return self.env_runner_group.local_env_runner.module if module_id == DEFAULT_MODULE_ID else None

    # -- Methods that train one iteration ---------------------------------------------------------------

    def step(self) -> dict[str, Any]:
        """Train until the iteration's minimum of time and steps is reached, and return the results that rltune reads.

        It ends between two training steps where sampling is to end; in the midst of a rollout `Collector` raises.
        """
        config, start = self.config, time.perf_counter()
        before = self.counters["num_env_steps_sampled_lifetime"]
        self.timers_s = {"env_runner_sampling_timer": 0.0, "learner_update_timer": 0.0}
        while True:
            self.training_step()
            sampled = self.counters["num_env_steps_sampled_lifetime"] - before
            enough = sampled >= (config.min_sample_timesteps_per_iteration or 0)
            if STEPS.is_ending or STEPS.steps >= STEPS.pause_at:
                break
            if enough and time.perf_counter() - start >= (config.min_time_s_per_iteration or 0):
                break
        normaliser: RunningMoments | None = self.env_runner_group.local_env_runner.normaliser
        if normaliser is not None:
            # Saving a checkpoint merges pending statistics. Doing it in each iteration keeps training independent of
            # checkpoints.
            normaliser.flush()
        ended, self._ended = self._ended, []
        return {
            "env_runners": {
                **self._episode_results(),
                EPISODES: ended,
                "num_env_steps_sampled": sampled,
                **self.counters,
            },
            "learners": {DEFAULT_MODULE_ID: dict(self.learner_stats)},
            "timers": dict(self.timers_s),
            "num_env_steps_sampled_lifetime": self.counters["num_env_steps_sampled_lifetime"],
            **self.logged.reduce(compile=True),
        }

    def log_result(self, result: dict[str, Any]) -> None:
        """Call the user's callback and Tune's loggers; RLlib's own timer around them would cost 3 ms."""
        _call_back(self, "on_train_result", result=result)
        Trainable.log_result(self, result)

    def get_auto_filled_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Add Tune's fields to a result; the config is converted to a dict only once, which saves 4 ms per result."""
        filled: dict[str, Any] = Trainable.get_auto_filled_metrics(self, *args, **kwargs)
        if self._config_dict is None:
            self._config_dict = self.config.to_dict()
        filled["config"] = self._config_dict
        return filled

    def _episode_results(self) -> dict[str, float]:
        """Return RLlib's statistics over the last episodes; empty until one has ended."""
        if not self.episodes:
            return {}
        returns, lengths = np.array(self.episodes).T
        return {
            "episode_return_mean": float(returns.mean()),
            "episode_return_min": float(returns.min()),
            "episode_return_max": float(returns.max()),
            "episode_len_mean": float(lengths.mean()),
            "episode_len_min": float(lengths.min()),
            "episode_len_max": float(lengths.max()),
        }

    # -- Methods that save and restore the state --------------------------------------------------------

    def engine_state(self) -> dict[str, Any]:
        """Return the state that RLlib's checkpoint lacks, as plain values, which stock RLlib can unpickle."""
        ended = [tuple(episode) for episode in self._ended]
        return {"counters": dict(self.counters), "episodes": list(self.episodes), "ended": ended}

    def load_engine_state(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`engine_state` returned."""
        self.counters.update(state["counters"])
        self.episodes.clear()
        self.episodes.extend(state["episodes"])
        self._ended = [EpisodeRecord(*episode) for episode in state["ended"]]

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return RLlib's state, with the engine's lifetime counters in the metrics where stock RLlib expects them."""
        # Stock RLlib reads lifetime counters from the metrics of its env runners, as sums that only grow. So the
        # difference to the sum that was logged before is added, in the form of an env runner's metrics.
        logger = MetricsLogger(root=False)
        for name, value in self.counters.items():
            logged = self.metrics.peek(("env_runners", name), default=0)
            logger.log_value(name, value - logged, reduce="lifetime_sum")
        self.metrics.aggregate([logger.reduce()], key="env_runners")
        state: dict[str, Any] = super().get_state(*args, **kwargs)
        state[ENGINE_STATE] = self.engine_state()
        state[SAMPLING_STATE] = self.env_runner_group.local_env_runner.sampling_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore RLlib's state, also that of a stock algorithm, and rebuild the hot loop on it."""
        # The learner only accepts weights with a higher sequence number than its own; a trial that goes back has a
        # lower one.
        self.learner._weights_seq_no = 0
        super().set_state(state)
        # A checkpoint of stock RLlib has no engine state, so the counters are read from its metrics.
        if ENGINE_STATE not in state:
            for name in COUNTERS:
                self.counters[name] = int(self.metrics.peek(("env_runners", name), default=0))
        self._rebuild_loop(state.get(ENGINE_STATE))
        self._restore_sampling(state.get(SAMPLING_STATE))

    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Restore a checkpoint of the fast engine or of stock RLlib, or one component of it."""
        self.learner._weights_seq_no = 0
        # RLlib restores a whole checkpoint by set_state(), which rebuilds the hot loop.
        super().restore_from_path(path, *args, **kwargs)
        if kwargs.get("component") is not None:
            self._rebuild_loop(self.engine_state())

    def _rebuild_loop(self, state: dict[str, Any] | None) -> None:
        """Rebuild the hot loop on the restored learner, load the engine's own state into it, and publish the weights.

        Args:
            state: What `engine_state` returned; None for a stock algorithm's checkpoint, which has none.
        """
        counters = self.counters if state is None else state["counters"]
        self._set_rates(counters["num_env_steps_sampled_lifetime"])
        # RLlib's restore replaces the optimizers' state tensors, so the flat tensors must be built from the new ones.
        # The new loop starts with fresh random generators, so the engine's own state is loaded after it.
        self.build_loop()
        if state is not None:
            self.load_engine_state(state)
        self.publish_weights()
        self.env_runner_group.local_env_runner.read_filter()

    def _set_rates(self, steps: int) -> None:
        """Set each optimizer's learning rate by the config, because RLlib's restore sets that of the checkpoint.

        Args:
            steps: The trial's environment steps, the schedules' clock.
        """
        for optimizer, schedule in self.learner._optimizer_lr_schedules.items():
            # Schedules advance after updates only, so before the first update they are at their beginning.
            has_updated = any(float(state["step"]) > 0 for state in optimizer.state.values())
            self.learner._set_optimizer_lr(optimizer, lr=schedule.update(timestep=steps if has_updated else 0))

    def _restore_sampling(self, state: dict[str, Any] | None) -> None:
        """Continue the environments' episodes from the checkpoint; if that is impossible, log why new episodes begin.

        Args:
            state: What the local runner's ``sampling_state`` returned; None where it sampled nothing, and of stock
                RLlib.
        """
        group, steps = self.env_runner_group, self.counters["num_env_steps_sampled_lifetime"]
        group.foreach_env_runner(
            lambda remote: remote.restart(steps),
            local_env_runner=False,
            timeout_seconds=self.config.sample_timeout_s,
        )
        reason: str | None = "those of other processes, and of stock RLlib, are in no checkpoint"
        if state is None:
            group.local_env_runner.restart(steps)
        else:
            reason = group.local_env_runner.load_sampling_state(state, steps)
        group.local_env_runner.read_filter()
        if reason is not None:
            logger.warning("engine: after the restore every environment begins a new episode: %s", reason)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _call_back(algorithm: Any, event: str, **details: Any) -> None:
    """Call the user's RLlib callback for an event."""
    make_callback(
        event,
        algorithm.callbacks,
        getattr(algorithm.config, f"callbacks_{event}"),
        kwargs={"algorithm": algorithm, "metrics_logger": algorithm.logged, **details},
    )
