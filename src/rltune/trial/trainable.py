"""What runs in a worker: build, train, report, checkpoint, and start over with the next configuration.

One Tune class Trainable that *holds* what it trains, so that its process is started and its imports are paid once a
sweep. Decides nothing: whether a trial goes on is said in the driver.
"""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import tune

from rltune.errors import NonFiniteError
from rltune.study.checkpoints import DamagedError, is_whole, read_state, write_checkpoint
from rltune.trial.assignment import Assignment
from rltune.trial.progress import Progress, Runner
from rltune.trial.watchdog import Watchdog

STOP_FILE = ".stop"  # in the sweep's folder: trials save their latest state and hand back
MAX_STALLED = 50  # iterations without one environment step before a trial counts as hung
ASKED, DUE = "asked", "due"  # why training pauses before the next report: the sweep ends, the state is to be saved


class Trial(tune.Trainable):
    """Runs one configuration after another, each with one or more seeds side by side."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin the first trial of this process."""
        self._runners: list[Runner] = []
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin the next trial in the same process."""
        self._end()
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        """Free what the last trial holds."""
        self._end()

    def build_runner(self, seed: int) -> Runner:
        """What trains one seed; tests replace it."""
        from rltune.trial.algorithm_runner import AlgorithmRunner  # brings RLlib and torch with it

        task = self._task
        return AlgorithmRunner(task.algorithm(), task.params, seed, task.engine, task.threads)

    def _begin(self, config: Mapping[str, Any]) -> None:
        self._task = Assignment(**config["assignment"])
        self._failure: dict[str, Any] | None = None
        self._progress: list[Progress] = []
        self._train_s, self._reports = 0.0, 0
        self._best = -math.inf if self._task.best is None else self._task.best
        self._best_path = self._task.best_path
        self._saved_at = time.monotonic()
        self._watchdog = Watchdog(self._home(), self._task.stall_s)
        self._guarded(self._build)

    def _home(self) -> Path:
        return Path(self._task.sweep) / self._task.place

    def _build(self) -> None:
        self._runners = [self.build_runner(seed) for seed in self._task.seeds]
        self._progress = [Progress(0, 0) for _ in self._runners]
        if self._task.latest:
            folder = is_whole(Path(self._task.sweep), self._task.latest)
            if folder is None:  # the driver knows which others there are; from the beginning only if there is none
                raise DamagedError(f"checkpoint {self._task.latest['path']} is damaged")
            self._restore(folder)

    def _restore(self, folder: Path) -> None:
        state = read_state(folder)
        for place, runner in enumerate(self._runners):
            runner.restore(_seed_folder(folder, place))
        self._progress = [Progress(**saved) for saved in state["progress"]]
        self._train_s, self._reports = state["train_s"], state["reports"]

    def _end(self) -> None:
        for runner in self._runners:
            self._guarded(runner.stop)
        self._runners = []
        self._watchdog.close()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Keep an exception as the trial's failure: raised, it would cost the process and its warm imports."""
        try:
            with self._watchdog.watching():
                work()
        except Exception as error:
            self._failure = _describe(error)

    def step(self) -> dict[str, Any]:
        """Train until the next report is due.

        Returns:
            The report: ``objective`` (NaN until the first episode has ended), ``env_steps``, ``return_mean/min/max``,
            ``episode_length_mean``, ``episodes``, ``env_steps_per_s``, ``train_s``, ``learner/<name>``; ``records``
            of the checkpoints written; at the end ``returns`` of the episodes played, where any were asked for;
            ``failed`` and ``traceback`` when the trial went wrong. Where reports lie further apart than checkpoints
            ``between`` is true of what comes for the sake of its ``records`` alone.
        """
        report: dict[str, Any] = {}
        if self._failure is None:
            self._guarded(lambda: report.update(self._advance()))
        if self._failure is not None:
            report = self._numbers() | self._failure | {"done": True}
        about = {"number": self._task.number, "shelf": self._task.shelf}
        return report | about | {"worker_pid": os.getpid(), "node": socket.gethostname()}

    def _advance(self) -> dict[str, Any]:
        began, steps_before, trained_before = time.time(), self._env_steps(), self._train_s
        target = self._next_target()
        pause: str | None = None
        for place, runner in enumerate(self._runners):
            pause = pause or self._train(place, runner, target)
        if pause == DUE:
            return self._numbers() | {"records": self._save_latest(math.nan), "between": True}
        interrupted = pause == ASKED
        self._reports += 1
        report = self._numbers()
        seconds = max(self._train_s - trained_before, 1e-9)
        report["env_steps_per_s"] = len(self._runners) * (report["env_steps"] - steps_before) / seconds
        done = report["env_steps"] >= self._task.env_steps
        kept = interrupted and not done and report["env_steps"] > 0  # before the first step there is nothing to keep
        records = self._save_if_due(report["objective"], force=kept)
        report |= {"records": records, "began": began, "ended": time.time()}
        if done and self._task.episodes:
            report["returns"] = self._played()
        return report | {"done": done or interrupted, "interrupted": interrupted and not done}

    def _played(self) -> list[float]:
        """The returns of the best checkpoint's episodes, in the order of their seeds."""
        if self._best_path is None:
            raise RuntimeError(f"no episode ended within {self._env_steps()} environment steps")
        return self.play(Path(self._task.sweep) / self._best_path)

    def play(self, folder: Path) -> list[float]:
        """Run a checkpoint's policy on the episodes that were asked for; tests replace it."""
        from rltune.policies.evaluation import evaluate
        from rltune.policies.policy import load_playable

        task = self._task
        result = evaluate(
            load_playable(folder, trust=True),
            task.episodes,
            task.evaluation_seed,
            progress=lambda done, total: self._watchdog.progress(),
        )
        return list(result.returns)

    def _next_target(self) -> int:
        """The environment steps at which the next report is due."""
        task = self._task
        return min(task.env_steps, math.ceil(task.env_steps * (self._passed(self._env_steps()) + 1) / task.reports))

    def _passed(self, env_steps: int) -> int:
        """How many report points lie at or before ``env_steps``."""
        return env_steps * self._task.reports // self._task.env_steps

    def _train(self, place: int, runner: Runner, target: int) -> str | None:
        """Train one seed up to ``target``; ASKED or DUE when it pauses before."""
        stalled = 0
        stop = Path(self._task.sweep) / STOP_FILE
        while self._progress[place].env_steps < target:
            if stop.exists():
                return ASKED
            began, before = time.perf_counter(), self._progress[place].env_steps
            self._progress[place] = runner.train().after(self._progress[place])
            self._train_s += time.perf_counter() - began
            if self._progress[place].env_steps > before:
                stalled = 0
                self._watchdog.progress()
                if self._progress[place].env_steps < target and self._save_is_due():
                    return DUE
                continue
            # RLlib goes on without the samples of an env runner that hangs: its iterations end, the trial does not.
            stalled += 1
            if stalled >= MAX_STALLED:
                raise RuntimeError(f"no environment step in {stalled} iterations; do the env runners still live?")
        return None

    def _env_steps(self) -> int:
        return min((progress.env_steps for progress in self._progress), default=0)

    def _numbers(self) -> dict[str, Any]:
        """The report's numbers, the mean over the seeds."""
        seeds = self._progress or [Progress(0, 0)]
        means = [progress.return_mean for progress in seeds]
        report = {
            "objective": statistics.fmean(means),
            "env_steps": self._env_steps(),
            "return_mean": statistics.fmean(means),
            "return_min": min(progress.return_min for progress in seeds),
            "return_max": max(progress.return_max for progress in seeds),
            "episode_length_mean": statistics.fmean(progress.episode_length_mean for progress in seeds),
            "episodes": sum(progress.episodes for progress in seeds),
            "train_s": self._train_s,
        }
        if len(means) > 1:
            report["return_std_over_seeds"] = statistics.pstdev(means) if all(map(math.isfinite, means)) else math.nan
        for name in seeds[0].learner:
            report[f"learner/{name}"] = statistics.fmean(progress.learner.get(name, math.nan) for progress in seeds)
        return report

    def _save_if_due(self, objective: float, force: bool) -> dict[str, Any]:
        """Save the best state when it improved, the latest when it is time; what the ledger is to record."""
        records = {}
        if math.isfinite(objective) and objective > self._best:
            self._best = objective
            records["best"] = self._save("best", objective)
            self._best_path = records["best"]["path"]
        if force or self._save_is_due():
            records |= self._save_latest(objective, records.get("best"))
        return records

    def _save_is_due(self) -> bool:
        return time.monotonic() - self._saved_at >= self._task.checkpoint_every_s

    def _save_latest(self, objective: float, written: dict[str, Any] | None = None) -> dict[str, Any]:
        """The record of the latest state, saved now unless it just was; an objective of NaN is kept as none."""
        record = written or self._save("latest", objective)
        self._saved_at = time.monotonic()
        return {"latest": record}

    def _save(self, kind: str, objective: float) -> dict[str, Any]:
        value = objective if math.isfinite(objective) else None
        state = {
            "env_steps": self._env_steps(),
            "objective": value,
            "number": self._task.number,
            "params": dict(self._task.params),
            "seeds": list(self._task.seeds),
            "train_s": self._train_s,
            "reports": self._reports,
            "progress": [dict(vars(progress)) for progress in self._progress],
        }
        return write_checkpoint(Path(self._task.sweep), self._task.place, kind, state, self._fill).to_dict()

    def _fill(self, folder: Path) -> None:
        for place, runner in enumerate(self._runners):
            target = _seed_folder(folder, place)
            target.mkdir(exist_ok=True)
            runner.save(target, self._info(place))

    def _info(self, place: int) -> dict[str, Any]:
        """Where a policy came from, kept inside it."""
        task = self._task
        return {
            "trial": task.number,
            "seed": task.seeds[place],
            "params": dict(task.params),
            "env_steps": self._progress[place].env_steps,
            "objective": self._progress[place].return_mean,
            "algo": task.build["algo"]["name"],
            "env": dict(task.build["env"]),
            **(task.tags or {}),
        }


def _seed_folder(folder: Path, place: int) -> Path:
    """The first seed's files stand in the checkpoint itself, the others' in folders of their own."""
    return folder if place == 0 else folder / f"seed-{place}"


def _describe(error: BaseException) -> dict[str, Any]:
    """A failure as the ledger keeps it: the reason in one line, and the end of the traceback."""
    cause = getattr(error, "cause", None)  # Ray wraps what an env runner's process raised
    first = cause if isinstance(cause, BaseException) else error
    text = str(first).strip().splitlines()
    reason = first.what if isinstance(first, NonFiniteError) else f"{type(first).__name__}: {text[0] if text else ''}"
    return {"failed": reason[:500], "traceback": "".join(traceback.format_exception(error))[-4000:]}
