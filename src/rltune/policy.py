"""A trained policy outside training: load it from any URI, act, build its environment, evaluate it, train on.

``load_policy`` neither starts nor imports Ray and unpickles nothing; ``load_algorithm`` does both, for those
who want to train on. Where the files are is ``policy_uri``'s part, how they act ``bundle_reader``'s. Runs
anywhere.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rltune import bundle_reader, cluster, policy_uri, restored, statistics, team
from rltune.bundle import describe_space
from rltune.errors import PolicyError

NUM_ENVS = 32  # at once in an evaluation: enough to share one forward pass, few enough to start quickly
SMALL_NETWORK = 300_000  # weights; below it several torch threads cost more than they bring


class Policy(bundle_reader.Policy):
    """A trained policy that knows the environment it was trained in."""

    def _rows(self, obs: Any) -> tuple[np.ndarray, bool]:
        try:
            return super()._rows(obs)
        except ValueError as error:
            raise PolicyError(
                str(error), "observations of policy.observation_space", "policy.env().reset() gives one"
            ) from None

    def _recalled(self, state: Any, num_episodes: int) -> np.ndarray:
        try:
            return super()._recalled(state, num_episodes)
        except ValueError as error:
            raise PolicyError(
                f"this policy remembers its episodes: {error}",
                "one observation of each episode, as many as in the call before",
                "policy.reset() where episodes begin, or policy.predict(obs, state, episode_start)",
            ) from None

    def env(self, **kwargs: Any) -> Any:
        """The Gymnasium environment that it was trained in, with its wrappers.

        Args:
            kwargs: Further arguments of the environment, such as ``render_mode="rgb_array"``.

        Raises:
            PolicyError: The policy's files name no environment.
        """
        from rltune import environment

        if not self.info.get("env"):
            raise PolicyError("this policy does not name its environment", "info['env']", "give evaluate an env=")
        return environment.make(self.info["env"], **kwargs)


def load_policy(uri: str | Path, *, trust: bool = False, output_dir: str | Path = "outputs") -> Any:
    """Load a trained policy. Starts no Ray and unpickles nothing.

    Args:
        uri: ``models:/<name>@<alias>``, ``models:/<name>/<version>``, ``runs:/<id>``, ``sweep:<name>`` (its
            winner; ``sweep:latest`` the newest sweep's), ``sweep:<name>/<trial>``, or a checkpoint's folder.
        trust: Take a sweep's checkpoint although its files are not those that the ledger recorded.
        output_dir: The folder of all sweeps.

    Returns:
        A `Policy`; a `rltune.team.Team`, which acts on dicts, where there are several agents.

    Raises:
        PolicyError: There is no such policy, or its files are damaged.
    """
    with policy_uri.located(policy_uri.Source(str(uri), Path(output_dir), trust)) as folder:
        try:
            return team.Team(folder) if team.is_team(folder) else Policy.load(folder)
        except (ValueError, OSError) as error:
            raise PolicyError(
                f"policy={uri}: {error}",
                "a bundle as rltune.bundle.write leaves it",
                "load another checkpoint of the trial",
            ) from error


def playable(uri: str | Path, *, trust: bool = False, output_dir: str | Path = "outputs") -> Any:
    """A policy to evaluate: as `load_policy` gives it, or by RLlib's own parts where its network needs them.

    Those run code when they are loaded: one's own sweeps' are taken, by ``sweep:...``, and others with ``trust``.

    Raises:
        PolicyError: As for `load_policy` and, where RLlib is needed, as for `load_algorithm`.
    """
    try:
        return load_policy(uri, trust=trust, output_dir=output_dir)
    except policy_uri.NeedsRLlibError:
        if not trust and not str(uri).lower().startswith("sweep:"):
            raise
        with policy_uri.trusted(policy_uri.Source(str(uri), Path(output_dir), trust)) as folder:
            return restored.Restored(folder.parent)


def load_algorithm(uri: str | Path, *, trust: bool = False, output_dir: str | Path = "outputs") -> Any:
    """Load RLlib's algorithm to train on from; starts Ray where none runs.

    RLlib's checkpoints hold pickles, so that loading one runs whatever its author put there: files that
    another user owns, and those from a tracking server, are taken only with ``trust``.

    Args:
        uri: As for ``load_policy``; a registered model leads to the run that it came from.
        trust: The files' author is trusted.
        output_dir: The folder of all sweeps.

    Returns:
        An RLlib ``Algorithm``; call ``train()`` on it and ``stop()`` at the end.

    Raises:
        PolicyError: There is no such checkpoint, or it is not trusted.
    """
    source = policy_uri.Source(str(uri), Path(output_dir), trust)
    with policy_uri.trusted(source) as folder:
        cluster.ensure()
        from ray.rllib.algorithms.algorithm import Algorithm

        logging.getLogger("ray.rllib").setLevel(logging.ERROR)
        _register_environment(folder)
        return Algorithm.from_checkpoint(str(folder))


def _register_environment(folder: Path) -> None:
    """Make an environment with wrappers known to Ray again, under the name that the checkpoint has for it."""
    from rltune import environment

    told = folder.parent / restored.INFO
    try:
        info = json.loads(told.read_text()) if told.is_file() else load_policy(folder.parent / "policy").info
    except PolicyError:
        return
    if info.get("env"):
        environment.rllib_name(environment.spec_of(info["env"]))


@dataclass(frozen=True)
class Evaluation:
    """A policy on episodes of their own seeds.

    Attributes:
        returns: Undiscounted, one an episode, in the order of the seeds; several agents' are summed.
        lengths: Environment steps, one an episode.
        mean: Of the returns.
        std: Of the returns (n - 1 in the denominator; 0 for one episode).
        iqm: Interquartile mean: of the middle half (Agarwal et al. 2021).
        low: Lower end of the mean's 95% bootstrap interval (percentiles).
        high: Its upper end.
        min: The worst return.
        max: The best return.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    mean: float
    std: float
    iqm: float
    low: float
    high: float
    min: float
    max: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def evaluate(
    policy: bundle_reader.Policy | team.Team | str | Path,
    episodes: int = 100,
    seed: int = 0,
    env: str | Mapping[str, Any] | None = None,
    deterministic: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Run a policy on exactly ``episodes`` episodes, of the environment's seeds ``seed``, ``seed + 1``, ...

    Every seed's episode counts, however long it is: taking the first to finish would favour short ones.

    Args:
        policy: A policy, or its URI.
        episodes: How many.
        seed: Of the first episode, and of sampled actions.
        env: Another environment with the same spaces: an id, which is put under the policy's own wrappers, or a
            specification as in conf/env. None: the one that it was trained in.
        deterministic: As for ``Policy.act``.
        progress: Called with the number of finished episodes and of all, after each.

    Raises:
        PolicyError: No policy, no environment, one with other spaces, or no episodes asked for.
    """
    if episodes < 1:
        raise PolicyError(f"episodes={episodes}", "at least 1", "episodes=100")
    found: Any = playable(policy) if isinstance(policy, str | Path) else policy
    with _few_threads(found.network):
        if isinstance(found, team.Team):
            wanted = team.Wanted(episodes, seed, deterministic, progress)
            returns, lengths = team.play(found, environment_of(found, env), wanted)
        else:
            run = _Episodes(found, seed, deterministic, progress)
            returns, lengths = run.all(_maker(found, env), episodes)
    return _summarise(returns, lengths, seed)


def evaluate_checkpoint(folder: Path, episodes: int, seed: int) -> Evaluation:
    """`evaluate` for a checkpoint of one's own sweep, what is pickled in it included."""
    return evaluate(playable(folder, trust=True), episodes, seed)


def environment_of(policy: Any, env: str | Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """The environment to play: the policy's own, or another one.

    Args:
        policy: The policy.
        env: As for `evaluate`.

    Raises:
        PolicyError: None was named, and the policy names none.
    """
    own: Mapping[str, Any] = policy.info.get("env") or {}
    if not env and not own:
        raise PolicyError("this policy does not say which environment it is for", "a Gymnasium id", "env=CartPole-v1")
    if isinstance(env, str):
        return own if env == own.get("id") else {**own, "id": env, "kwargs": {}}
    return env or own


@contextlib.contextmanager
def _few_threads(network: torch.nn.Module) -> Iterator[None]:
    """One torch thread for a small network: threads that wait for each other take ten times the CPU, on busy cores."""
    before = torch.get_num_threads()
    if sum(weights.numel() for weights in network.parameters()) < SMALL_NETWORK:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _maker(policy: bundle_reader.Policy, env: str | Mapping[str, Any] | None) -> Callable[[], Any]:
    """What builds one environment, checked once against the policy's spaces."""
    from rltune import environment

    spec = environment_of(policy, env)
    # Gymnasium's checker looks at each step, which takes half the time of a small environment's.
    make = partial(environment.make, spec, disable_env_checker=True)
    trial = make()
    try:
        seen = (_form(trial.observation_space), _form(trial.action_space))
    finally:
        trial.close()
    wanted = (_form(policy.observation_space), _form(policy.action_space))
    if seen != wanted:
        raise PolicyError(
            f"env={spec['id']}: its spaces are {seen[0]} and {seen[1]}",
            f"the policy's: {wanted[0]} and {wanted[1]}",
            "leave env out to use the one that it was trained in",
        )
    return make


def _form(space: Any) -> str:
    """A space up to its bounds, which an observation filter changes."""
    about = describe_space(space)
    return f"Discrete({about['n']})" if about["type"] == "Discrete" else f"Box{tuple(about['shape'])}"


class _Episodes:
    """Episodes side by side: each environment takes the next seed as soon as its episode has ended."""

    def __init__(
        self,
        policy: bundle_reader.Policy,
        seed: int,
        deterministic: bool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._policy, self._seed, self._deterministic = policy, seed, deterministic
        self._progress = progress or (lambda done, total: None)
        self._rng = np.random.default_rng(seed)

    def all(self, make: Callable[[], Any], episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Run them; returns and lengths in the order of the seeds."""
        envs = [make() for _ in range(min(episodes, NUM_ENVS))]
        try:
            return self._run(envs, episodes)
        finally:
            for env in envs:
                env.close()

    def _run(self, envs: list[Any], episodes: int) -> tuple[np.ndarray, np.ndarray]:
        returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
        current = list(range(len(envs)))  # the episode of each environment
        obs = [env.reset(seed=self._seed + episode)[0] for env, episode in zip(envs, current, strict=True)]
        waiting, done = len(envs), 0
        busy, memory, begins = list(range(len(envs))), None, np.ones(len(envs), dtype=bool)
        while busy:
            seen = np.stack([obs[i] for i in busy])
            actions, memory = self._policy.predict(seen, memory, begins, self._deterministic, self._rng)
            begins, still = np.zeros(len(busy), dtype=bool), []
            for place, (i, action) in enumerate(zip(busy, actions, strict=True)):
                obs[i], reward, terminated, truncated, _ = envs[i].step(action)
                returns[current[i]] += float(reward)
                lengths[current[i]] += 1
                if terminated or truncated:
                    done += 1
                    self._progress(done, episodes)
                    if waiting == episodes:
                        continue
                    current[i], waiting = waiting, waiting + 1
                    obs[i] = envs[i].reset(seed=self._seed + current[i])[0]
                    begins[place] = True
                still.append(place)
            memory = None if memory is None else memory[still]
            begins, busy = begins[still], [busy[place] for place in still]
        return returns, lengths


def _summarise(returns: np.ndarray, lengths: np.ndarray, seed: int) -> Evaluation:
    low, high = statistics.bootstrap_interval(returns, np.mean, seed)
    return Evaluation(
        returns=tuple(returns.tolist()),
        lengths=tuple(lengths.tolist()),
        mean=float(returns.mean()),
        std=float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        iqm=float(statistics.interquartile_mean(returns)),
        low=low,
        high=high,
        min=float(returns.min()),
        max=float(returns.max()),
    )


def model_arguments(folder: str | Path, carried: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What ``mlflow.pyfunc.log_model`` and ``save_model`` take to make a bundle a model without rltune.

    The signature says what comes out; what goes in is left open, because MLflow's check of a tensor (3.17)
    would refuse float64 arrays, dicts and data frames, and the model takes them all. The input example and
    ``metadata`` show what is meant.

    Args:
        folder: The bundle.
        carried: JSON-able facts for ``metadata``, such as the training config and the certification.
    """
    if team.is_team(Path(folder)):
        return team.model_arguments(folder, carried)
    from mlflow.types import Schema, TensorSpec

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # the console shows the progress
    policy = bundle_reader.load(folder)
    space = policy.observation_space
    space.seed(0)
    example = np.stack([space.sample() for _ in range(2)])
    actions, memory = policy.predict(example)
    given: Any = {"obs": example, "state": memory} if policy.memory_size else example
    outputs = [TensorSpec(actions.dtype, (-1, *actions.shape[1:]), "actions" if policy.memory_size else None)]
    if policy.memory_size:
        outputs.append(TensorSpec(memory.dtype, (-1, policy.memory_size), "state"))
    about = {"info": policy.info, "spaces": policy.spaces, **(carried or {})}
    return team.as_model(folder, Schema(outputs), given, about)
