"""Play a policy on episodes of given seeds, and compute statistics of the returns with a confidence interval."""

from __future__ import annotations

import contextlib
import functools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gymnasium.spaces import Dict

from rltune.config.schema import EnvConfig
from rltune.envs.actions import split_batch
from rltune.envs.changes import change_env, keep_arguments
from rltune.envs.closing import call_make, close_env
from rltune.envs.constructors import make_file_error
from rltune.envs.copies import Copy, build_own
from rltune.envs.episode import EpisodeRecord, was_cut
from rltune.envs.facts import describe_space
from rltune.envs.guest import call_guest, raise_fault
from rltune.envs.meter import EpisodeMeter
from rltune.envs.objective import Objective
from rltune.envs.pettingzoo import TeamEnv
from rltune.envs.spaces import find_observation_fault, to_python
from rltune.envs.spec import EnvSpec, name_metric, spec_of
from rltune.envs.step_count import read_reset, read_reward, read_step
from rltune.errors import GUEST_FAULTS, GuestError, PolicyError, choices
from rltune.policies import bundle_reader
from rltune.policies.policy import AnyPolicy, MultiAgentPolicy, load_playable, make_mask_reader
from rltune.policies.result import Evaluation, explain_cut
from rltune.policies.rllib_policy import RLlibPolicy
from rltune.policies.uri import Source, read_environment, require_own_environment, spell_uri
from rltune.statistics import interquartile_mean, mean_interval

PROGRESS_S = 1.0  # Progress is reported at least this often, so that a long episode does not look like a hang.
# This many environments share one forward pass if a policy does not say with how many it was trained.
NUM_ENVS = 32
NUM_TEAM_ENVS = 8  # Multi-agent environments are slower, so fewer of them run side by side.
SMALL_NETWORK = 300_000  # Networks with fewer weights than this are faster on one torch thread than on several.


def find_step_limit(env: Any, step_limit: int) -> int:
    """Return the number of steps after which an evaluated episode is cut: a given one, or a higher TimeLimit.

    A deterministic policy may repeat one action for ever. A lower TimeLimit ends episodes by itself.

    Args:
        env: The environment with its wrappers; one of several agents has no TimeLimit.
        step_limit: ``env.evaluation_steps``, see `rltune.envs.spec.EnvSpec.step_limit`.
    """
    return max(step_limit, getattr(getattr(env, "spec", None), "max_episode_steps", None) or 0)


@contextlib.contextmanager
def seed_globally(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch in the ``with`` block, and restore them after it.

    Many environments draw from them, and would play other episodes each time.

    Args:
        seed: The seed of the first episode.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed %= 2**32  # The range of NumPy's.
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


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

    Every seed's episode counts, however long it is: taking the first to finish would favour short ones. One in which
    the environment fails is played again from its seed, if ``env.restarts`` has its copy made again. One that does
    not end within `find_step_limit` steps is cut, and counts with what it has reached by then. If all episodes turn out
    to be one and the same, since neither environment nor policy is random, then the result has one, and no interval.

    Args:
        policy: A policy, or its URI.
        episodes: The number of episodes, at least 1.
        seed: The seed of the first episode. An episode's seed is also that of its sampled actions.
        env: What to change of the environment that the policy was trained in, to one with the same spaces: another id,
            or keys as in conf/env. ``kwargs`` and ``per_copy`` are added to the arguments of the same id, each also in
            the place of the other's; the wrappers stay unless ``wrappers`` names others.
        deterministic: As for ``Policy.act``. None: as the policy acts by itself, that is deterministically unless
            sampling did better (`rltune.policies.acting`).
        progress: Called with the number of finished episodes and of all, after each, and every second meanwhile: long
            episodes, side by side, come to an end late.
        copies: How many copies of the environment may play side by side, or copies that several evaluations share.
            None: as many as a process had in the policy's training. Episodes do not depend on it.

    Raises:
        PolicyError: There is no policy or environment, its spaces are others, or an argument is of another type or out
            of its range.
    """
    num_copies = 1 if copies is None or isinstance(copies, Copies) else copies
    for name, number, least in (("episodes", episodes, 1), ("copies", num_copies, 1), ("seed", seed, 0)):
        if not isinstance(number, Integral) or number < least:
            raise PolicyError("", f"a whole number, at least {least}", f"{name}={least}", key=name, value=number)
    if deterministic is not None and not isinstance(deterministic, bool):
        raise PolicyError("", "True, False or None", "leave it out", key="deterministic", value=deterministic)
    if progress is not None and not callable(progress):
        raise PolicyError(
            "is no function", "a function of two numbers, or None", "progress=print", key="progress", value=progress
        )
    if not isinstance(policy, AnyPolicy):
        policy = load_playable(Source(spell_uri(policy)))
    deterministic = policy.deterministic if deterministic is None else deterministic
    report = _limit_reports(progress or (lambda done, total: None))
    with _limit_threads(policy.network), seed_globally(seed):
        spec = environment_of(policy, env)
        records, cut = _play(policy, copies, spec, episodes, seed, deterministic, report)
    result = _summarise(records, spec_of(spec), cut)
    return replace(result, deterministic=deterministic, are_equal=len(records) < episodes)


class EqualEpisodes:
    """Finds out whether all episodes of an evaluation are one and the same, because nothing in them is random.

    Only what the policy sees tells: returns may be equal by chance, and two equal episodes may be, where an environment
    draws from a few starts. Each observation is compared with the one that the first episode to get so far has had.
    The first difference ends the comparison, in most environments at their first reset.
    """

    def __init__(self) -> None:
        self._digests: list[int] = []
        self._are_equal = True

    def add(self, num_steps: int, observation: Any) -> None:
        """Compare an observation.

        Args:
            num_steps: The steps of its episode before it.
            observation: As the environment has returned it.
        """
        if not self._are_equal:
            return
        digest = _digest_observation(observation)
        if num_steps == len(self._digests):
            self._digests.append(digest)
        else:
            self._are_equal = self._digests[num_steps] == digest

    def drop(self, records: list[EpisodeRecord]) -> list[EpisodeRecord]:
        """Return the episodes that tell something: one if all are equal, otherwise all."""
        are_equal = self._are_equal and len(set(map(repr, records))) == 1  # NaN is not equal to itself.
        return records[:1] if are_equal else records


def _digest_observation(observation: Any) -> int:
    """Return a number that is equal for equal observations of any space."""
    if isinstance(observation, Mapping):
        return hash(tuple((name, _digest_observation(part)) for name, part in observation.items()))
    if isinstance(observation, list | tuple):
        return hash(tuple(map(_digest_observation, observation)))
    return hash(observation) if isinstance(observation, str) else hash(np.asarray(observation).tobytes())


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
    env: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Evaluate a checkpoint of the user's own sweep, whose pickled files may therefore be loaded."""
    policy = load_playable(Source(str(folder), trust=True))
    return evaluate(policy, episodes, seed, env, progress=progress, copies=copies)


def evaluate_folder(
    folder: str,
    episodes: int,
    seed: int,
    env: Mapping[str, Any] | None = None,
    trust: bool = True,
    progress: Callable[[int, int], None] | None = None,
    copies: int | None = None,
) -> dict[str, Any]:
    """Evaluate a policy in a process of its own (`rltune.envs.child`), which takes and returns JSON values.

    Args:
        folder: The folder of a checkpoint or of a policy.
        episodes: As for `evaluate`.
        seed: As for `evaluate`.
        env: As for `evaluate`.
        trust: Whether it is a checkpoint of the user's own sweep, whose pickled files may be loaded.
        progress: As for `evaluate`.
        copies: As for `evaluate`.

    Returns:
        What `Evaluation.from_dict` reads.
    """
    policy = load_playable(Source(folder, trust=trust))
    return evaluate(policy, episodes, seed, env, progress=progress, copies=copies).to_dict()


def environment_of(policy: AnyPolicy, env: str | Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return the specification of the environment to play: the one that the policy was trained in, with changes.

    Args:
        env: As for `evaluate`.

    Raises:
        PolicyError: A change is unknown; or no environment was named, and the policy names none, or one whose module
            somebody else has chosen.
    """
    trained = read_environment(policy)
    if not isinstance(env, str | Mapping | None):
        allowed = "an id of Gymnasium's, module:Class, or a mapping with keys of conf/env"
        raise PolicyError("is no environment's id", allowed, 'env="CartPole-v1"', key="env", value=env)
    given: Mapping[str, Any] = {"id": env} if isinstance(env, str) else env or {}
    changes = {key: value for key, value in given.items() if value is not None}
    known = {field.name for group in (EnvConfig, EnvSpec) for field in fields(group)}
    if unknown := next((key for key in changes if key not in known), None):
        allowed = choices(unknown, ("id", "kwargs", "wrappers"))
        raise PolicyError(
            ": no such key", allowed, f"leave env.{unknown} out", key=f"env.{unknown}", value=changes[unknown]
        )
    steps = changes.get("evaluation_steps", 1)
    if not isinstance(steps, int) or steps < 1:
        raise PolicyError("", "a whole number, at least 1", "leave it out", key="env.evaluation_steps", value=steps)
    spec = change_env(trained, changes)
    if not spec.get("id"):
        raise PolicyError("this policy does not name its environment", "a Gymnasium id", "env=CartPole-v1")
    # What the caller has named may be imported; what only the policy's files name is checked.
    kept = keep_arguments(trained, changes)
    files = {**trained, **dict.fromkeys(changes), **kept, **({"id": "", "policies": None} if "id" in changes else {})}
    require_own_environment({**files, "id": files.get("id") or ""}, policy)
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
        first: The first copy, which has its number already; None: it is taken when it is made.
    """

    def __init__(self, most: int | None = None, first: Copy | None = None) -> None:
        self._most, self._first = most, first
        self._spec: Mapping[str, Any] | None = None
        self._is_flat = False
        self._envs: list[Any] = []

    def __enter__(self) -> Self:
        """Begin without a copy."""
        return self

    def __exit__(self, *details: object) -> None:
        """Close all copies."""
        self.close()

    def close(self) -> None:
        """Close all copies; the next evaluation makes new ones."""
        self._close_envs()
        if self._first is not None:
            self._first.release()

    def _close_envs(self) -> None:
        while self._envs:
            close_env(self._envs.pop())

    def take(
        self, policy: AnyPolicy, spec: Mapping[str, Any], episodes: int, report: Callable[[], None]
    ) -> Sequence[Any]:
        """Return the copies for an evaluation, those that are open already and those that are missing.

        Where copies are bounded, the first one is waited for, and further ones are made as long as some are free.

        Args:
            policy: The policy that plays.
            spec: The environment that it plays in.
            episodes: Their number, as no episode needs more than one copy.
            report: Called after each new copy, since each may take long.

        Raises:
            PolicyError: The environment's spaces are others than the policy's.
            ConfigError: An argument is the path of a file that is not there.
        """
        is_flat = isinstance(policy, RLlibPolicy)
        if (spec, is_flat) != (self._spec, self._is_flat):
            self._close_envs()
            self._spec, self._is_flat = spec, is_flat
        trained = policy.info.get("copies")  # Policies of earlier releases, and those of other programs, lack it.
        usual = (
            trained if isinstance(trained, int) and trained > 0 else NUM_TEAM_ENVS if spec.get("policies") else NUM_ENVS
        )
        wanted = min(episodes, self._most or usual)
        while len(self._envs) < wanted:
            copy = self._first if self._first and not self._envs else Copy(spec_of(spec), vector_index=len(self._envs))
            if self._envs and not copy.take_if_free():
                break
            try:
                with call_make(f"make of copy {len(self._envs) + 1} of {wanted}", len(self._envs)):
                    self._envs.append(build_own(copy, lambda copy: _make_copy(spec, copy, is_flat)))
            except GuestError as fault:
                raise (
                    make_file_error(spec_of(spec).kwargs, fault.__cause__, fault.problem) or fault
                ) from fault.__cause__
            _check_spaces(policy, self._envs[0], spec)
            report()
        return self._envs[:wanted]


def open_copies(copies: int | Copies | None) -> contextlib.AbstractContextManager[Copies]:
    """Return a context with the given copies, which stay open after it, or with new ones, which do not."""
    return contextlib.nullcontext(copies) if isinstance(copies, Copies) else Copies(copies)


def _make_copy(spec: Mapping[str, Any], copy: Copy, is_flat: bool) -> Any:
    from rltune.envs.build import make_env, make_flat_env, make_restarting

    if spec.get("policies"):
        return TeamEnv(make_env(spec, copy))
    # Gymnasium's checker runs at each step and would take half of a small environment's step time.
    make = functools.partial(make_flat_env if is_flat else make_env, spec, copy, disable_env_checker=True)
    return make_restarting(spec_of(spec), make)


def _check_spaces(policy: AnyPolicy, env: Any, spec: Mapping[str, Any]) -> None:
    """Refuse an environment whose agents or spaces are others than those of the policy."""
    owners = policy.owners if isinstance(policy, MultiAgentPolicy) else {}
    agents = env.observation_space.spaces if isinstance(env, TeamEnv) else owners
    if agents.keys() != owners.keys():
        raise PolicyError(
            f": its agents are {', '.join(agents)}",
            f"the policy's: {', '.join(owners)}" if owners else "an environment of one agent, as the policy's",
            "leave env out to use the one that it was trained in",
            key="env",
            value=spec["id"],
        )
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
    return bundle_reader.format_space(describe_space(space))


def _play(
    policy: AnyPolicy,
    copies: int | Copies | None,
    spec: Mapping[str, Any],
    episodes: int,
    seed: int,
    deterministic: bool,
    progress: Callable[[int, int], None],
) -> tuple[list[EpisodeRecord], tuple[int, ...]]:
    """Play episodes in parallel environments: when an episode ends, its environment starts the next seed.

    Returns:
        The episodes' records, in the order of the seeds, and the seeds of those that were cut.
    """
    with open_copies(copies) as shared, contextlib.ExitStack() as stack:
        envs = shared.take(policy, spec, episodes, lambda: progress(0, episodes))
        obs: list[Any] = []
        equal = EqualEpisodes()
        readers, masks = [make_mask_reader(policy, env) for env in envs], list[Any]()
        for episode, (env, reader) in enumerate(zip(envs, readers, strict=True)):
            with call_guest(f"reset of copy {episode + 1} of {len(envs)}"):
                observation, info = read_reset(env.reset(seed=seed + episode))
                masks.append(reader and reader.read(observation, info))
                obs.append(observation)
                equal.add(0, observation)
            progress(0, episodes)
        limit, cut = find_step_limit(envs[0], spec_of(spec).step_limit), list[int]()
        meters, records = [EpisodeMeter(spec_of(spec)) for _ in envs], [EpisodeRecord()] * episodes
        current = list(range(len(envs)))  # Maps each environment to the index of its current episode.
        generators = [make_generator(seed + episode) for episode in range(episodes)]
        started, done = len(envs), 0
        busy, memory, begins = list(range(len(envs))), None, np.ones(len(envs), dtype=bool)
        stack.enter_context(call_guest("step or reset"))  # The door is around the loop, where it costs no time.

        def reset(index: int, episode: int) -> Any:
            try:
                observation, info = read_reset(envs[index].reset(seed=seed + episode))
                meters[index].begin()
                if reader := readers[index]:
                    masks[index] = reader.read(observation, info)
                equal.add(0, observation)
                return observation
            except GUEST_FAULTS as error:
                raise_fault(error, f"reset of copy {index + 1}")

        def step(index: int, action: Any) -> Any:
            try:
                env = envs[index]
                # Several agents' actions are converted one by one, as some of the agents may have left.
                sent = action if isinstance(env, TeamEnv) else to_python(env.action_space, action)
                returned = read_step(env.step(sent))
                observation, reward, terminated, truncated, info = returned
                if reader := readers[index]:
                    masks[index] = reader.read(observation, info, is_over=bool(terminated or truncated))
                return observation, read_reward(reward), terminated, truncated, info
            except GUEST_FAULTS as error:
                raise_fault(error, f"step {meters[index].length + 1} of copy {index + 1}")

        def choose() -> Any:
            rng = [generators[current[i]] for i in busy]
            mask = {"action_mask": np.stack([masks[i] for i in busy])} if readers[0] else {}
            try:
                return policy.predict(policy.stack([obs[i] for i in busy]), memory, begins, deterministic, rng, **mask)
            except PolicyError:
                for i in busy:
                    if fault := find_observation_fault(_list_parts(envs[i], obs[i]), obs[i]):
                        num_steps = meters[i].length
                        raise_fault(fault, f"{f'step {num_steps}' if num_steps else 'reset'} of copy {i + 1}")
                raise

        while busy:
            # Environments without an episode left are not busy; the policy sees and remembers only the busy ones.
            actions, memory = choose()
            begins, ongoing = np.zeros(len(busy), dtype=bool), []
            for row, (i, action) in enumerate(zip(busy, split_batch(actions, len(busy)), strict=True)):
                obs[i], reward, terminated, truncated, info = step(i, action)
                episode, meter = current[i], meters[i]
                if truncated and was_cut(info):  # The copy has failed and was made again (env.restarts).
                    generators[episode] = make_generator(seed + episode)
                    obs[i], begins[row] = reset(i, episode), True
                    ongoing.append(row)
                    continue
                meter.add(reward, info)
                equal.add(meter.length, obs[i])
                is_cut = not (terminated or truncated) and meter.length >= limit
                if terminated or truncated or is_cut:
                    if is_cut:
                        cut.append(seed + episode)
                    try:
                        records[episode] = meter.describe(info)
                    except GuestError as error:
                        if not is_cut:
                            raise
                        # The info of a step in the middle of an episode may lack what a function reads at its end.
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
                    obs[i] = reset(i, current[i])
                    begins[row] = True
                else:
                    progress(done, episodes)
                ongoing.append(row)
            memory = None if memory is None else memory[ongoing]
            begins, busy = begins[ongoing], [busy[row] for row in ongoing]
    records = equal.drop(records)
    return records, tuple(sorted(cut))[: len(records)]


def _list_parts(env: Any, observation: Any) -> Any:
    """Return the space of an observation: of several agents, only those that are left have one."""
    space = env.observation_space
    return Dict({agent: space[agent] for agent in observation}) if isinstance(env, TeamEnv) else space


def _summarise(records: Sequence[EpisodeRecord], spec: EnvSpec, cut: tuple[int, ...]) -> Evaluation:
    """Compute the statistics of some episodes, of which those of the seeds ``cut`` did not end.

    Raises:
        PolicyError: No episode has a score.
    """
    returns = np.array([record.score for record in records])
    unscored = np.flatnonzero(np.isnan(returns)) if spec.scores_infos else np.zeros(0, np.int64)
    scores = np.delete(returns, unscored)
    if not len(scores):
        key, limit = spec.objective["key"], max(record.length for record in records)
        reasons = [explain_cut(cut, len(records), limit), f"none of {len(records)} episodes had {key} in an info"]
        raise PolicyError(
            f": {'; '.join(filter(None, reasons))}",
            "an objective that some episodes have",
            "objective.missing=0 counts an episode without it as 0",
            key="objective.key",
            value=key,
        )
    low, high = mean_interval(scores, Objective.from_settings(spec.objective).direction) or (None, None)
    columns = zip(*(record.metrics for record in records), strict=True)
    metrics = {
        name_metric(key): tuple(None if math.isnan(value) else value for value in column)
        for key, column in zip(spec.metrics, columns, strict=True)
    }
    return Evaluation(
        returns=tuple(returns.tolist()),
        lengths=tuple(record.length for record in records),
        mean=float(scores.mean()),
        std=float(scores.std(ddof=1)) if len(scores) > 1 else 0.0,
        iqm=float(interquartile_mean(scores)),
        low=low,
        high=high,
        min=float(scores.min()),
        max=float(scores.max()),
        cut=cut,
        unscored=tuple(unscored.tolist()),
        metrics=metrics,
    )
