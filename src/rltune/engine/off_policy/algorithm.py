"""The training loop that DQN and SAC share: sample, store transitions, and update in RLlib's proportion."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.dqn.dqn import calculate_rr_weights
from torch import Tensor

from rltune.compat.row_catalog import LAYOUT
from rltune.engine.algorithm import FastAlgorithm
from rltune.engine.features import UnsupportedError
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.off_policy.replay import Replay
from rltune.engine.off_policy.transitions import RowLayout, Stepper, TransitionPacker
from rltune.engine.sampling.action_distributions import make_actions
from rltune.engine.sampling.env_runner import ArrayEnvRunner
from rltune.engine.sampling.observation_filter import make_normaliser
from rltune.engine.sampling.remote import collect_transitions
from rltune.envs.episode import EpisodeRecord
from rltune.envs.layout import Layout
from rltune.policies.bundle_reader import SquashedGaussianHead

Array = NDArray[Any]

BUFFERS = {"EpisodeReplayBuffer": False, "PrioritizedEpisodeReplayBuffer": True}
"""RLlib's replay buffers that ours stands in for, and whether they prioritise."""


def find_frame_size(config: Any) -> int:
    """Return the bytes of one observation if these are rows of bytes, which are stored apart; else 0."""
    about = config.model_config.get(LAYOUT)
    layout = Layout.from_dict(about) if about else None
    return layout.width if layout is not None and layout.num_bytes else 0


def make_row_layout(config: Any, space: Any, action_size: int) -> RowLayout:
    """Make the layout of transitions.

    Args:
        config: RLlib's.
        space: That of single observations, as networks see them.
        action_size: Floats of one action.
    """
    return RowLayout(space.shape, action_size, is_numbered=find_frame_size(config) > 0)


class TransitionRunner(ArrayEnvRunner):
    """An env runner that returns transitions as rows of the replay memory; subclasses choose the actions."""

    continuous_head = SquashedGaussianHead

    def make_collector(self) -> None:
        """Build the stepper, which steps the environments and packs transitions."""
        config, space = self.config, self.env.single_action_space
        self._rng = self.make_generator()
        self.normaliser = make_normaliser(config, self.env.row_space, self.num_envs)
        self.actions = make_actions(space, self.num_envs, self._rng, self.config, self.continuous_head)
        self.layout = make_row_layout(self.config, self.env.single_observation_space, int(np.prod(self.actions.shape)))
        self.stepper = Stepper(
            self.env,
            self.actions,
            self.choose,
            TransitionPacker(self.layout, self.num_envs, config.n_step, config.gamma),
            normaliser=self.normaliser,
            seeds=self.derive_seeds(),
        )
        self.bind_module()

    @property
    def sampler(self) -> Stepper | None:
        """Return the stepper; None in a local runner without environments."""
        return self.stepper if self.env is not None else None

    def choose(self, obs: Any, clock: int) -> Any:
        """Choose actions for observations [envs, ...] after ``clock`` environment steps in the trial."""
        raise NotImplementedError

    def collect_transitions(self, weights: Any, moments: Any, steps: int, clock: int) -> Any:
        """Collect transitions in a remote runner, with the given weights and observation statistics.

        Returns:
            Transitions, environment steps, ended episodes, and what the normaliser learned (None without one).
        """
        self.module.set_state(weights)
        if self.normaliser is not None and moments is not None:
            self.normaliser.load(*moments)
        collected, taken, episodes = self.stepper.collect(steps, clock)
        if self.normaliser is not None:
            self.normaliser.flush()
        learned = self.normaliser.delta if self.normaliser is not None else None
        return collected._replace(source=self.worker_index or 0), taken, episodes, learned


class TargetNetworks:
    """RLlib's target networks in one flat tensor per optimizer, so that an update is a single operation on each.

    RLlib updates them parameter by parameter, which is more calls than arithmetic for networks of this size.

    Args:
        module: RLlib's, with ``get_target_network_pairs``.
        sources: The flat parameters that hold the online networks, in the order of the pairs.
    """

    def __init__(self, module: Any, sources: list[FlatParameters]) -> None:
        pairs = module.get_target_network_pairs()
        online = [param for main, _ in pairs for param in main.parameters()]
        targets = [param for _, target in pairs for param in target.parameters()]
        self._copies: list[tuple[FlatParameters, FlatParameters]] = []
        target_of = {id(param): target for param, target in zip(online, targets, strict=True)}
        for flat in sources:
            # Using the online parameters' order gives both flat tensors the same layout.
            own_targets = [target_of[id(param)] for param in flat.params]
            self._copies.append((FlatParameters(own_targets), flat))

    @property
    def data(self) -> list[Tensor]:
        """The flat tensors of the target networks, one per optimizer."""
        return [target.data for target, _ in self._copies]

    def update(self, tau: float) -> None:
        """Move the target networks towards the online networks by the factor ``tau``; 1 copies them."""
        for target, source in self._copies:
            if tau == 1.0:  # DQN's default tau of 1 needs only a copy.
                target.data.copy_(source.data)
            else:
                target.data.lerp_(source.data, tau)


class Update(Protocol):
    """The interface of a gradient update on a batch of transitions, implemented by DQN and by SAC."""

    flat: FlatParameters
    targets: TargetNetworks

    def step(self, batch: Any, weights: Array) -> None:
        """Update on a batch [rows, width] or a `Batch`, with importance weights; the next draw overwrites them."""

    def read_errors(self) -> Array:
        """Return the absolute temporal-difference errors [rows] of the last update, for the priorities."""

    def advance(self, clock: int) -> None:
        """Advance RLlib's learning rate schedules to ``clock`` environment steps."""

    def statistics(self) -> dict[str, float]:
        """Return RLlib's learner statistics of the last update; empty before the first."""

    def state(self) -> dict[str, Any]:
        """Return the state of the update that RLlib's checkpoint does not contain."""

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that `state` returned."""


def compute_huber_loss(error: Tensor) -> Tensor:
    """Compute the Huber loss with delta 1, elementwise."""
    size = error.abs()
    return torch.where(size < 1.0, 0.5 * error.square(), size - 0.5)


class OffPolicy(FastAlgorithm):
    """Mixin for fast algorithms with a replay memory; its loop corresponds to RLlib's ``DQN.training_step``."""

    replay: Replay

    def build_loop(self) -> None:
        """Build the update and the replay memory, and compute how many updates follow how many steps."""
        config = self.config
        self.store_rounds, self.updates = calculate_rr_weights(config)
        # RLlib's fragment length counts the steps of one environment.
        self.fragment = config.get_rollout_fragment_length() * config.num_envs_per_env_runner
        if not hasattr(self, "replay"):
            self.replay = self._make_replay()  # A restore rebuilds the loop, but must keep the replay memory.
        self.loop = self.make_update()
        self.target_updated_at = 0  # The environment steps at the last update of the target network.

    def _make_replay(self) -> Replay:
        settings = dict(self.config.replay_buffer_config)
        prioritised = BUFFERS.get(str(settings.get("type")))
        if prioritised is None:
            raise UnsupportedError(f"the replay buffer {settings.get('type')}")
        return Replay(
            int(settings.get("capacity", 10_000)),
            self.row_layout.width,
            self.config.total_train_batch_size,
            np.random.default_rng(self.config.seed),
            alpha=float(settings.get("alpha", 1.0)) if prioritised else None,
            beta=float(settings.get("beta") or 0.0),
            frame_size=find_frame_size(self.config),
            num_recent=(self.config.n_step + 1) * self.config.num_envs_per_env_runner,
        )

    @property
    def row_layout(self) -> RowLayout:
        """Return the layout of a transition in a row of the replay memory."""
        obs, action = self.spaces["__env_single__"]
        return make_row_layout(self.config, obs, 1 if hasattr(action, "n") else int(np.prod(action.shape)))

    def make_update(self) -> Update:
        """Build the gradient update on the learner's module."""
        raise NotImplementedError

    def training_step(self) -> None:
        """Sample ``store_rounds`` fragments, then do ``updates`` gradient updates."""
        start = time.perf_counter()
        self._sample(self.store_rounds * self.fragment * max(1, self.config.num_env_runners))
        sampled = time.perf_counter()
        self.timers_s["env_runner_sampling_timer"] += sampled - start
        clock = self.counters["num_env_steps_sampled_lifetime"]
        # Learning starts by the steps that the replay memory has seen. The trial's step count would be wrong after a
        # restore without the memory: the first batches would come from a few transitions.
        if self.replay.env_steps >= self.config.num_steps_sampled_before_learning_starts and self.replay.size:
            with torch.no_grad():
                for _ in range(self.updates):
                    self._update(clock)
            self.loop.advance(clock)
            if self.device.type != "cpu":
                self.publish_weights()
        self.timers_s["learner_update_timer"] += time.perf_counter() - sampled

    def _sample(self, steps: int) -> None:
        clock = self.counters["num_env_steps_sampled_lifetime"]
        if self.config.num_env_runners:
            collect_transitions(self, steps)
            return
        stepper, taken = self.env_runner_group.local_env_runner.stepper, 0
        with torch.no_grad():
            while taken < steps:
                # The rows are copied into the memory at once, because the stepper reuses them.
                rows, count = stepper.step(clock + taken)
                self.replay.add(stepper.join_frames(rows))
                taken += count
        self.count(taken, stepper.take_episodes() if stepper.episodes else [])

    def count(self, steps: int, episodes: list[EpisodeRecord]) -> None:
        """Add to the counters of sampled steps, including the replay memory's, and of ended episodes."""
        super().count(steps, episodes)
        self.replay.env_steps += steps

    def _update(self, clock: int) -> None:
        replay = self.replay
        self.loop.step(replay.sample(), replay.weights)
        if replay.tree is not None:
            replay.prioritise(self.loop.read_errors())
        if clock - self.target_updated_at >= self.config.target_network_update_freq:
            self.loop.targets.update(self.config.tau)
            self.target_updated_at = clock

    def step(self) -> dict[str, Any]:
        """Train one iteration; statistics are computed and checked for NaN only at its end."""
        # Statistics after each update would cost time, and on a GPU would wait for the device.
        result = super().step()
        with torch.no_grad():
            stats = self.loop.statistics()
        if stats:
            self.check_finite(stats, self.loop.flat.data)
            self.learner_stats = stats
            result["learners"]["default_policy"] = dict(stats)
        return result

    def engine_state(self) -> dict[str, Any]:
        """Return counters and random generators, and the replay memory if ``store_buffer_in_checkpoints`` is set."""
        state = {**super().engine_state(), "target_updated_at": self.target_updated_at, **self.loop.state()}
        state["draws"] = self.replay.rng.bit_generator.state
        if self.config.store_buffer_in_checkpoints:
            state["replay"] = self.replay.get_state()
        return state

    def load_engine_state(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`engine_state` returned."""
        super().load_engine_state(state)
        self.target_updated_at = state["target_updated_at"]
        self.loop.load(state)
        self.replay.rng.bit_generator.state = state["draws"]
        if "replay" in state:
            self.replay.set_state(state["replay"])

    def save_replay(self, folder: Path) -> None:
        """Write the replay memory into an empty folder."""
        self.replay.save(folder, self._made_by)

    def load_replay(self, folder: Path) -> bool:
        """Load a saved replay memory; change nothing and return False if its n-step or discount setting differs."""
        return self.replay.load(folder, self._made_by)

    @property
    def _made_by(self) -> dict[str, Any]:
        """The settings on which rewards and discounts in the replay memory depend."""
        return {"gamma": self.config.gamma, "n_step": self.config.n_step}
