"""Retrain the best configurations and the baseline on fresh seeds, in the slots that the search leaves.

The runs stand in the ledger beside the trials: they disturb neither the search's sampler nor its stopping rule, and are
resumed as trials are. What their results say is computed in `rltune.certification.result`. Runs in the driver.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rltune.certification.finalists import is_playable, rank_finalists
from rltune.certification.result import (
    Certification,
    Configuration,
    SeedResult,
    drop_duplicates,
    judge_configurations,
    spell_params,
)
from rltune.config.schema import RunConfig
from rltune.ledger.ledger import Ledger
from rltune.policies.rllib_policy import REASON_FILE
from rltune.records import BASELINE, TrialRecord


class Retraining:
    """What is to be retrained, what was, and what came of it.

    Args:
        folder: The sweep's.
        config: What the sweep was asked to do.
        seeds: Fresh seeds, one for each run of a configuration.
        warm_starts: What the search tried first: tuned settings, then the algorithm file's own values.
        ledger: The sweep's.

    Attributes:
        table: The runs in the ledger.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        seeds: Sequence[int],
        warm_starts: Sequence[Mapping[str, object]],
        ledger: Ledger,
    ) -> None:
        self._folder, self._config, self._ledger = folder, config, ledger
        self._settings, self._warm_starts, self.table = config.certify, warm_starts, ledger.runs
        self.seeds = seeds
        self._chosen: list[Configuration] | None = None
        self._proposed: set[str] = set()
        self._retries: list[TrialRecord] = []

    def runs(self) -> list[TrialRecord]:
        """All runs so far."""
        return self._ledger.runs.records()

    def baseline(self) -> Configuration:
        """The tuned settings if there are any for this pair, else the algo file's own, in the searched names."""
        starts = self._warm_starts
        own = dict(starts[-1]) if starts else {}
        tuned = dict(starts[0]) if self._config.warm_start and starts else {}
        return Configuration(BASELINE, None, own | tuned, None, ())

    def choose_configurations(self, searched: Sequence[TrialRecord]) -> list[Configuration]:
        """Choose what is to be certified: each set of values once, the baseline first; nothing without a finalist."""
        direction = self._ledger.criteria.direction
        able = (one for one in rank_finalists(self._folder, searched, direction) if _can_win(one.folder))
        best = list(itertools.islice(able, max(1, self._settings.top)))
        found = [
            Configuration(finalist.name, finalist.trial, finalist.params, finalist.objective, ())
            for finalist in best[: self._settings.top]
        ]
        return drop_duplicates([self.baseline(), *found]) if best else []

    def propose(self, is_search_over: bool) -> TrialRecord | None:
        """Return the next run, from the ledger; None when there is none to begin.

        Args:
            is_search_over: Whether the finalists are known. Before, only the baseline is.
        """
        if self._retries:
            return self._retries.pop(0)
        if not is_search_over:
            self._chosen = None  # a trial that is tried again may be among the finalists
        elif self._chosen is None:
            self._chosen = self.choose_configurations(self._ledger.trials.records())
        wanted = [self.baseline()] if self._chosen is None else self._chosen
        known: dict[str, TrialRecord] | None = None
        for seed_index in range(len(self.seeds)):
            for configuration in wanted:
                key = self._key(configuration, seed_index)
                if key in self._proposed:
                    continue
                self._proposed.add(key)
                known = self._keyed_runs() if known is None else known
                if key not in known:
                    return self._add_run(configuration, seed_index, key)
                if not _has_ended(known[key]):
                    return known[key]
        return None

    def retry(self, record: TrialRecord) -> None:
        """Put a run that went wrong back in front; it may be one that an earlier driver had proposed."""
        if record.key is not None:
            self._proposed.add(record.key)
        self._retries.insert(0, record)

    def _key(self, configuration: Configuration, seed_index: int) -> str:
        """What makes two runs the same: values, seed and budget, whoever asked for them."""
        values = json.dumps(dict(configuration.params), sort_keys=True)
        return f"{values} seed={self.seeds[seed_index]} env_steps={self._config.budget.env_steps}"

    def _keys(self, configurations: Sequence[Configuration]) -> list[str]:
        return [self._key(one, seed_index) for one in configurations for seed_index in range(len(self.seeds))]

    def _keyed_runs(self) -> dict[str, TrialRecord]:
        return {run.key: run for run in self.runs() if run.key is not None}

    def _add_run(self, configuration: Configuration, seed_index: int, key: str) -> TrialRecord:
        of_trial = None if configuration.name == BASELINE else configuration.trial
        seeds = [self.seeds[seed_index]]
        return self._ledger.runs.add(configuration.params, seeds, key=key, of_trial=of_trial, seed_index=seed_index)

    def is_done(self, searched: Sequence[TrialRecord]) -> bool:
        """Whether nothing is left to train."""
        ended = {run.key for run in self.runs() if _has_ended(run)}
        return ended.issuperset(self._keys(self.choose_configurations(searched)))

    def judge(self, searched: Sequence[TrialRecord]) -> Certification | None:
        """Judge the configurations by their runs; None before the last has ended, or when none succeeded."""
        if not self.is_done(searched):
            return None
        runs = self._keyed_runs()
        configurations = [self._with_results(one, runs, searched) for one in self.choose_configurations(searched)]
        certification = judge_configurations(
            configurations, self.seeds, self._settings.episodes, self._ledger.criteria.direction
        )
        if certification is None:
            return None
        train_s = sum(runs[key].train_s for key in set(self._keys(configurations)))
        return replace(certification, env_steps=self._config.budget.env_steps, train_s=round(train_s, 3))

    def _with_results(
        self, configuration: Configuration, runs: Mapping[str, TrialRecord], searched: Sequence[TrialRecord]
    ) -> Configuration:
        own = [runs[key] for key in self._keys([configuration])]
        results = tuple(_result_of(run) for run in own if run.state == "COMPLETE")
        failed = tuple(run.seeds[0] for run in own if run.state != "COMPLETE")
        broken = None if configuration.trial is not None else self._find_broken(configuration, own, searched)
        return replace(configuration, per_seed=results, failed_seeds=failed, broken=broken)

    def _find_broken(
        self, configuration: Configuration, runs: Sequence[TrialRecord], searched: Sequence[TrialRecord]
    ) -> str | None:
        """Say what a configuration breaks: as a trial of the search that had its values, else as most of its runs."""
        tried = next((one for one in searched if spell_params(one.params) == spell_params(configuration.params)), None)
        if tried:
            return tried.breaks or None
        criteria, seeds = self._ledger.criteria, self._config.replicates
        ended = [replace(run, train_s=seeds * run.train_s) for run in runs if run.state == "COMPLETE"]  # as a trial's
        checks = [check for run in ended for check in criteria.judge(run).broken]
        for name, number in Counter(check.name for check in checks).items():
            if 2 * number > len(runs):
                return str(next(check for check in checks if check.name == name))
        return None


def _has_ended(run: TrialRecord) -> bool:
    return run.state != "RUNNING"


def _result_of(run: TrialRecord) -> SeedResult:
    """Read what a successful run has come to."""
    assert run.score is not None  # the recorder fails a run without them
    assert run.checkpoint is not None
    return SeedResult(
        seed=run.seeds[0],
        mean=run.score,
        returns=run.returns,
        checkpoint=run.checkpoint.path,
        run=run.run_key,
        mlflow_run_id=run.mlflow_run_id,
    )


def _can_win(checkpoint_folder: Path) -> bool:
    """Whether a policy can be evaluated, or has not yet been found to be one that cannot."""
    return is_playable(checkpoint_folder) or not (checkpoint_folder / REASON_FILE).is_file()
