"""Play a policy on episodes of given seeds, and compute statistics of the returns with a confidence interval."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from rltune.config.schema import EnvConfig
from rltune.envs.closing import close_env
from rltune.envs.objective import Objective, Score, make_score
from rltune.envs.pettingzoo import TeamEnv
from rltune.envs.spaces import to_python
from rltune.envs.spec import EnvSpec
from rltune.envs.step_count import read_reward
from rltune.errors import ConfigError, PolicyError, choices
from rltune.formatting import format_interval, format_number
from rltune.policies import bundle_reader
from rltune.policies.bundle_writer import describe_space
from rltune.policies.policy import AnyPolicy, load_playable
from rltune.policies.rllib_policy import RLlibPolicy
from rltune.policies.uri import Source, require_own_environment
from rltune.records import Direction
from rltune.statistics import interquartile_mean, mean_interval

PROGRESS_S = 1.0  # Progress is reported at least this often, so that a long episode does not look like a hang.
# This many environments share one forward pass if a policy does not say with how many it was trained.
NUM_ENVS = 32
MAX_NAMED = 8  # At most this many of the episodes that were cut are named.
NUM_TEAM_ENVS = 8  # Multi-agent environments are slower, so fewer of them run side by side.
SMALL_NETWORK = 300_000  # Networks with fewer weights than this are faster on one torch thread than on several.
# An evaluated episode ends after this many steps, unless the environment's own time limit is higher: a deterministic
# policy may repeat one action for ever. It is the highest limit in common use: Atari's 108,000 frames, four to a step
# (Machado et al. 2018).
MAX_EPISODE_STEPS = 27_000


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: returns and lengths of the episodes, and their statistics.

    Attributes:
        returns: Undiscounted, one an episode, in the order of the seeds; several agents' are summed. Scores in their
            place where the sweep had another objective (`rltune.envs.objective`).
        lengths: Environment steps, one an episode.
        std: Standard deviation of the returns (n - 1 in the denominator; 0 for one episode).
        iqm: Interquartile mean: of the middle half (Agarwal et al. 2021).
        low: Lower end of the mean's 95% interval (`rltune.statistics.mean_interval`); None if it has none.
        high: Upper end of the interval.
        cut: Environment seeds of the episodes that ended only at the limit of an evaluation, see `find_step_limit`.
        deterministic: How the policy acted: deterministically, or by sampling its actions.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    mean: float
    std: float
    iqm: float
    low: float | None
    high: float | None
    min: float
    max: float
    cut: tuple[int, ...] = ()
    deterministic: bool = True

    def __repr__(self) -> str:
        """Format the statistics in one line, without the returns of single episodes."""
        return (
            f"<Evaluation of {len(self.returns)} episodes: mean {self.mean:.4g}, 95% interval "
            f"{format_interval(self.to_dict())}, IQM {self.iqm:.4g}, {self.min:.4g} to {self.max:.4g}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)

    def explain_cut(self) -> str:
        """Explain which episodes were cut, and how to give the environment a time limit; empty if none was cut."""
        return explain_cut(self.cut, len(self.returns), max(self.lengths))


def explain_cut(seeds: Sequence[int], episodes: int, steps: int) -> str:
    """Explain that episodes were cut, and how to give the environment a time limit; empty if none was cut.

    Args:
        seeds: The environment seeds of the episodes that were cut.
        episodes: The number of all episodes.
        steps: The number of steps after which they were cut.
    """
    if not seeds:
        return ""
    named = ", ".join(map(str, seeds[:MAX_NAMED])) + (", ..." if len(seeds) > MAX_NAMED else "")
    return (
        f"{len(seeds)} of {format_number(episodes, 'episode')} did not end and {'was' if len(seeds) == 1 else 'were'} "
        f"cut after {steps:,} steps (environment seeds {named}). If the environment has no time limit, give it one: "
        "+env.kwargs.max_episode_steps=1000 is Gymnasium's TimeLimit (PettingZoo: max_cycles)"
    )


def find_step_limit(env: Any) -> int:
    """Return the number of steps after which an evaluated episode is cut: `MAX_EPISODE_STEPS`, or a higher TimeLimit.

    A lower TimeLimit ends episodes by itself.

    Args:
        env: The environment with its wrappers; one of several agents has no TimeLimit.
    """
    spec = getattr(env, "spec", None)
    return max(MAX_EPISODE_STEPS, getattr(spec, "max_episode_steps", None) or 0)


def make_generator(seed: int) -> np.random.Generator:
    """Make the generator that draws the sampled actions of an episode, which can therefore be played again alone.

    Args:
        seed: The environment's seed. From this seed alone, the actions would be drawn by the environment's own numbers.
    """
    return np.random.default_rng((1, seed))


def evaluate(
    policy: AnyPolicy | str | Path,
    episodes: int = 100,
    seed: int = 0,
    env: str | Mapping[str, Any] | None = None,
    deterministic: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    copies: int | Copies | None = None,
) -> Evaluation:
    """Play exactly ``episodes`` episodes with a policy; the environment's seeds are ``seed``, ``seed + 1``, ...

    Every seed's episode counts, however long it is: taking the first to finish would favour short ones. One that does
    not end within `find_step_limit` steps is cut, and counts with what it has reached by then.

    Args:
        policy: A policy, or its URI.
        episodes: The number of episodes, at least 1.
        seed: The seed of the first episode. An episode's seed is also that of its sampled actions.
        env: What to change of the environment that the policy was trained in, to one with the same spaces: another id,
            or keys as in conf/env. ``kwargs`` are added to the arguments of the same id; the wrappers stay unless
            ``wrappers`` names others.
        deterministic: As for ``Policy.act``. None: as the policy acts by itself, that is deterministically unless
            sampling did better (`rltune.policies.acting`).
        progress: Called with the number of finished episodes and of all, after each, and every second meanwhile: long
            episodes, side by side, come to an end late.
        copies: How many copies of the environment may play side by side, or copies that several evaluations share.
            None: as many as a process had in the policy's training. Episodes do not depend on it.

    Raises:
        PolicyError: There is no policy or environment, its spaces are others, or a number is below 1.
    """
    for name, number in (("episodes", episodes), ("copies", 1 if copies is None else copies)):
        if isinstance(number, int) and number < 1:
            raise PolicyError("", "at least 1", f"{name}=1", key=name, value=number)
    if isinstance(policy, str | Path):
        policy = load_playable(Source(str(policy)))
    deterministic = policy.deterministic if deterministic is None else deterministic
    report = _limit_reports(progress or (lambda done, total: None))
    with _limit_threads(policy.network):
        spec = environment_of(policy, env)
        settings = spec.get("objective") or {}
        returns, lengths, cut = _play(policy, copies, spec, episodes, seed, deterministic, report, make_score(settings))
    result = _summarise(returns, lengths, Objective.from_settings(settings).direction)
    return replace(result, cut=cut, deterministic=deterministic)


def _limit_reports(progress: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Wrap ``progress`` so that it is called when an episode has ended or a second has passed, not at each step."""
    num_reported, reported_at = 0, time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal num_reported, reported_at
        if done > num_reported or time.monotonic() - reported_at >= PROGRESS_S:
            num_reported, reported_at = done, time.monotonic()
            progress(done, total)

    return report


def evaluate_checkpoint(
    folder: Path,
    episodes: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
    copies: Copies | None = None,
) -> Evaluation:
    """Evaluate a checkpoint of the user's own sweep, whose pickled files may therefore be loaded."""
    policy = load_playable(Source(str(folder), trust=True))
    return evaluate(policy, episodes, seed, progress=progress, copies=copies)


def environment_of(policy: AnyPolicy, env: str | Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return the specification of the environment to play: the one that the policy was trained in, with changes.

    Args:
        env: As for `evaluate`.

    Raises:
        PolicyError: A change is unknown; or no environment was named, and the policy names none, or one whose module
            somebody else has chosen.
    """
    trained: Mapping[str, Any] = policy.info.get("env") or {}
    given: Mapping[str, Any] = {"id": env} if isinstance(env, str) else env or {}
    changes = {key: value for key, value in given.items() if value is not None}
    known = {field.name for group in (EnvConfig, EnvSpec) for field in fields(group)}
    if unknown := next((key for key in changes if key not in known), None):
        allowed = choices(unknown, ("id", "kwargs", "wrappers"))
        raise PolicyError(
            ": no such key", allowed, f"leave env.{unknown} out", key=f"env.{unknown}", value=changes[unknown]
        )
    is_same = changes.get("id", trained.get("id")) == trained.get("id")
    kwargs = {**((trained.get("kwargs") or {}) if is_same else {}), **changes.get("kwargs", {})}
    spec = {**trained, **changes, "kwargs": kwargs}
    if not spec.get("id"):
        raise PolicyError("this policy does not name its environment", "a Gymnasium id", "env=CartPole-v1")
    # What the caller has named may be imported; what only the policy's files name is checked.
    files = {**spec, **dict.fromkeys(changes), **({"id": "", "policies": None} if "id" in changes else {})}
    require_own_environment({**files, "id": files["id"] or ""}, policy)
    return spec


@contextlib.contextmanager
def _limit_threads(network: torch.nn.Module) -> Iterator[None]:
    """Run small networks on one torch thread: on busy cores, waiting threads would take ten times the CPU time."""
    before = torch.get_num_threads()
    if sum(weights.numel() for weights in network.parameters()) < SMALL_NETWORK:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Copies:
    """Copies of an environment in which one evaluation after another plays; the end of the context closes them.

    They are made when an evaluation needs them, so that a simulator that starts slowly, or may run only once, is
    started as seldom as possible. The first one is compared with the policy.

    Args:
        most: The most copies at once; None: as many as a process had in the training of the policy.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._spec: Mapping[str, Any] | None = None
        self._is_flat = False
        self._envs: list[Any] = []

    def __enter__(self) -> Self:
        """Begin without a copy."""
        return self

    def __exit__(self, *details: object) -> None:
        """Close all copies."""
        self._close()

    def _close(self) -> None:
        while self._envs:
            close_env(self._envs.pop())

    def take(
        self, policy: AnyPolicy, spec: Mapping[str, Any], episodes: int, report: Callable[[], None]
    ) -> Sequence[Any]:
        """Return the copies for an evaluation, those that are open already and those that are missing.

        Args:
            policy: The policy that plays.
            spec: The environment that it plays in.
            episodes: Their number, as no episode needs more than one copy.
            report: Called after each new copy, since each may take long.

        Raises:
            PolicyError: The environment's spaces are others than the policy's.
        """
        is_flat = isinstance(policy, RLlibPolicy)
        if (spec, is_flat) != (self._spec, self._is_flat):
            self._close()
            self._spec, self._is_flat = spec, is_flat
        trained = policy.info.get("copies")  # Policies of earlier releases, and those of other programs, lack it.
        usual = (
            trained if isinstance(trained, int) and trained > 0 else NUM_TEAM_ENVS if spec.get("policies") else NUM_ENVS
        )
        wanted = min(episodes, self._most or usual)
        while len(self._envs) < wanted:
            self._envs.append(_make_copy(spec, is_flat))
            _check_spaces(policy, self._envs[0], spec)
            report()
        return self._envs[:wanted]


def open_copies(copies: int | Copies | None) -> contextlib.AbstractContextManager[Copies]:
    """Return a context with the given copies, which stay open after it, or with new ones, which do not."""
    return contextlib.nullcontext(copies) if isinstance(copies, Copies) else Copies(copies)


def _make_copy(spec: Mapping[str, Any], is_flat: bool) -> Any:
    from rltune.envs.build import make_env, make_flat_env

    if spec.get("policies"):
        return TeamEnv(make_env(spec))
    # Gymnasium's checker runs at each step and would take half of a small environment's step time.
    return (make_flat_env if is_flat else make_env)(spec, disable_env_checker=True)


def _check_spaces(policy: AnyPolicy, env: Any, spec: Mapping[str, Any]) -> None:
    """Refuse an environment whose spaces are others than those of the policy."""
    spaces = (_describe_form(env.observation_space), _describe_form(env.action_space))
    expected = (_describe_form(policy.observation_space), _describe_form(policy.action_space))
    if spaces != expected:
        raise PolicyError(
            f": its spaces are {spaces[0]} and {spaces[1]}",
            f"the policy's: {expected[0]} and {expected[1]}",
            "leave env out to use the one that it was trained in",
            key="env",
            value=spec["id"],
        )


def _describe_form(space: Any) -> str:
    """Describe a space without its bounds, because observation normalisation changes them."""
    if hasattr(space, "spaces"):
        return ", ".join(f"{agent}: {_describe_form(part)}" for agent, part in space.spaces.items())
    return bundle_reader.format_space(describe_space(space))


def _play(
    policy: AnyPolicy,
    copies: int | Copies | None,
    spec: Mapping[str, Any],
    episodes: int,
    seed: int,
    deterministic: bool,
    progress: Callable[[int, int], None],
    score: Score,
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Play episodes in parallel environments: when an episode ends, its environment starts the next seed.

    Returns:
        What the episodes are worth and their lengths, (episodes,) each, in the order of the seeds; and the seeds of
        those that were cut.
    """
    with open_copies(copies) as shared:
        envs = shared.take(policy, spec, episodes, lambda: progress(0, episodes))
        obs: list[Any] = []
        for episode, env in enumerate(envs):
            obs.append(env.reset(seed=seed + episode)[0])
            progress(0, episodes)
        limit, cut = find_step_limit(envs[0]), []
        returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
        current = list(range(len(envs)))  # Maps each environment to the index of its current episode.
        generators = [make_generator(seed + episode) for episode in range(episodes)]
        started, done = len(envs), 0
        busy, memory, begins = list(range(len(envs))), None, np.ones(len(envs), dtype=bool)
        while busy:
            # Environments without an episode left are not busy; the policy sees and remembers only the busy ones.
            rng = [generators[current[i]] for i in busy]
            actions, memory = policy.predict([obs[i] for i in busy], memory, begins, deterministic, rng)
            begins, ongoing = np.zeros(len(busy), dtype=bool), []
            for row, (i, action) in enumerate(zip(busy, actions, strict=True)):
                obs[i], reward, terminated, truncated, info = envs[i].step(to_python(envs[i].action_space, action))
                returns[current[i]] += read_reward(reward)
                lengths[current[i]] += 1
                is_cut = not (terminated or truncated) and lengths[current[i]] >= limit
                if terminated or truncated or is_cut:
                    episode = current[i]
                    if is_cut:
                        cut.append(seed + episode)
                    try:
                        returns[episode] = score(float(returns[episode]), int(lengths[episode]), info)
                    except ConfigError as error:
                        if not is_cut:
                            raise
                        # The info of a step in the middle of an episode may lack what the objective reads at its end.
                        raise PolicyError(
                            f"{explain_cut(cut, episodes, limit)}; {error.what}",
                            "episodes that end, with the objective in their last info",
                            "+env.kwargs.max_episode_steps=1000",
                        ) from error
                    done += 1
                    progress(done, episodes)
                    if started == episodes:
                        continue
                    current[i], started = started, started + 1
                    obs[i] = envs[i].reset(seed=seed + current[i])[0]
                    begins[row] = True
                else:
                    progress(done, episodes)
                ongoing.append(row)
            memory = None if memory is None else memory[ongoing]
            begins, busy = begins[ongoing], [busy[row] for row in ongoing]
    return returns, lengths, tuple(sorted(cut))


def _summarise(returns: np.ndarray, lengths: np.ndarray, direction: Direction) -> Evaluation:
    low, high = mean_interval(returns, direction) or (None, None)
    return Evaluation(
        returns=tuple(returns.tolist()),
        lengths=tuple(lengths.tolist()),
        mean=float(returns.mean()),
        std=float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        iqm=float(interquartile_mean(returns)),
        low=low,
        high=high,
        min=float(returns.min()),
        max=float(returns.max()),
    )
