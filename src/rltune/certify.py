"""Which policy wins: the best certified one, or without certification the best of the finalists on fresh episodes.

A search's best score is the luckiest of many and so too high. Certification (`retrain`) trains the best configurations
again; here the one policy to be registered is chosen and measured. Runs in the driver.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune import checkpoint, restored, statistics
from rltune.certification import CONTROL, Certification, CertifiedPolicy, Configuration
from rltune.study import Entry

if TYPE_CHECKING:
    from rltune.policy import Evaluation

EVALUATION_SEED = 1_000_003  # the same episodes for all sweeps, so that a champion and its challenger are comparable
RUN_SEED = 2_000_003  # other ones for the runs of a certification: what chooses a policy must not measure it too
TABLE = "certification"


@dataclass(frozen=True)
class Finalist:
    """A policy that may win.

    Attributes:
        name: Its configuration: ``trial 7`` or ``control``.
        trial: The search's trial; None for a control that the search did not try.
        params: Its values.
        objective: What the search believed; None without a trial.
        folder: The checkpoint.
        run: Its MLflow run, as `tracking` names it: a trial's number, or a certification's run.
        evaluation: On fresh episodes; None when it was not evaluated.
    """

    name: str
    trial: int | None
    params: Mapping[str, Any]
    objective: float | None
    folder: Path
    run: int | str
    evaluation: Evaluation | None = None

    @property
    def score(self) -> float:
        """What finalists are ranked by: the evaluation's mean, else the search's own objective."""
        if self.evaluation is not None:
            return self.evaluation.mean
        return self.objective if self.objective is not None else -math.inf


def finalists(sweep: Path, entries: Sequence[Entry]) -> Iterator[Finalist]:
    """Trials with a whole checkpoint, best first; those that ran their whole budget come before the others."""
    judged = [(entry.state != "COMPLETE", -entry.best, entry) for entry in entries if entry.best is not None]
    for *_, entry in sorted(judged, key=lambda one: (*one[:2], one[2].number)):
        folder = checkpoint.valid(sweep, entry.attributes.get("checkpoint")) if entry.state != "FAIL" else None
        if folder is not None:
            yield Finalist(f"trial {entry.number}", entry.number, entry.params, entry.best, folder, entry.number)


class Finals:
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

    def begin(self, entries: Sequence[Entry]) -> None:
        """Let the best trials so far play, before it is known that none is better."""
        if self._aside:
            for finalist in itertools.islice(finalists(self._sweep, entries), self._top):
                if plays(finalist.folder):
                    self._begun(finalist.folder)

    def winner(self, entries: Sequence[Entry], tell: Callable[[str], None]) -> Finalist | None:
        """The best by the evaluation's mean; the search's first when none can be evaluated; None without trials.

        Args:
            entries: All trials.
            tell: Told what is going on.
        """
        best = list(itertools.islice(finalists(self._sweep, entries), max(1, self._top)))
        playing = [(one, self._begun(one.folder) if plays(one.folder) else None) for one in best[: self._top]]
        judged = []
        for finalist, begun in playing:
            if begun is None:
                tell(f"{finalist.name} cannot be evaluated: its network needs RLlib")
                continue
            evaluation = begun.result()
            tell(f"{finalist.name} on {self._episodes} fresh episodes: {evaluation.mean:.1f}")
            judged.append(replace(finalist, evaluation=evaluation))
        if judged:
            return max(judged, key=lambda one: one.score)
        return best[0] if best else None

    def close(self) -> None:
        """Wait for nothing that plays."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begun(self, folder: Path) -> Future[Evaluation]:
        if folder not in self._known:
            self._known[folder] = self._pool.submit(_played, folder, self._episodes, self._aside)
        return self._known[folder]


def plays(folder: Path) -> bool:
    """Whether a checkpoint can be evaluated: from its bundle, or by RLlib's own parts."""
    return (folder / "policy").is_dir() or restored.there(folder)


def measure(found: Certification, sweep: Path, episodes: int) -> tuple[Certification, Finalist]:
    """The winner's policy: of its runs the one with the highest score, on episodes that did not choose it.

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
    winner = Finalist(best.name, best.trial, best.params, best.search_score, folder, run.name)
    if not plays(folder):
        return found, winner
    evaluation = _played(folder, episodes)
    low, high = statistics.predictive_interval(evaluation.returns, episodes, best.worst)
    policy = CertifiedPolicy(best.name, run.seed, run.checkpoint, episodes, evaluation.mean, evaluation.iqm, low, high)
    return replace(found, policy=policy), replace(winner, evaluation=evaluation)


def _played(folder: Path, episodes: int, aside: Callable[..., Any] | None = None) -> Evaluation:
    """A checkpoint's policy on the episodes that are the same in every sweep."""
    from rltune.policy import evaluate_checkpoint  # brings torch, for which a sweep's start need not wait

    asked = (folder, episodes, EVALUATION_SEED)
    played: Evaluation = aside(evaluate_checkpoint, *asked) if aside else evaluate_checkpoint(*asked)
    return played


def name_of(configuration: Configuration, place: int) -> str:
    """The name of a configuration's run on the seed at ``place``."""
    is_trial = configuration.trial is not None and configuration.name != CONTROL
    owner = f"trial-{configuration.trial:03d}" if is_trial else configuration.name
    return f"{owner}-seed-{place}"


def write_table(found: Certification, folder: Path) -> list[Path]:
    """The table as CSV and as the JSON that MLflow shows as a table (``mlflow.log_table``), in the sweep's folder."""
    rows = found.table()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    paths = [folder / f"{TABLE}.csv", folder / f"{TABLE}.json"]
    paths[0].write_text(text.getvalue())
    paths[1].write_text(json.dumps({"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}))
    return paths
