"""Which configurations do well on which tasks? Sweeps over a wide space, whose curves are kept.

    python -m benchmarks.metadata [--algos ppo] [--tasks cartpole,hopper] [--hours 2]

`benchmarks/portfolio.py` chooses from these curves what a sweep tries first. Each task is swept by a Sobol sequence
over the shipped space and the choices that the shipped space leaves to the algorithm's file: parallel environments,
network width and activation. Whether observations and rewards are normalised is set for a whole sweep, so that each
combination is a sweep of its own, which begins with the algorithm file's own values of the time. PPO's last two sweeps
are over the shipped space alone, after configurations that the first sweeps suggest. The better half of what a
portfolio is chosen from is trained with a second seed, once all sweeps with the first one are done.

The curves are in the format that `benchmarks/judge_pool.py` reads, in benchmarks/results/metadata/: training returns at
20 marks, NaN where a run had diverged or where there is no second seed. A sweep that is in that folder is not run
again, and one that was interrupted is resumed from outputs/. SIGTERM loses nothing. About 7 core-hours for everything;
it is no timing, so that it may run at a low priority.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import run_command
from benchmarks.records import RESULTS, ROOT, describe_commit
from rltune.ledger.storage import open_ledger
from rltune.trial.metrics import CPU

FOLDER = RESULTS / "metadata"
WORK = ROOT / "outputs" / "metadata"
MARKS, SEEDS = 20, 2
ATTEMPTS, PAUSE_S = 5, 60
OBSERVATIONS, REWARDS = "env.normalise_observations", "env.rewards.normalise"
"""The names in the records for what a sweep normalises, each of which is true or false."""
PARTS = {"observations": OBSERVATIONS, "rewards": REWARDS}
ACTIVATION = "+space.fcnet_activation=[choice,tanh,relu]"
WIDTH = "+space.fcnet_hiddens=[choice,[64,64],[256,256]]"
CROSSING = "env.id=minigrid:MiniGrid-SimpleCrossingS9N1-v0"
COMMON = (
    *("~tuned", "searcher=qmc", "scheduler=none", "certify=off", "certify.top=0", "tracking=off", "report=false"),
    *("tracking.register=false", f"budget.reports={MARKS}", "resume=auto"),
)


@dataclass(frozen=True)
class Shape:
    """What the trials of one sweep have in common.

    Attributes:
        values: The values by name that are not searched, as they are recorded with each configuration.
        words: Overrides of the sweep.
        trials: The number of configurations.
        first: Configurations that are tried before the sequence's.
    """

    values: Mapping[str, Any]
    words: Sequence[str]
    trials: int
    first: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Algorithm:
    """What is swept with one algorithm.

    Attributes:
        shapes: A sweep each.
        tasks: Environment steps by ``<family>_<environment>``, the cheapest tasks first.
        final: The number of the last sweeps whose configurations a portfolio is chosen from.
        late: Those of ``tasks`` that have these last sweeps alone.
    """

    shapes: Sequence[Shape]
    tasks: Mapping[str, int]
    final: int
    late: Sequence[str] = ()

    def list_shapes(self, task: str) -> range:
        """List the sweeps of a task by index."""
        return range(len(self.shapes) - self.final if task in self.late else 0, len(self.shapes))


def make_shapes(count: int, trials: int, *words: str) -> tuple[Shape, ...]:
    """Return the first sweeps of an algorithm: with nothing normalised, observations, and rewards as well."""
    switches = ((False, False), (True, False), (True, True))[:count]
    return tuple(Shape({OBSERVATIONS: first, REWARDS: second}, words, trials) for first, second in switches)


PPO_NAMES = (
    *("lr", "gamma", "lambda_", "entropy_coeff", "train_batch_size_per_learner", "minibatch_size", "num_epochs"),
    "clip_param",
)
PPO_FIRST = (
    (4e-4, 0.99, 0.85, 1e-3, 1024, 256, 20, 0.2),
    (1e-4, 0.99, 0.98, 3e-5, 512, 128, 20, 0.2),
    (1.2e-3, 0.99, 0.85, 2e-5, 1024, 64, 20, 0.1),
    (7e-4, 0.955, 0.85, 6e-5, 1024, 64, 10, 0.3),
    (2.5e-3, 0.98, 0.92, 2e-3, 512, 128, 5, 0.1),
    (3e-4, 0.99, 0.95, 1e-5, 1024, 256, 20, 0.2),
    (3e-4, 0.99, 0.95, 1e-5, 512, 256, 20, 0.2),
    (3e-4, 0.99, 0.9, 1e-5, 1024, 256, 20, 0.2),
    (1e-3, 0.98, 0.8, 1e-5, 512, 256, 20, 0.2),
    (3e-4, 0.99, 0.95, 1e-5, 1024, 64, 10, 0.2),
    (2.5e-4, 0.99, 0.95, 1e-2, 1024, 256, 5, 0.1),
)
"""Configurations near those that did best in the first three sweeps, and published ones, by `PPO_NAMES`."""
PPO_SHIPPED = tuple(
    Shape(
        {
            **{OBSERVATIONS: normalise_observations, REWARDS: True},
            **{"num_envs_per_env_runner": 16, "fcnet_hiddens": (64, 64), "fcnet_activation": "tanh"},
        },
        (
            "algo.env_runners.num_envs_per_env_runner=16",
            "algo.rl_module.model_config.fcnet_hiddens=[64,64]",
            "algo.rl_module.model_config.fcnet_activation=tanh",
            "algo.training.entropy_coeff=1e-5",
        ),
        28,
        tuple(dict(zip(PPO_NAMES, values, strict=True)) for values in PPO_FIRST),
    )
    for normalise_observations in (True, False)
)
ALGORITHMS = {
    "ppo": Algorithm(
        (
            # The space's range of entropy_coeff is logarithmic, so that its low end stands for the file's 0.
            *make_shapes(
                *(3, 16, "+space.num_envs_per_env_runner=[choice,4,8,16,32]", WIDTH, ACTIVATION),
                "algo.training.entropy_coeff=1e-5",
            ),
            *PPO_SHIPPED,
        ),
        {
            "cc_cartpole": 50_000,
            "cc_acrobot": 80_000,
            "mujoco_halfcheetah": 100_000,
            "box2d_lunarlander": 100_000,
            "cc_pendulum": 100_000,
            "mujoco_hopper": 100_000,
            "minigrid_empty": 40_000,
            "box2d_bipedalwalker": 150_000,
            "mujoco_walker2d": 100_000,
            "minigrid_doorkey": 80_000,
            "cc_mountaincar": 100_000,
            "minigrid_crossing": 80_000,
        },
        final=2,
        late=("mujoco_walker2d", "minigrid_doorkey", "cc_mountaincar", "minigrid_crossing"),
    ),
    "dqn": Algorithm(
        make_shapes(2, 16, WIDTH, ACTIVATION),
        {
            "cc_cartpole": 40_000,
            "cc_acrobot": 40_000,
            "box2d_lunarlander": 60_000,
            "cc_mountaincar": 60_000,
            "minigrid_empty": 30_000,
            "minigrid_doorkey": 60_000,
        },
        final=2,
    ),
    "sac": Algorithm(
        make_shapes(2, 10, "algo.rl_module.model_config.fcnet_hiddens=[64,64]", ACTIVATION),
        {
            "cc_pendulum": 15_000,
            "mujoco_halfcheetah": 30_000,
            "mujoco_hopper": 30_000,
            "box2d_lunarlander_continuous": 30_000,
            "cc_mountaincar_continuous": 30_000,
        },
        final=2,
    ),
}


@dataclass(frozen=True)
class Part:
    """One sweep: a pair of algorithm and task, one of the algorithm's ``shapes`` by index, and a seed, 0 or 1."""

    pair: str
    shape: int
    seed: int

    @property
    def name(self) -> str:
        """The sweep's name."""
        return f"{self.pair}-{self.shape}-{self.seed}"


def list_parts(algos: Sequence[str], tasks: Sequence[str]) -> Iterator[Part]:
    """List the sweeps: all of the first seed, algorithm by algorithm, and then those of the second."""
    for seed in range(SEEDS):
        for algo in algos:
            for task in ALGORITHMS[algo].tasks:
                if not tasks or task.partition("_")[2] in tasks:
                    yield from (Part(f"{algo}_{task}", shape, seed) for shape in ALGORITHMS[algo].list_shapes(task))


@dataclass
class Dataset:
    """The curves of a folder.

    Attributes:
        folder: Where they are kept.
        curves: [configurations, seeds, marks] by pair.
        pairs: By pair ``env_steps`` of the marks, ``configurations`` by name, ``cpu_s`` of each seed's training, the
            ``shapes`` (the sweep that each configuration is of), and ``sweeps``, the names of those that are done.
    """

    folder: Path
    curves: dict[str, Any]
    pairs: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Dataset:
        """Read a folder; one that is not there holds nothing."""
        if not (folder / "curves.npz").is_file():
            return cls(folder, {}, {})
        with gzip.open(folder / "configurations.json.gz", "rt") as file:
            return cls(folder, dict(np.load(folder / "curves.npz")), json.load(file))

    def has(self, part: Part) -> bool:
        """Return whether a sweep is done."""
        return part.name in self.pairs.get(part.pair, {"sweeps": ()})["sweeps"]

    def choose_rows(self, part: Part) -> list[int]:
        """Return which of a pair's configurations a sweep trains.

        They are none yet with the first seed, and with the second one the better half of those of the final sweeps.
        """
        algo, _, task = part.pair.partition("_")
        final = ALGORITHMS[algo].list_shapes(task)[-ALGORITHMS[algo].final :]
        shapes = self.pairs.get(part.pair, {"shapes": []})["shapes"]
        if not part.seed or set(final) - set(shapes):
            return []
        rows = np.array([row for row, shape in enumerate(shapes) if shape in final])
        # A diverged run ends with NaN, which is sorted to the end.
        order = np.argsort(-self.curves[part.pair][rows, 0, -3:].mean(axis=1))
        return [int(row) for row in sorted(rows[order[: (len(rows) + 1) // 2]]) if shapes[row] == part.shape]

    def add(self, part: Part, rows: Sequence[int], env_steps: int, trials: Sequence[Trial]) -> None:
        """Add a sweep's trials and write the folder."""
        steps = [round(env_steps * mark / MARKS) for mark in range(1, MARKS + 1)]
        empty: dict[str, Any] = {"configurations": [], "cpu_s": [], "shapes": [], "sweeps": []}
        pair = self.pairs.setdefault(part.pair, {"env_steps": steps, "source": f"rltune {describe_commit()}", **empty})
        curves = self.curves.get(part.pair, np.full((0, SEEDS, MARKS), np.nan))
        for index, (values, scores, cpu_s) in enumerate(trials):
            if not rows:
                pair["configurations"].append(values)
                pair["shapes"].append(part.shape)
                pair["cpu_s"].append([None] * SEEDS)
                curves = np.concatenate([curves, np.full((1, SEEDS, MARKS), np.nan)])
            row = rows[index] if rows else -1
            curves[row, part.seed] = scores
            pair["cpu_s"][row][part.seed] = round(cpu_s, 2)
        self.curves[part.pair] = curves.astype(np.float32)
        pair["sweeps"].append(part.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(self.folder / "curves.npz", **self.curves)
        with gzip.GzipFile(self.folder / "configurations.json.gz", "wb", mtime=0) as file:
            file.write(json.dumps(self.pairs).encode())


Trial = tuple[dict[str, Any], list[float], float]
"""Values by name, the score at each mark, and CPU seconds of training."""


def run_part(part: Part, configurations: Sequence[Mapping[str, Any]]) -> list[Trial]:
    """Run a sweep, or resume it.

    Args:
        configurations: What is trained; empty: what the sequence has.
    """
    algo, _, task = part.pair.partition("_")
    what = ALGORITHMS[algo]
    shape = what.shapes[part.shape]
    family, _, environment = task.partition("_")
    words = [f"algo={algo}", *COMMON, *shape.words, f"name={part.name}", f"seed={part.shape + 100 * part.seed}"]
    words += (
        ["env=minigrid_empty", CROSSING]
        if environment == "crossing"
        else [f"env={task if family == 'minigrid' else environment}"]
    )
    normalised = [part for part, name in PARTS.items() if shape.values[name]]
    words.append(f"algo.normalise=[{','.join(normalised)}]")
    words += [f"budget.env_steps={what.tasks[task]}", f"budget.trials={len(configurations) or shape.trials}"]
    if first := configurations or shape.first:
        words.append(f"warm_start=[{','.join(spell_values(each, shape.values) for each in first)}]")
    for attempt in range(1, ATTEMPTS + 1):  # Ray may not come up on a busy machine, and a sweep may be interrupted.
        try:
            run_command([sys.executable, "-m", "rltune", "run", *words], WORK)
            break
        except RuntimeError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(PAUSE_S)
    return list(read_trials(WORK / "outputs" / part.name, shape.values))


def spell_values(values: Mapping[str, Any], without: Collection[str]) -> str:
    """Spell values by name as Hydra reads a mapping."""
    return f"{{{','.join(f'{name}:{json.dumps(value)}' for name, value in values.items() if name not in without)}}}"


def read_trials(folder: Path, fixed: Mapping[str, Any]) -> Iterator[Trial]:
    """Read the trials of a sweep's folder, which have the ``fixed`` values as well."""
    with contextlib.closing(open_ledger(folder)) as ledger:
        for record in ledger.trials.records():
            scores, cpu_s, trained_s = [float("nan")] * MARKS, 0.0, 0.0
            for index, report in enumerate(ledger.trials.read_reports(record.number)):
                scores[index] = report.score
                train_s = report.numbers.get("train_s", trained_s)
                cpu_s += (train_s - trained_s) * report.numbers.get(CPU, 100) / 100
                trained_s = train_s
            yield {**record.params, **fixed}, scores, cpu_s


def collect(dataset: Dataset, parts: Sequence[Part], hours: float) -> None:
    """Run the sweeps that are not done, until their trials have taken so many CPU hours."""
    spent_s = 0.0
    for part in parts:
        if dataset.has(part):
            continue
        rows = dataset.choose_rows(part)
        if part.seed and not rows:  # None of the better half is of this shape, or the first seed is not done.
            continue
        if spent_s >= hours * 3600:
            print(f"{hours:g} hours are spent", flush=True)
            return
        algo, _, task = part.pair.partition("_")
        try:
            trials = run_part(part, [dataset.pairs[part.pair]["configurations"][row] for row in rows])
        except RuntimeError as error:
            print(f"{part.name}: {error}", flush=True)
            continue
        dataset.add(part, rows, ALGORITHMS[algo].tasks[task], trials)
        shutil.rmtree(WORK / "outputs" / part.name)
        spent_s += sum(cpu_s for _, _, cpu_s in trials)
        best = np.nanmax([scores[-1] for _, scores, _ in trials])
        print(f"{part.name}: {len(trials)} trials, best {best:.4g}, {spent_s / 3600:.2f} CPU hours so far", flush=True)


def main() -> None:
    """Collect what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algos", default=",".join(ALGORITHMS), help=f"comma-separated, of {', '.join(ALGORITHMS)}")
    parser.add_argument("--tasks", default="", help="comma-separated environments, such as cartpole; none: all")
    parser.add_argument("--hours", type=float, default=8, help="CPU hours of training after which no sweep begins")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the curves are kept")
    given = parser.parse_args()
    known = {task.partition("_")[2] for algorithm in ALGORITHMS.values() for task in algorithm.tasks}
    for option, choices in (("algos", set(ALGORITHMS)), ("tasks", known)):
        names = list(filter(None, getattr(given, option).split(",")))
        if unknown := [name for name in names if name not in choices]:
            parser.error(f"--{option}: there is no {', '.join(unknown)}; choose from {', '.join(sorted(choices))}")
        setattr(given, option, names)
    collect(Dataset.read(given.folder), list(list_parts(given.algos, given.tasks)), given.hours)


if __name__ == "__main__":
    main()
