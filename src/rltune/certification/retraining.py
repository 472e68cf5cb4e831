"""Certification's training: the best configurations and the control on fresh seeds, in the search's warm slots.

The runs have books of their own (a second Optuna study), so that they disturb neither the search's sampler nor its
rungs, and are resumed like trials. `stages` has them run; what the results say is the business of `certification`. Runs
in the driver.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltune.certification import result
from rltune.certification.finalists import RUN_SEED, is_playable, make_run_name, rank_finalists
from rltune.certification.result import CONTROL, Certification, Configuration, SeedResult, judge_configurations
from rltune.config.schema import RunConfig
from rltune.errors import StudyError
from rltune.policies.rllib_policy import REASON_FILE
from rltune.study.checkpoints import CERTIFY, is_whole
from rltune.study.record import TrialRecord
from rltune.study.study import Study
from rltune.trial.assignment import Assignment

BOOKS = "certify.db"
ENDED = ("COMPLETE", "FAIL")


class Retraining:
    """What is to be retrained, what was, and what came of it.

    Args:
        folder: The sweep's.
        config: What the sweep was asked to do.
        seeds: Fresh seeds, one for each run of a configuration.
        warm_starts: What the search tried first: tuned settings, then the algorithm file's own values.
        assign: Makes a trial's assignment from its record; a run's is derived from that.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        seeds: Sequence[int],
        warm_starts: Sequence[Mapping[str, Any]],
        assign: Callable[[TrialRecord], Assignment],
    ) -> None:
        self._folder, self._config, self._assign = folder, config, assign
        self._settings, self._warm_starts = config.certify, warm_starts
        self.seeds = seeds
        self._books: Study | None = None
        self._runs: dict[str, TrialRecord] | None = None
        self._chosen: list[Configuration] | None = None
        self._proposed: set[str] = set()
        self._again: list[TrialRecord] = []

    @property
    def books(self) -> Study:
        """The runs' ledger: a file beside the search's, or a study beside it in a shared storage."""
        if self._books is None:
            folder, storage = self._folder, self._config.study.storage
            url, name = (storage, f"{folder.name}-certify") if storage else (f"sqlite:///{folder / BOOKS}", "certify")
            try:
                self._books = Study(url, name)
            except StudyError:  # the first time; what is wrong with the storage is said again
                self._books = Study(url, name, create=True)
            self._books.set_attribute("folder", str(folder))
        return self._books

    def close(self) -> None:
        """Give connections back."""
        if self._books is not None:
            self._books.close()

    def entries(self) -> list[TrialRecord]:
        """All runs so far, none where nothing was begun."""
        begun = self._books or self._config.study.storage or (self._folder / BOOKS).exists()
        return self.books.entries() if begun else []

    def control(self) -> Configuration:
        """The tuned settings if there are any for this pair, else the algo file's own, in the searched names."""
        starts = self._warm_starts
        own = dict(starts[-1]) if starts else {}
        tuned = dict(starts[0]) if self._config.warm_start and starts else {}
        return Configuration(CONTROL, None, own | tuned, None, ())

    def choose(self, searched: Sequence[TrialRecord]) -> list[Configuration]:
        """What is to be certified, each set of values once, the control first; nothing without a finalist."""
        able = (one for one in rank_finalists(self._folder, searched) if _can_win(one.folder))
        best = list(itertools.islice(able, max(1, self._settings.top)))
        whole = {entry.number for entry in searched if entry.state == "COMPLETE"}
        found = [
            Configuration(one.name, one.trial, one.params, one.objective, (), whole_budget=one.trial in whole)
            for one in best[: self._settings.top]
        ]
        return result.distinct([self.control(), *found]) if best else []

    def progress(self) -> str:
        """How many of the runs are done, for a person: while trials still run, finalists may yet be the control."""
        wanted = [self.control()] if self._chosen is None else self._chosen
        keys = {self._key(one, place) for one in wanted for place in range(len(self.seeds))}
        ended = sum(e.attributes.get("key") in keys for e in self.entries() if e.state in ENDED)
        if self._chosen is None and self._settings.top:
            return f"{ended} of up to {len(self.seeds) * (self._settings.top + 1)} runs"
        return f"{ended} of {len(keys)} runs"

    def next(self, searched: Sequence[TrialRecord] | None) -> TrialRecord | None:
        """The next run; None when there is none to begin.

        Args:
            searched: All trials once the search is complete. None before: then only the control is known.
        """
        if self._again:
            return self._again.pop(0)
        if searched is not None and self._chosen is None:
            self._chosen = self.choose(searched)
        wanted = [self.control()] if searched is None else self._chosen or []
        for place in range(len(self.seeds)):
            for configuration in wanted:
                key = self._key(configuration, place)
                known = self._known().get(key)
                if key not in self._proposed and (known is None or known.state not in ENDED):
                    self._proposed.add(key)
                    return known or self._new(configuration, place, key)
        return None

    def retry(self, entry: TrialRecord) -> None:
        """Put a run that went wrong back in front."""
        self._again.insert(0, entry)

    def _key(self, configuration: Configuration, place: int) -> str:
        """What makes two runs the same: values, seed and budget, whoever asked for them."""
        values = json.dumps(dict(configuration.params), sort_keys=True)
        return f"{values} seed={self.seeds[place]} env_steps={self._config.budget.env_steps}"

    def _known(self) -> dict[str, TrialRecord]:
        """The runs of earlier sessions and of this one, by what makes them the same."""
        if self._runs is None:
            self._runs = {e.attributes["key"]: e for e in self.entries() if "key" in e.attributes}
        return self._runs

    def _new(self, configuration: Configuration, place: int, key: str) -> TrialRecord:
        # A driver that was killed between these two left a run without a key: that one is taken instead.
        vacant = [e for e in self.entries() if "key" not in e.attributes and e.number not in self._numbers()]
        number = vacant[0].number if vacant else self.books.ask(lambda suggest: {}, {})[0]
        shown = {"params": dict(configuration.params), "configuration": configuration.name, "place": place}
        self.books.note(number, **shown, seeds=[self.seeds[place]], name=make_run_name(configuration, place), key=key)
        entry = self.books.entry(number)
        self._known()[key] = entry
        return entry

    def _numbers(self) -> set[int]:
        return {entry.number for entry in self._known().values()}

    def assignment(self, entry: TrialRecord) -> Assignment:
        """A run's orders: those of a trial, on a shelf of its own, and with episodes at the end."""
        best = entry.attributes.get("checkpoint")
        best_path = best["path"] if best and is_whole(self._folder, best) else None
        return replace(
            self._assign(entry),
            kind=CERTIFY,
            episodes=self._settings.episodes,
            evaluation_seed=RUN_SEED,
            best_path=best_path,
        )

    def done(self, searched: Sequence[TrialRecord]) -> bool:
        """Whether nothing is left to train."""
        ended = {e.attributes.get("key") for e in self.entries() if e.state in ENDED}
        wanted = self.choose(searched)
        return all(self._key(one, place) in ended for one in wanted for place in range(len(self.seeds)))

    def result(self, searched: Sequence[TrialRecord]) -> Certification | None:
        """What certification found; None before it is complete, or when no run succeeded."""
        if not self.done(searched):
            return None
        runs = {entry.attributes["key"]: entry for entry in self.entries() if "key" in entry.attributes}
        judged = [self._with_runs(one, runs) for one in self.choose(searched)]
        found = judge_configurations(judged, self.seeds, self._settings.episodes)
        if found is None:
            return None
        used = {self._key(one, place) for one in judged for place in range(len(self.seeds))}
        train_s = sum(float(runs[key].attributes.get("train_s", 0.0)) for key in used)
        return replace(found, env_steps=self._config.budget.env_steps, train_s=round(train_s, 3))

    def _with_runs(self, configuration: Configuration, runs: Mapping[str, TrialRecord]) -> Configuration:
        mine = [runs[self._key(configuration, place)] for place in range(len(self.seeds))]
        good = [entry for entry in mine if entry.state == "COMPLETE"]
        results = tuple(
            SeedResult(
                seed=entry.attributes["seeds"][0],
                mean=entry.attributes["score"],
                returns=tuple(entry.attributes["returns"]),
                checkpoint=entry.attributes["checkpoint"]["path"],
                run=entry.number,
                mlflow_run_id=entry.attributes.get("mlflow_run_id"),
                name=entry.attributes["name"],
            )
            for entry in good
        )
        failed = tuple(entry.attributes["seeds"][0] for entry in mine if entry.state != "COMPLETE")
        return replace(configuration, per_seed=results, failed_seeds=failed)

    def note_run(self, name: str, run_id: str) -> None:
        """Keep a run's MLflow run; the control's own node in the tree is no run."""
        for entry in list(self._known().values()):
            if entry.attributes.get("name") == name:
                self.books.note_run(entry.number, run_id)


def _can_win(checkpoint_folder: Path) -> bool:
    """Whether a policy can be evaluated, or has not yet been found to be one that cannot."""
    return is_playable(checkpoint_folder) or not (checkpoint_folder / REASON_FILE).is_file()
