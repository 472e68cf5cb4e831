"""RLlib's ``SingleAgentEnvRunner`` with its sampling loop replaced by one on arrays.

It runs in the trial's process (`LocalRunners`) or as Ray actors inside RLlib's ``EnvRunnerGroup``. RLlib's module,
connectors and state dicts are kept, so that checkpoints have RLlib's components.
"""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.actor_manager import FaultTolerantActorManager
from ray.rllib.utils.checkpoints import Checkpointable

from rltune.engine.features import UnsupportedError
from rltune.engine.networks.actor_critic import make_actor_critic
from rltune.engine.on_policy.rollout import Collector, Rollout
from rltune.engine.sampling.action_distributions import Actions, make_actions
from rltune.engine.sampling.env_pickle import pickle_envs
from rltune.engine.sampling.observation_filter import Moments, RunningMoments, make_normaliser
from rltune.engine.sampling.vector_envs import make_envs, seed_runner
from rltune.policies.bundle_reader import GaussianHead, Head


def check_spaces(space: Any, action_space: Any, config: Any) -> None:
    """Refuse observation and action spaces that the array code does not support.

    Raises:
        UnsupportedError: Naming the space.
    """
    if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        kind = f"{type(space).__name__} of {space.dtype}" if space.dtype else type(space).__name__
        raise UnsupportedError(f"observation space {kind}")
    make_actions(action_space, 1, np.random.default_rng(), config)


class StockCheckpoint(Checkpointable):
    """Mixin for checkpoints that name RLlib's class instead of rltune's, so that stock RLlib can open them."""

    stock_class: type

    def save_to_path(self, path: Any = None, *, filesystem: Any = None, **kwargs: Any) -> str:
        """Save a checkpoint as RLlib does, and replace the class that it names by RLlib's own."""
        saved: str = super().save_to_path(path, filesystem=filesystem, **kwargs)
        # RLlib has pickled a reference to rltune's class, which could not be unpickled without rltune.
        content = {"class": self.stock_class, "ctor_args_and_kwargs": self.get_ctor_args_and_kwargs()}
        target = f"{saved}/{self.CLASS_AND_CTOR_ARGS_FILE_NAME}"
        if filesystem is None:
            with open(target, "wb") as file:
                pickle.dump(content, file)
        else:
            with filesystem.open_output_stream(target) as stream:
                stream.write(pickle.dumps(content))
        return saved


class ArrayEnvRunner(StockCheckpoint, SingleAgentEnvRunner):
    """An env runner that collects rollouts as arrays, by its method `collect`.

    Attributes:
        continuous_head: The kind of head that chooses continuous actions.
    """

    stock_class = SingleAgentEnvRunner
    continuous_head: type[Head] = GaussianHead
    env: Any
    network: Any
    actions: Actions

    def __init__(self, **kwargs: Any) -> None:
        self.normaliser: RunningMoments | None = None
        self._begun_at = 0
        self._not_kept: str | None = None
        self.env = None
        try:
            super().__init__(**kwargs)
            self._collector: Collector | None = None
            # super().__init__ has already called make_env() and built module and connectors.
            if self.env is not None:
                self.make_collector()
            else:
                # If remote runners sample, then the local runner has no environments and only keeps the statistics.
                self.normaliser = make_normaliser(self.config, self.spaces[INPUT_ENV_SINGLE_SPACES][0], 1)
        except BaseException:  # Stock RLlib or the next attempt makes its own.
            self.stop()
            raise

    def make_env(self) -> None:
        """Build array environments; RLlib's connectors and module specs only need their spaces."""
        if self.env is not None:
            self.env.close()
            self.env = None
        self.env = make_envs(self.config, self.worker_index or 0)
        self.num_envs = self.env.num_envs
        check_spaces(self.env.single_observation_space, self.env.single_action_space, self.config)

    def make_collector(self) -> None:
        """Build the collector, which steps the environments; runners of off-policy algorithms build a stepper."""
        self._rng = self.make_generator()
        self.normaliser = make_normaliser(self.config, self.env.row_space, self.num_envs)
        self.actions = make_actions(
            self.env.single_action_space, self.num_envs, self._rng, self.config, self.continuous_head
        )
        self._collector = Collector(
            self.env,
            self.actions,
            # bind_module() replaces self.network later, so the lambda looks it up at each call.
            lambda obs: self.network.dist_inputs(obs),
            normaliser=self.normaliser,
            seeds=self.derive_seeds(),
            explore=self.config.explore,
        )
        self.bind_module()

    @property
    def sampler(self) -> Any:
        """Return the collector; None in a local runner without environments."""
        return self._collector

    def make_generator(self) -> np.random.Generator:
        """Make the generator of random actions, whose seed differs between runners and after each restart."""
        return np.random.default_rng(seed_runner(self.config.seed, self.worker_index or 0, self._begun_at))

    def derive_seeds(self) -> list[int] | None:
        """Derive the seeds for the next reset of the environments; None if the config has no seed."""
        if self.config.seed is None:
            return None
        words = seed_runner(self.config.seed, self.worker_index or 0, self._begun_at).generate_state(self.num_envs)
        # Some environments pass the seed to C as an int, so it must fit into 31 bits.
        return [int(word) >> 1 for word in words]

    def bind_module(self) -> None:
        """Build the network on the module's current memory, after the parameters were moved."""
        self.network = make_actor_critic(self.module)

    def collect(self, steps: int) -> Rollout:
        """Take at least ``steps`` environment steps, and return a rollout whose arrays the next call overwrites."""
        if self._collector is None:
            raise RuntimeError("this env runner has no environments")
        with torch.inference_mode():  # One inference_mode block around the whole loop is faster than one per step.
            rollout = self._collector.collect(steps)
        self.num_env_steps_sampled_lifetime += rollout.num_steps
        return rollout

    def collect_with(self, weights: Any, moments: Moments | None, steps: int) -> Rollout:
        """Collect a rollout in a remote runner, with the given weights and observation statistics."""
        self.module.set_state(weights)
        if self.normaliser is not None and moments is not None:
            self.normaliser.load(*moments)
        return self.collect(steps)

    def sampling_state(self) -> dict[str, Any] | None:
        """Return random generators, environments and running episodes for a checkpoint; None without environments.

        The random numbers, an interrupted rollout with its running episodes, and the environments in the middle of
        them, pickled, or why they cannot be.
        """
        if self.env is None:
            return None
        state: dict[str, Any] = {"rng": self._rng.bit_generator.state, "noise": self.actions.noise.state()}
        state["episodes"] = self.sampler.state()
        if self._not_kept is None:
            try:
                state["envs"] = pickle_envs(self.env)
            except pickle.PicklingError as error:
                # Environments that could not be pickled once are not tried again at the next checkpoint.
                self._not_kept = str(error)
        return state | {"not_kept": self._not_kept, "num_envs": self.num_envs}

    def load_sampling_state(self, state: dict[str, Any], steps: int) -> str | None:
        """Restore what `sampling_state` returned, and so continue the episodes of the checkpoint if possible.

        Args:
            state: The state of a runner of the same configuration.
            steps: Environment steps of the trial so far.

        Returns:
            Why all episodes begin anew; None where they go on.
        """
        if self.env is None:
            return "other processes sample"
        reason: str | None = state["not_kept"]
        episodes = None
        if reason is None:
            # Two sets of copies at once may be more than the machine bears.
            self.env.close()
            self.env = None
            try:
                envs = pickle.loads(state["envs"])  # noqa: S301 - as RLlib has just unpickled what is around it
            # The pickle may be from another version of the environments' package, which may raise any exception.
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                if envs.num_envs == self.num_envs:
                    self.env, episodes = envs, state["episodes"]
                else:
                    envs.close()
                    reason = f"the checkpoint has {envs.num_envs} environments, this trial {self.num_envs}"
            if episodes is None:
                self.make_env()
        self.restart(steps)
        if episodes is not None:
            self.sampler.load(episodes)
        elif self._collector is not None and state.get("episodes") and state.get("num_envs") == self.num_envs:
            self._collector.load_rollout(state["episodes"])
        self._rng.bit_generator.state = state["rng"]
        self.actions.noise.load(state["noise"])
        return reason

    def restart(self, steps: int) -> None:
        """Begin new episodes in all environments, with seeds that depend on the trial's step count.

        Args:
            steps: Environment steps of the trial so far.
        """
        self._begun_at = steps
        if self.env is not None:
            self.make_collector()

    def get_state(self, *args: Any, **kwargs: Any) -> Any:
        """Return RLlib's state, after copying the observation statistics into RLlib's ``MeanStdFilter``."""
        if self.normaliser is not None:
            self.normaliser.to_filter(self._env_to_module.connectors[0])
        return super().get_state(*args, **kwargs)

    def set_state(self, state: Any) -> None:
        """Restore RLlib's state, and copy the observation statistics out of it."""
        super().set_state(state)
        self.read_filter()

    def read_filter(self) -> None:
        """Copy the observation statistics from RLlib's connector, after a checkpoint was restored into it."""
        if self.normaliser is not None:
            self.normaliser.from_filter(self._env_to_module.connectors[0])


class LocalRunners(EnvRunnerGroup):
    """RLlib's ``EnvRunnerGroup`` with only a local runner, which works without Ray.

    Args:
        config: Frozen; its ``env_runner_cls`` is the runner's class.
    """

    def __init__(self, config: Any) -> None:
        # super().__init__ would put the config into Ray's object store, and so start Ray.
        self._remote_config = config
        self._worker_manager = FaultTolerantActorManager([], init_id=1)
        self._num_env_runners_dropped_lifetime = 0
        self._local_env_runner = config.env_runner_cls(config=config, worker_index=0, num_workers=0)

    def get_spaces(self) -> Any:
        """Return the observation and action spaces of the local runner."""
        return self._local_env_runner.get_spaces()

    def sync_env_runner_states(self, **kwargs: Any) -> None:
        """Do nothing, because there are no other runners to copy the state to."""

    def sync_weights(self, **kwargs: Any) -> None:
        """Do nothing, because the algorithm's `publish_weights` updates the runner."""

    def stop(self) -> None:
        """Close the environments."""
        self._local_env_runner.stop()
