"""Sample arrays: RLlib's ``SingleAgentEnvRunner`` with its sampling loop replaced.

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
from rltune.engine.sampling.observation_filter import Moments, RunningMoments, wants_normalisation
from rltune.engine.sampling.vector_envs import make_envs, seed_runner
from rltune.policies.bundle_reader import GaussianHead, Head


def check_spaces(envs: Any, config: Any) -> None:
    """Refuse spaces that the array code does not serve.

    Raises:
        UnsupportedError: Naming the space.
    """
    space = envs.single_observation_space
    if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        kind = f"{type(space).__name__} of {space.dtype}" if space.dtype else type(space).__name__
        raise UnsupportedError(f"observation space {kind}")
    make_actions(envs.single_action_space, 1, np.random.default_rng(), config)


class StockCheckpoint(Checkpointable):
    """Writes checkpoints that name RLlib's class instead of ours, so that stock RLlib can open them."""

    stock_class: type

    def save_to_path(self, path: Any = None, *, filesystem: Any = None, **kwargs: Any) -> str:
        """Save as RLlib does, then name the stock class and its constructor's arguments."""
        saved: str = super().save_to_path(path, filesystem=filesystem, **kwargs)
        # RLlib has written the name of rltune's class, which a machine without rltune could not unpickle.
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
    """An env runner whose `collect` returns a `Rollout`.

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
        super().__init__(**kwargs)
        self._collector: Collector | None = None
        # By now, super().__init__ has called make_env() and built module and connectors.
        if self.env is not None:
            self.make_collector()
        elif wants_normalisation(self.config):
            # Beside remote runners, the local runner samples nothing but holds the merged statistics.
            self.normaliser = RunningMoments(self.spaces[INPUT_ENV_SINGLE_SPACES][0].shape, 1)

    def begin_anew(self, **kwargs: Any) -> None:
        """Serve another algorithm, in a process whose imports are done."""
        self.env = None  # `stop` has closed the environments.
        self.__init__(**kwargs)  # type: ignore[misc]

    def make_env(self) -> None:
        """Build array environments; RLlib's connectors and module specs only ask them for spaces."""
        if self.env is not None:
            self.env.close()
        self.env = make_envs(self.config, self.worker_index or 0)
        self.num_envs = self.env.num_envs
        try:
            check_spaces(self.env, self.config)
        except UnsupportedError:
            self.env.close()
            raise

    def make_collector(self) -> None:
        """Build what steps the environments; subclasses build something else."""
        self._rng = self.make_generator()
        if wants_normalisation(self.config):
            self.normaliser = RunningMoments(self.env.single_observation_space.shape, self.num_envs)
        self.actions = make_actions(
            self.env.single_action_space, self.num_envs, self._rng, self.config, self.continuous_head
        )
        self._collector = Collector(
            self.env,
            self.actions,
            lambda obs: self.network.dist_inputs(obs),  # A lambda is needed because bind_module() replaces the network.
            normaliser=self.normaliser,
            seeds=self.derive_seeds(),
            explore=self.config.explore,
        )
        self.bind_module()

    @property
    def sampler(self) -> Any:
        """Return the object that steps the environments; None in the local runner beside remote runners."""
        return self._collector

    def make_generator(self) -> np.random.Generator:
        """Make a generator of random actions that differs between runners and between restarts."""
        return np.random.default_rng(seed_runner(self.config.seed, self.worker_index or 0, self._begun_at))

    def derive_seeds(self) -> list[int] | None:
        """Derive the seeds of the environments' next reset; None leaves them random."""
        if self.config.seed is None:
            return None
        words = seed_runner(self.config.seed, self.worker_index or 0, self._begun_at).generate_state(self.num_envs)
        return [int(word) >> 1 for word in words]  # Some environments hand a seed to a C int, so a seed has 31 bits.

    def bind_module(self) -> None:
        """Read the module's tensors anew, after they were moved to other memory."""
        self.network = make_actor_critic(self.module)

    def collect(self, steps: int) -> Rollout:
        """Take at least ``steps`` environment steps; the arrays are overwritten by the next call."""
        if self._collector is None:
            raise RuntimeError("this env runner has no environments")
        with torch.inference_mode():  # Entering inference mode once around the loop is faster than at each step.
            rollout = self._collector.collect(steps)
        self.num_env_steps_sampled_lifetime += rollout.num_steps
        return rollout

    def collect_with(self, weights: Any, moments: Moments | None, steps: int) -> Rollout:
        """Collect in a remote runner, after loading weights and the merged normaliser state."""
        self.module.set_state(weights)
        if self.normaliser is not None and moments is not None:
            self.normaliser.load(*moments)
        return self.collect(steps)

    def sampling_state(self) -> dict[str, Any] | None:
        """Return where sampling stands, as plain values; None for a runner that samples nothing.

        The random numbers, and the environments in the middle of their episodes, pickled, or why they cannot be.
        """
        if self.env is None:
            return None
        state: dict[str, Any] = {"rng": self._rng.bit_generator.state, "noise": self.actions.noise.state()}
        if self._not_kept is None:
            try:
                state |= {"envs": pickle_envs(self.env), "episodes": self.sampler.state()}
            except pickle.PicklingError as error:
                self._not_kept = str(error)  # All later states give the same reason.
        return state | {"not_kept": self._not_kept}

    def load_sampling_state(self, state: dict[str, Any], steps: int) -> str | None:
        """Set what `sampling_state` returned.

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
            try:
                envs = pickle.loads(state["envs"])  # noqa: S301 - as RLlib has just unpickled what is around it
            except Exception as error:  # Another version of the environments' package may have written the pickle.
                reason = f"{type(error).__name__}: {error}"
            else:
                if envs.num_envs == self.num_envs:
                    self.env.close()
                    self.env, episodes = envs, state["episodes"]
                else:
                    reason = f"the checkpoint has {envs.num_envs} environments, this trial {self.num_envs}"
        self.restart(steps)
        if episodes is not None:
            self.sampler.load(episodes)
        self._rng.bit_generator.state = state["rng"]
        self.actions.noise.load(state["noise"])
        return reason

    def restart(self, steps: int) -> None:
        """Begin all episodes anew, from seeds that no shorter run has begun from.

        Args:
            steps: Environment steps of the trial so far.
        """
        self._begun_at = steps
        if self.env is not None:
            self.make_collector()

    def get_state(self, *args: Any, **kwargs: Any) -> Any:
        """Return RLlib's state, with the normaliser's statistics in its ``MeanStdFilter``."""
        if self.normaliser is not None:
            self.normaliser.to_filter(self._env_to_module.connectors[0])
        return super().get_state(*args, **kwargs)

    def set_state(self, state: Any) -> None:
        """Set RLlib's state and take the normaliser's statistics from it."""
        super().set_state(state)
        self.read_filter()

    def read_filter(self) -> None:
        """Take the statistics over from RLlib's connector, after a checkpoint was restored into it."""
        if self.normaliser is not None:
            self.normaliser.from_filter(self._env_to_module.connectors[0])


class LocalRunners(EnvRunnerGroup):
    """RLlib's ``EnvRunnerGroup`` with one local runner and nothing that needs Ray to be running.

    Args:
        config: Frozen; its ``env_runner_cls`` is the runner's class.
    """

    def __init__(self, config: Any) -> None:
        # super().__init__ is not called, because it puts the config into Ray's object store, which would start Ray.
        self._remote_config = config
        self._worker_manager = FaultTolerantActorManager([], init_id=1)
        self._num_env_runners_dropped_lifetime = 0
        self._local_env_runner = config.env_runner_cls(config=config, worker_index=0, num_workers=0)

    def get_spaces(self) -> Any:
        """Return the local runner's spaces."""
        return self._local_env_runner.get_spaces()

    def sync_env_runner_states(self, **kwargs: Any) -> None:
        """Do nothing, because the only runner already has the state."""

    def sync_weights(self, **kwargs: Any) -> None:
        """Do nothing: the algorithm writes the runner's weights itself."""

    def stop(self) -> None:
        """Close the environments."""
        self._local_env_runner.stop()
