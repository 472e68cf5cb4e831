"""Retrain the best configurations and the baseline on fresh seeds, in trial slots that the search leaves free.

The runs have their own table in the ledger, so that neither the search's sampler nor its stopping rule sees them. They
are resumed as trials are. `rltune.certification.result` judges their results. Runs in the driver.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltune.certification.finalists import is_playable, rank_finalists
from rltune.certification.result import (
    Certification,
    Choice,
    Configuration,
    SeedResult,
    judge_configurations,
    list_choices,
    spell_params,
)
from rltune.checkpoints.store import Store
from rltune.config.schema import CertifyConfig
from rltune.ledger.ledger import Ledger
from rltune.ledger.ranking import rank_records
from rltune.policies.result import measure_metric
from rltune.policies.rllib_policy import REASON_FILE
from rltune.records import BASELINE, TrialRecord


class Retraining:
    """Proposes the retraining runs of a sweep's certification, and compares the configurations by their results.

    Args:
        store: The sweep's store.
        certify: How many configurations are retrained, and on how many episodes their policies are judged.
        env_steps: The environment steps of a run.
        replicates: The number of seeds of a trial of the search.
        seeds: Fresh seeds, one for each run of a configuration.
        baseline: The baseline's values by name: the tuned settings if there are any, else the algorithm file's own.
        ledger: The sweep's ledger.

    Attributes:
        table: The ledger's table of the runs.
    """

    def __init__(
        self,
        store: Store,
        certify: CertifyConfig,
        env_steps: int,
        replicates: int,
        seeds: Sequence[int],
        baseline: Mapping[str, Any],
        ledger: Ledger,
    ) -> None:
        self._store, self._ledger = store, ledger
        self._certify, self._env_steps, self._replicates = certify, env_steps, replicates
        self._baseline, self.table, self.seeds = baseline, ledger.runs, seeds
        self._chosen: list[Choice] | None = None
        self._proposed: set[str] = set()
        self._retries: list[TrialRecord] = []

    def runs(self) -> list[TrialRecord]:
        """Read all certification runs from the ledger."""
        return self._ledger.runs.records()

    def choose_configurations(self, searched: Sequence[TrialRecord]) -> list[Choice]:
        """Choose the configurations to certify, as `list_choices` does; none if no trial has a policy that can win.

        Args:
            searched: All trials of the search.
        """
        ranked = rank_finalists(self._store, searched, self._ledger.criteria.direction)
        finalists = (
            Configuration(finalist.name, finalist.trial, finalist.params, finalist.objective, ())
            for finalist in ranked
            if _can_win(finalist.folder)
        )
        best = next(finalists, None)
        if best is None:
            return []
        baseline = self._find_baseline(searched)
        every = itertools.chain([best], finalists)
        top, begun = self._certify.top or 0, self._list_begun(searched)
        return list_choices(baseline, every, begun, self._read_earlier(), top, len(self.seeds))

    def _find_baseline(self, searched: Sequence[TrialRecord]) -> Configuration:
        """Return the baseline, with number and score of the best trial that has its values, if there is one."""
        values, ranked = spell_params(self._baseline), rank_records(searched, self._ledger.criteria.direction)
        for trial in ranked:
            if spell_params(trial.params) == values:
                return Configuration(BASELINE, trial.number, self._baseline, trial.score, ())
        return Configuration(BASELINE, None, self._baseline, None, ())

    def _list_begun(self, searched: Sequence[TrialRecord]) -> list[Choice]:
        """List the configurations that have runs with this budget, with their number, in the order of the first."""
        scores = {trial.number: trial.score for trial in searched}
        choices: dict[str, Choice] = {}
        for run in self.runs():
            if run.of_trial is None or run.seed_index is None or run.seed_index >= len(self.seeds):
                continue
            trial = Configuration(f"trial {run.of_trial}", run.of_trial, run.params, scores.get(run.of_trial), ())
            if run.key == self._key(trial, run.seed_index):
                first, num_runs = choices.get(spell_params(run.params), (trial, 0))
                choices[spell_params(run.params)] = first, num_runs + 1
        return list(choices.values())

    def _read_earlier(self) -> Certification | None:
        """Read the result of the last certification; None if there is none, or if it had another budget."""
        stored = self._ledger.sweep().certification
        earlier = Certification.from_dict(stored) if stored else None
        return earlier if earlier and earlier.env_steps == self._env_steps else None

    def propose(self, is_search_over: bool) -> TrialRecord | None:
        """Return the ledger's record of the next run to start or to resume; None if there is none.

        Args:
            is_search_over: Whether the search has ended. Until then, only the baseline is retrained.
        """
        if self._retries:
            return self._retries.pop(0)
        if not is_search_over:
            # The finalists are chosen again later, because a failed trial that is being retried may become one.
            self._chosen = None
        elif self._chosen is None:
            self._chosen = self.choose_configurations(self._ledger.trials.records())
        chosen = [(self._find_baseline(()), len(self.seeds))] if self._chosen is None else self._chosen
        runs: dict[str, TrialRecord] | None = None
        for seed_index in range(len(self.seeds)):
            for configuration, num_seeds in chosen:
                key = self._key(configuration, seed_index)
                if seed_index >= num_seeds or key in self._proposed:
                    continue
                self._proposed.add(key)
                runs = self._read_keyed_runs() if runs is None else runs
                if key not in runs:
                    return self._add_run(configuration, seed_index, key)
                if not _has_ended(runs[key]):
                    return runs[key]
        return None

    def retry(self, record: TrialRecord) -> None:
        """Propose a certification run again, before all others. An earlier driver may have proposed it first."""
        if record.key is not None:
            self._proposed.add(record.key)
        self._retries.insert(0, record)

    def learn(self, record: TrialRecord) -> None:
        """Take no notice of an ended run, because the next ones do not depend on it."""

    def _key(self, configuration: Configuration, seed_index: int) -> str:
        """Return the key that identifies a run in the ledger: runs with equal values, seed and budget are shared."""
        values, seed = spell_params(configuration.params), self.seeds[seed_index]
        return f"{values} seed={seed} env_steps={self._env_steps}"

    def _list_keys(self, choice: Choice) -> list[str]:
        configuration, num_seeds = choice
        return [self._key(configuration, seed_index) for seed_index in range(num_seeds)]

    def _read_keyed_runs(self) -> dict[str, TrialRecord]:
        return {run.key: run for run in self.runs() if run.key is not None}

    def _add_run(self, configuration: Configuration, seed_index: int, key: str) -> TrialRecord:
        of_trial = None if configuration.name == BASELINE else configuration.trial
        seeds = [self.seeds[seed_index]]
        return self._ledger.runs.add(configuration.params, seeds, key=key, of_trial=of_trial, seed_index=seed_index)

    def is_done(self, searched: Sequence[TrialRecord]) -> bool:
        """Return whether all certification runs have ended."""
        return self._read_ended_runs(self.choose_configurations(searched)) is not None

    def judge(self, searched: Sequence[TrialRecord]) -> tuple[bool, Certification | None]:
        """Compare the configurations by their certification runs.

        Args:
            searched: All trials of the search.

        Returns:
            Whether all runs have ended, and the certification: None before the end, or if no run has succeeded.
        """
        chosen = self.choose_configurations(searched)
        runs = self._read_ended_runs(chosen)
        if runs is None:
            return False, None
        configurations = [self._with_results(choice, runs, searched) for choice in chosen]
        certification = judge_configurations(
            configurations, self.seeds, self._certify.episodes, self._ledger.criteria.direction
        )
        if certification is None:
            return True, None
        train_s = round(sum(run.train_s for run in runs.values()), 3)
        return True, replace(certification, env_steps=self._env_steps, train_s=train_s)

    def _read_ended_runs(self, chosen: Sequence[Choice]) -> dict[str, TrialRecord] | None:
        """Read the certification runs of some configurations, by key; None if not all of them have ended."""
        runs = self._read_keyed_runs()
        keys = {key for choice in chosen for key in self._list_keys(choice)}
        ended = {key: run for key, run in runs.items() if key in keys and _has_ended(run)}
        return ended if len(ended) == len(keys) else None

    def _with_results(
        self, choice: Choice, runs: Mapping[str, TrialRecord], searched: Sequence[TrialRecord]
    ) -> Configuration:
        configuration, _ = choice
        ended = [runs[key] for key in self._list_keys(choice)]
        results = tuple(self._result_of(run) for run in ended if run.state == "COMPLETE")
        failed = tuple(run.seeds[0] for run in ended if run.state != "COMPLETE")
        # A trial that breaks a constraint is no finalist, but the baseline is certified in any case.
        broken = self._find_broken(configuration, ended, searched) if configuration.name == BASELINE else None
        return replace(configuration, per_seed=results, failed_seeds=failed, broken=broken)

    def _result_of(self, run: TrialRecord) -> SeedResult:
        """Convert the ledger's record of a complete run to a `SeedResult`."""
        assert run.score is not None  # The recorder marks runs without a score or a checkpoint as failed.
        assert run.checkpoint is not None
        result = SeedResult(
            seed=run.seeds[0],
            mean=run.score,
            returns=run.returns,
            checkpoint=run.checkpoint.path,
            run=run.run_key,
            mlflow_run_id=run.mlflow_run_id,
            choice_returns=run.choice_returns,
            metrics={name: measure_metric(values)["mean"] for name, values in run.metrics.items()},
        )
        # Two good reports may be chance, and the training ended with them.
        reaches = self._ledger.criteria.early_end.reaches(result.rank_score)
        return replace(result, target_steps=run.target_steps if reaches else None)

    def _find_broken(
        self, configuration: Configuration, runs: Sequence[TrialRecord], searched: Sequence[TrialRecord]
    ) -> str | None:
        """Return the constraint that a configuration breaks, as text; None if it breaks none.

        If the search has a trial with the same values, then this trial decides, else the majority of the runs.
        """
        values = spell_params(configuration.params)
        twin = next((trial for trial in searched if spell_params(trial.params) == values), None)
        if twin:
            return twin.breaks or None
        criteria, seeds = self._ledger.criteria, self._replicates
        # A constraint on train_s limits the sum over all replicates (seeds) of a trial, but a certification run trains
        # only one, so its time is multiplied.
        complete = [replace(run, train_s=seeds * run.train_s) for run in runs if run.state == "COMPLETE"]
        checks = [check for run in complete for check in criteria.judge(run).broken]
        for name, number in Counter(check.name for check in checks).items():
            if 2 * number > len(runs):
                return str(next(check for check in checks if check.name == name))
        return None


def _has_ended(run: TrialRecord) -> bool:
    return run.state != "RUNNING"


def _can_win(checkpoint_folder: Path) -> bool:
    """Return whether a checkpoint's policy may win: it is playable, or no file states why it has no policy bundle."""
    return is_playable(checkpoint_folder) or not (checkpoint_folder / REASON_FILE).is_file()
