"""Select the policy that wins: the best certified one, else the best of the finalists on fresh episodes.

A search's best score is the luckiest of many and so too high. `rltune.certification.retraining` trains the best
configurations again; here the one policy to be registered is chosen and measured. Runs in the driver.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.certification.finalists import EVALUATION_SEED, Finalist, is_playable, rank_finalists
from rltune.certification.result import Certification, CertifiedPolicy
from rltune.errors import RltuneError
from rltune.records import TrialRecord
from rltune.statistics import predictive_interval

if TYPE_CHECKING:
    from rltune.policies.evaluation import Evaluation


TABLE = "certification"


class FinalEvaluation:
    """The finalists of a sweep that is not certified, each on the same fresh episodes, once.

    With processes to play in they play beside each other, and the best of those that have ended while the last trials
    still run and leave a slot without work.

    Args:
        sweep: The sweep's folder.
        top: How many to evaluate; 0 trusts the search.
        episodes: Fresh episodes for each.
        slots: How many play at once.
        aside: Calls a function in a process of its own; None without such processes.
    """

    def __init__(self, sweep: Path, top: int, episodes: int, slots: int, aside: Callable[..., Any] | None) -> None:
        self._sweep, self._top, self._episodes = sweep, top, episodes
        self._aside = aside
        self._pool = ThreadPoolExecutor(slots if aside else 1)
        self._known: dict[Path, Future[Evaluation]] = {}

    def begin(self, records: Sequence[TrialRecord]) -> None:
        """Let the best trials so far play, before it is known that none is better."""
        if self._aside:
            for finalist in itertools.islice(rank_finalists(self._sweep, records), self._top):
                if is_playable(finalist.folder):
                    self._start_playing(finalist.folder)

    def select(self, records: Sequence[TrialRecord], notify: Callable[[str], None]) -> Finalist | None:
        """Select the best by the evaluation's mean; the search's first when none can be evaluated; None without trials.

        Args:
            records: All trials.
            notify: Shows a person a line.
        """
        best = list(itertools.islice(rank_finalists(self._sweep, records), max(1, self._top)))
        playing = [
            (one, self._start_playing(one.folder) if is_playable(one.folder) else None) for one in best[: self._top]
        ]
        evaluated = []
        for finalist, future in playing:
            if future is None:
                notify(f"{finalist.name} cannot be evaluated: its network needs RLlib")
                continue
            try:
                evaluation = future.result()
            except RltuneError as error:  # its process died: the others' results are no worse for that
                notify(f"{finalist.name} cannot be evaluated: {error.what}")
                continue
            notify(f"{finalist.name} on {self._episodes} fresh episodes: {evaluation.mean:.1f}")
            evaluated.append(replace(finalist, evaluation=evaluation))
        if evaluated:
            return max(evaluated, key=lambda one: one.score)
        return best[0] if best else None

    def close(self) -> None:
        """Cancel what waits to play, and wait for nothing that plays."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_playing(self, folder: Path) -> Future[Evaluation]:
        if folder not in self._known:
            self._known[folder] = self._pool.submit(_play, folder, self._episodes, self._aside)
        return self._known[folder]


def measure_policies(found: Certification, sweep: Path, episodes: int) -> tuple[Certification, Finalist]:
    """Measure the winner's policy, of its runs the one with the highest score, on episodes that did not choose it.

    Args:
        found: The arithmetic's result.
        sweep: The sweep's folder.
        episodes: How many it plays, the same ones in every sweep.

    Returns:
        The record with its policy, and the policy; a checkpoint without a policy (its network needs RLlib) is not
        measured.
    """
    best = found.best()
    run = max(best.per_seed, key=lambda result: result.mean)
    folder = sweep / run.checkpoint
    winner = Finalist(best.name, best.trial, best.params, best.search_score, folder, run.run)
    if not is_playable(folder):
        return found, winner
    evaluation = _play(folder, episodes)
    low, high = predictive_interval(evaluation.returns, episodes, best.worst)
    policy = CertifiedPolicy(best.name, run.seed, run.checkpoint, episodes, evaluation.mean, evaluation.iqm, low, high)
    return replace(found, policy=policy), replace(winner, evaluation=evaluation)


def _play(folder: Path, episodes: int, aside: Callable[..., Any] | None = None) -> Evaluation:
    """Let a checkpoint's policy play the episodes that are the same in every sweep."""
    from rltune.policies.evaluation import evaluate_checkpoint  # brings torch, for which a sweep's start need not wait

    arguments = (folder, episodes, EVALUATION_SEED)
    if aside is None:
        return evaluate_checkpoint(*arguments)
    evaluation: Evaluation = aside(evaluate_checkpoint, *arguments)
    return evaluation


def write_table(found: Certification, folder: Path) -> list[Path]:
    """Write the table as CSV and as the JSON that MLflow shows as a table (``mlflow.log_table``).

    Returns:
        Both files, in the sweep's folder.
    """
    rows = found.table()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    paths = [folder / f"{TABLE}.csv", folder / f"{TABLE}.json"]
    paths[0].write_text(text.getvalue())
    paths[1].write_text(json.dumps({"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}))
    return paths
