"""The Tune trainable of rltune: one process builds, trains, reports and saves one attempt at a trial.

It does not decide whether a trial goes on: the driver does. Runs in a worker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import shutil
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from ray import tune
from ray.exceptions import NodeDiedError, RayActorError

from rltune.algorithms.arguments import apply_params, count_copies
from rltune.checkpoints.clients import UnsharedStoreError
from rltune.checkpoints.store import open_store
from rltune.compat.ray_start import run_exit_handlers
from rltune.envs.changes import change_spec
from rltune.envs.copies import Copy, wait_for_copies
from rltune.envs.guest import find_root, is_termination, make_fault
from rltune.envs.searched import ENV, select_values, set_env_arguments
from rltune.envs.spec import spec_of
from rltune.envs.step_count import STEPS, SamplingEnded
from rltune.errors import Cause, GuestError, NonFiniteError, PolicyError, RltuneError, describe_exception
from rltune.ledger.disk_full import has_no_room, is_disk_full
from rltune.policies.acting import choose_acting, describe_acting, save_acting
from rltune.search_path import place_working_folder
from rltune.trial.assignment import Assignment
from rltune.trial.checkpointing import TrialCheckpoints, TrialState
from rltune.trial.gpu_memory import describe_out_of_memory, measure_gpu
from rltune.trial.metrics import CPU, MEMORY, NUM_ENDED, RESTARTS, merge_seeds
from rltune.trial.recent_episodes import read_training_scores
from rltune.trial.runner import Runner
from rltune.trial.shared_store import check_node
from rltune.trial.supervisor import STACK_FILE, Supervisor, find_loop_call

if TYPE_CHECKING:
    from rltune.policies.evaluation import Copies

MAX_STALLED = 50  # A trial fails after this many consecutive iterations without an environment step.
LEAVE_S = 10.0  # How long closing the environments and running the exit handlers may take.
NOTED_WAIT_S = 5.0  # A trial that has waited so long for copies of the environment says so.
STOP_REQUESTED, SAVE_DUE = "stop requested", "save due"  # Why training pauses before the next report.


class Trial(tune.Trainable):
    """The Tune trainable: runs one attempt at a trial, with one or more seeds, in a process of its own.

    Attributes:
        task: The trial.
    """

    task: Assignment

    def setup(self, config: dict[str, Any]) -> None:
        """Build or restore the trial. A failure is the trial's first result."""
        self._runners: list[Runner] = []
        self.task = Assignment(**config["assignment"])
        with contextlib.suppress(OSError):  # A Ray that was joined was started in another folder; a node may lack ours.
            os.chdir(self.task.folder)
        place_working_folder(is_searched=True)  # Ray puts it first on the path of its workers.
        # With remote storage, the trial's files are first written to a local folder of this process.
        folder = self.task.sweep if self.task.store is None else Path(self.logdir) / Path(self.task.sweep).name
        self._store = open_store(folder, self.task.store)
        self._failure: dict[str, Any] | None = None
        self._scored: dict[int, int] = {}  # The environment steps of each seed at which its score was played last.
        self._score_copies: Copies | None = None
        self._state = TrialState()
        self._episodes_before = self._count_episodes()
        self._counted = (
            0,
            STEPS.steps,
        )  # The environment steps of all seeds, and the process's step count, at the end of the last iteration.
        self._checkpoints = TrialCheckpoints(self.task, self._store)
        self._supervisor = Supervisor(
            self._store, self.task.sweep, self.task.trial_dir, self.task.stall_s, self._count_steps_of_each_seed
        )
        with contextlib.suppress(SamplingEnded):  # The sweep ends while the trial waits for copies.
            self._catch_failure(self._build)

    def leave(self) -> None:
        """Close everything, before the driver ends this process: whatever the user's code has done to it ends with it.

        If that takes too long, then the process ends by itself.
        """
        self._supervisor.close()  # It uses the same timer, of which a process has one.
        # Its thread needs no interpreter, so that it also ends a process that is stuck in foreign code.
        faulthandler.dump_traceback_later(LEAVE_S, exit=True, file=2)
        self.stop()
        run_exit_handlers()

    def cleanup(self) -> None:
        """Close environments and free memory; Tune calls this where no trial has ended, as after an interrupt."""
        for runner in self._runners:
            self._catch_failure(runner.stop)
        self._catch_failure(self._close_score_copies)
        self._runners = []
        self._supervisor.close()
        if self.task.store is not None:
            shutil.rmtree(self._store.folder, ignore_errors=True)

    def build_runner(self, seed: int) -> Runner:
        """Build the runner of one seed; tests override this method."""
        from rltune.trial.algorithm_runner import AlgorithmRunner  # The import of RLlib and torch takes seconds.

        task = self.task
        return AlgorithmRunner(task.to_build(), task.params, seed, task.engine, task.threads, task.scored_steps)

    def _build(self) -> None:
        task = self.task
        if task.token is not None:
            check_node(self._store, task.token, task.trial_dir)
        if task.store is not None:  # An earlier attempt of the trial may have left stack traces in the bucket.
            self._store.delete(f"{task.trial_dir}/{STACK_FILE}")
        # Restoring may make the environments anew, so it belongs to what the trial stands in the queue for.
        with self._wait_for_copies() as waited_s:
            if task.score:
                self._score_copies = self._open_score_copies(task.score)
            self._runners = [self.build_runner(seed) for seed in self.task.seeds]
            self._state = self._checkpoints.restore(self._runners)
            kept = sum(runner.kept_steps for runner in self._runners)
        if waited_s >= NOTED_WAIT_S:
            self._checkpoints.notes.append(f"waited {waited_s:.0f} s for copies of the environment that others had")
        self._mark_iteration(kept)
        self._episodes_before = self._count_episodes()
        self._checkpoints.begin(self._count_steps_of_each_seed())

    def _wait_for_copies(self) -> contextlib.AbstractContextManager[float]:
        """Stand in the queue until the copies of all seeds are free; if the sweep ends, the wait ends, too."""
        build = self.task.build
        env = spec_of(build["env"])
        if env.copy_limit is None:
            return contextlib.nullcontext(0.0)
        num_copies = count_copies(apply_params(build["algo"], self.task.params)) * len(self.task.seeds)
        num_copies += self.task.score is not None
        # More than one machine may have are those of env runners on several nodes, each of which waits for its own.
        count = num_copies if num_copies <= env.copy_limit[1] else 0
        return wait_for_copies(env, count, math.inf, lambda: self._report_episode(0, 0))

    def _open_score_copies(self, score: Mapping[str, Any]) -> Copies:
        """Make the copies in which all seeds play their scores; where copies are bounded, it is one, taken now.

        A trial that waited for it later, with the training's copies, might wait for ever.
        """
        from rltune.policies.evaluation import Copies  # The import of torch takes seconds.

        searched = set_env_arguments(spec_of(self.task.build["env"]), select_values(self.task.params, ENV))
        env = change_spec(searched, score["env"])
        return Copies(1, first=Copy(env).take()) if env.copy_limit else Copies()

    def _catch_failure(self, work: Callable[[], None]) -> None:
        """Call the function, and record an exception as the failure of the trial.

        If the exception left this class, then Tune would report a lost process and not the failure.
        """
        try:
            with self._supervisor.watch():
                work()
        except SamplingEnded:
            raise
        except BaseException as error:
            if is_termination(error):
                raise
            if not isinstance(error, Exception):  # No interrupt reaches a worker: the user's code raises it.
                frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
                error = make_fault(error, find_loop_call(frames))
            steps, gpus = self._count_steps_of_each_seed(), self.task.build.get("gpus", 0.0)
            # The first count also has those of the running iteration, the second one those of other processes.
            ended = max(now - before for now, before in zip(self._count_episodes(), self._episodes_before, strict=True))
            self._failure = describe_failure(error, steps, self._store.folder, gpus) | {NUM_ENDED: ended}

    def step(self) -> dict[str, Any]:
        """Continue training until the next report is due, and return the report to Tune.

        Returns:
            The report. Its numbers are those of `rltune.trial.metrics`; ``score`` is NaN until the first episode
            has ended. ``records`` are of the checkpoints written, ``returns``, ``metrics`` and ``choice_returns`` (at
            the end, where the task wants episodes) of the episodes played, ``failed``, ``cause`` and ``traceback`` of
            what went wrong, ``ended`` why it ends before its budget is spent, ``notes`` of restore and episodes.
            Without ``nominal_steps`` it is no report: it brings a checkpoint that was due before, an interruption or a
            failure.
        """
        report: dict[str, Any] = {}
        if self._failure is None:
            self._catch_failure(lambda: report.update(self._advance()))
        if self._failure is not None:
            report = self._merge_seeds() | self._failure | {"done": True}
        about: dict[str, Any] = {"number": self.task.number, "kind": self.task.kind}
        if self._checkpoints.notes:
            about["notes"], self._checkpoints.notes = self._checkpoints.notes, []
        return report | about | {"worker_pid": os.getpid(), "node": socket.gethostname()}

    def _advance(self) -> dict[str, Any]:
        """Train until the next report, or until a stop request or a checkpoint that is due."""
        if not self._runners:
            return self._hand_back(interrupted=True)
        try:
            return self._train_and_report()
        except SamplingEnded:
            return self._hand_back(interrupted=STEPS.is_ending)

    def _train_and_report(self) -> dict[str, Any]:
        """Train all seeds up to the budget's next mark, and return the report.

        An iteration may pass several marks, as one with a large batch does. It is then reported at each of them, with
        the same numbers and without training in between. This does not bias the comparison with trials of smaller
        batches: an on-policy iteration learns at its end, so that the reported policy acted at each of these marks.
        Off-policy iterations are equally long in all trials of a sweep.

        The episodes at the end are played after the last report, which has brought the training state by then: if they
        fail, or the process with them, then the next attempt only plays them again.
        """
        task, state = self.task, self._state
        was_trained = state.reports >= task.reports or state.ended is not None
        steps_before, trained_before = state.env_steps, state.train_s
        clock, cpu_s = time.perf_counter(), time.process_time()
        mark = self._next_mark()
        pause: str | None = None
        for index in range(len(self._runners)):
            pause = pause or self._train(index, mark)
        if pause:
            return self._hand_back(interrupted=pause == STOP_REQUESTED)
        if task.score:
            self._play_scores(task.score)
        report = self._merge_seeds() | {"nominal_steps": mark}
        if not was_trained:
            state.reports += 1
            state.curve.append((int(report["env_steps"]), float(report["score"])))
            state.ended = task.early_end.explain(state.curve)
        if seconds := state.train_s - trained_before:
            report["env_steps_per_s"] = len(self._runners) * (report["env_steps"] - steps_before) / seconds
            report[CPU] = 100 * (time.process_time() - cpu_s) / (time.perf_counter() - clock)
        report |= {MEMORY: psutil.Process().memory_info().rss / 1e6, **measure_gpu()}
        records = self._checkpoints.save_if_due(state, self._runners, report["score"])
        is_last = mark == task.env_steps or state.ended is not None
        report |= {"records": records, "done": is_last, "ended": state.ended}
        if report["done"] and task.episodes:
            if was_trained:
                report |= self._play_best(records)
            else:
                latest = self._checkpoints.save_latest(state, self._runners)
                report |= {"records": {**records, **latest}, "done": False}
        return report

    def _play_scores(self, score: Mapping[str, Any]) -> None:
        """Replace the score and the user's metrics of each seed that has trained since by those of episodes played now.

        Raises:
            SamplingEnded: The sweep ends. The next attempt plays them again.
        """
        progress = self._state.progress
        for index, runner in enumerate(self._runners):
            if self._scored.get(index) == progress[index].env_steps:
                continue
            try:
                evaluation = runner.play(**score, progress=self._report_episode, copies=self._score_copies)
                progress[index] = progress[index].with_episodes(evaluation)
                if evaluation.cut and not self._scored:
                    self._checkpoints.notes.append(f"at a report: {evaluation.explain_cut()}")
            except PolicyError as error:
                if error.key != "objective.key":
                    raise
                progress[index] = progress[index].without_score(score["episodes"])
            self._scored[index] = progress[index].env_steps

    def _hand_back(self, *, interrupted: bool) -> dict[str, Any]:
        """Save a checkpoint between two marks and return its record. It is no report: trials report at marks only."""
        state = self._state
        report, sampled = self._merge_seeds(), self._count_steps_of_each_seed()
        # Before the first step there is nothing to save.
        records = self._checkpoints.save_latest(state, self._runners) if sampled or report["env_steps"] else {}
        if interrupted:  # The sampled steps of an unfinished iteration count against the budget, too.
            report["env_steps"] = max(report["env_steps"], sampled)
        return report | {"records": records, "done": interrupted, "interrupted": interrupted}

    def _play_best(self, records: Mapping[str, Any]) -> dict[str, Any]:
        """Decide how the best checkpoint's policy acts, and evaluate it so, at the end of a trial.

        Args:
            records: Of the checkpoints written since the last report.

        Returns:
            The report's ``returns`` and ``choice_returns``, one per episode, and its ``records``; nothing without a
            best checkpoint.
        """
        task, best = self.task, self._checkpoints.best
        if best is None:  # No episode has ended, which the driver says.
            return {}
        if (folder := self._store.open(best)) is None:
            raise RuntimeError(f"checkpoint {best.path} is damaged")
        from rltune.policies.evaluation import Copies  # The import of torch takes seconds.

        # The evaluation's copies take the place of the training's.
        for runner in self._runners:
            runner.close_envs()
        self._close_score_copies()
        with Copies() as copies:
            env = task.score and task.score["env"]
            if acting := choose_acting(folder, read_training_scores(folder), self._report_episode, copies, env):
                self._checkpoints.notes.append(describe_acting(acting))
                best = save_acting(self._store, best, acting)
                records = {**records, "best": best.to_dict()}
                folder = self._store.open(best) or folder
            returns, metrics = self.play(folder, copies, task.evaluation_seed, task.evaluation_env)
            played: dict[str, Any] = {"returns": returns, "metrics": metrics}
            if task.choice_env is not None:  # Other seeds, because both may be the same environment.
                seed = task.evaluation_seed + task.episodes
                played["choice_returns"], _ = self.play(folder, copies, seed, task.choice_env)
            return {"records": records, **played}

    def _close_score_copies(self) -> None:
        if self._score_copies is not None:
            self._score_copies.close()

    def play(
        self, folder: Path, copies: Copies, seed: int, env: Mapping[str, Any]
    ) -> tuple[list[float], dict[str, list[float | None]]]:
        """Play the task's evaluation episodes with a checkpoint's policy; tests override this method.

        Args:
            folder: The checkpoint.
            copies: The copies of the environment to play in.
            seed: The environment seed of the first episode.
            env: What is changed of the environment.

        Returns:
            What the episodes are worth that have a score, and all episodes' own metrics by name.
        """
        from rltune.policies.evaluation import evaluate_checkpoint

        task = self.task
        result = evaluate_checkpoint(folder, task.episodes, seed, self._report_episode, copies, env)
        if result.cut:
            self._checkpoints.notes.append(f"at its end: {result.explain_cut()}")
        if result.unscored:
            self._checkpoints.notes.append(
                f"at its end: {len(result.unscored)} of {task.episodes} episodes had no score and were left out"
            )
        return result.scores, {name: list(values) for name, values in result.metrics.items()}

    def _report_episode(self, done: int, total: int) -> None:
        """Report to the supervisor that an evaluation is progressing.

        Raises:
            SamplingEnded: The sweep ends. The evaluation starts again when the sweep is resumed.
        """
        self._supervisor.report_progress()
        if STEPS.is_ending:
            raise SamplingEnded

    def _next_mark(self) -> int:
        """Return the environment steps at which the next report is due; of a trial that has ended, of its last one."""
        task, state = self.task, self._state
        number = state.reports if state.ended else min(state.reports + 1, task.reports)
        return math.ceil(task.env_steps * number / task.reports)

    def _train(self, index: int, target: int) -> str | None:
        """Train one seed up to ``target`` steps; return STOP_REQUESTED or SAVE_DUE if training paused earlier."""
        stalled, runner, progress = 0, self._runners[index], self._state.progress
        while progress[index].env_steps < target:
            if self._supervisor.is_stop_requested():
                return STOP_REQUESTED
            left = self._checkpoints.due_at - self._count_steps_of_each_seed()
            STEPS.pause_at = STEPS.steps + left * len(self.task.seeds)
            began, earlier = time.perf_counter(), progress[index]
            before = earlier.env_steps
            try:
                progress[index] = runner.train()
                progress[index].require_finite_returns()
            finally:
                self._state.train_s += time.perf_counter() - began
                STEPS.pause_at = math.inf
            self._mark_iteration()
            if progress[index].far_value and not earlier.far_value:
                self._checkpoints.notes.append(progress[index].far_value)
            if (refused := progress[index].refused) and not earlier.refused:
                note = "has callbacks that log what is no number, or what has a name that no tracker takes"
                self._checkpoints.notes.append(f"{note}: {', '.join(refused)}")
            if progress[index].env_restarts and not earlier.env_restarts:
                note = f"has made a failed copy of its environment again ({progress[index].fault})"
                self._checkpoints.notes.append(f"{note}; env_restarts in its numbers counts such repairs")
            if progress[index].env_steps > before:
                stalled = 0
                self._supervisor.report_progress()
                if progress[index].env_steps < target and self._checkpoints.is_due(self._count_steps_of_each_seed()):
                    return SAVE_DUE
                continue
            # If an env runner hangs, RLlib finishes the iteration without its samples, possibly without any step.
            stalled += 1
            if stalled >= MAX_STALLED:
                raise RuntimeError(f"no environment step in {stalled} iterations; are the env runners still alive?")
        return None

    def _mark_iteration(self, kept_steps: int = 0) -> None:
        """Record the step counts after an iteration; one assignment, as the supervisor's thread reads them.

        Args:
            kept_steps: Those of unfinished iterations that a checkpoint has brought.
        """
        self._counted = sum(seed.env_steps for seed in self._state.progress) + kept_steps, STEPS.steps

    def _count_steps_of_each_seed(self) -> int:
        """Return the environment steps so far as a mean over the seeds, including those of the running iteration."""
        ended, before = self._counted
        return (ended + STEPS.steps - before) // max(1, len(self.task.seeds))

    def _count_episodes(self) -> tuple[int, int]:
        """Return the episodes that have ended in this process by now, and in the trial by its last iteration."""
        return STEPS.episodes, sum(seed.episodes for seed in self._state.progress)

    def _merge_seeds(self) -> dict[str, Any]:
        report = merge_seeds(self._state.progress, self._state.train_s)
        if not self.task.build["env"].get("restarts"):
            del report[RESTARTS]
        return report


def describe_failure(error: BaseException, env_steps: int, folder: Path, gpus: float = 0.0) -> dict[str, Any]:
    """Describe a trial's failure for the driver: a reason in one line, its cause, and the traceback's end.

    Args:
        error: What was raised.
        env_steps: Environment steps of each seed by then.
        folder: As for `find_cause`.
        gpus: The trial's part of a GPU.
    """
    root = find_root(error)  # Ray, RLlib and Gymnasium wrap what the environment has raised.
    cause = find_cause(root, folder)
    reason = root.what if isinstance(root, GuestError | NonFiniteError) else describe_exception(root)
    # This error tells the user how to repair the node, so all of its lines are kept.
    if isinstance(root, UnsharedStoreError):
        reason = "; ".join(filter(None, str(root).splitlines()))
    # The step of the trial helps to find what the environment has returned.
    if cause in (Cause.REWARD, Cause.OBSERVATION):
        reason = f"{reason}, at environment step {env_steps}"
    reason = describe_out_of_memory(root, gpus) or reason
    trace = "".join(traceback.format_exception(error))[-4000:]
    about = {"failed": reason[:500], "cause": cause.value, "traceback": trace}
    return {name: value.encode(errors="backslashreplace").decode() for name, value in about.items()}


def find_cause(error: BaseException, folder: Path) -> Cause:
    """Return the cause of an exception: its own if it is one of ours, and otherwise by its type and its number.

    Args:
        error: What was raised.
        folder: The sweep's folder here. What is full for the environment may be another disk, or the kernel's table of
            watched files.
    """
    if is_disk_full(error) and (not isinstance(error, GuestError) or has_no_room(folder)):
        return Cause.DISK_FULL
    if isinstance(error, RltuneError):
        return error.cause
    if describe_out_of_memory(error, 0.0):
        return Cause.OUT_OF_MEMORY
    if isinstance(error, NodeDiedError):
        return Cause.LOST_NODE
    return Cause.LOST_PROCESS if isinstance(error, RayActorError) else Cause.UNKNOWN
