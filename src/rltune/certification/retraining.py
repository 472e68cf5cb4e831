"""Retrain the best configurations and the baseline on fresh seeds, in the slots that the search leaves.

The runs have an Optuna study of their own, the certification study: they disturb neither the search's sampler nor its
rungs, and are resumed as trials are. `rltune.sweep.tune.certification_stage` has Tune run them. What their results say
is computed in `rltune.certification.result`. Runs in the driver.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rltune.certification.finalists import RUN_SEED, is_playable, make_run_name, rank_finalists
from rltune.certification.result import (
    BASELINE,
    Certification,
    Configuration,
    SeedResult,
    drop_duplicates,
    judge_configurations,
)
from rltune.config.schema import RunConfig
from rltune.errors import StudyError
from rltune.policies.rllib_policy import REASON_FILE
from rltune.study.checkpoints import CERTIFY, is_whole
from rltune.study.record import TrialRecord
from rltune.study.study import Study
from rltune.trial.assignment import Assignment

CERTIFICATION_STUDY = "certify.db"
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
        warm_starts: Sequence[Mapping[str, object]],
        assign: Callable[[TrialRecord], Assignment],
    ) -> None:
        self._folder, self._config, self._assign = folder, config, assign
        self._settings, self._warm_starts = config.certify, warm_starts
        self.seeds = seeds
        self._study: Study | None = None
        self._runs_by_key: dict[str, TrialRecord] | None = None
        self._chosen: list[Configuration] | None = None
        self._proposed: set[str] = set()
        self._retries: list[TrialRecord] = []

    @property
    def study(self) -> Study:
        """The certification study: a file beside the search's, or a study beside it in a shared storage."""
        if self._study is None:
            folder, storage = self._folder, self._config.study.storage
            own = f"sqlite:///{folder / CERTIFICATION_STUDY}"
            url, name = (storage, f"{folder.name}-certify") if storage else (own, "certify")
            try:
                self._study = Study(url, name)
            except StudyError:  # the first time; a storage that cannot be opened raises again here
                self._study = Study(url, name, create=True)
            self._study.set_attribute("folder", str(folder))
        return self._study

    def close(self) -> None:
        """Give connections back."""
        if self._study is not None:
            self._study.close()

    def runs(self) -> list[TrialRecord]:
        """All runs so far; none where nothing was begun."""
        begun = self._study or self._config.study.storage or (self._folder / CERTIFICATION_STUDY).exists()
        return self.study.trials() if begun else []

    def baseline(self) -> Configuration:
        """The tuned settings if there are any for this pair, else the algo file's own, in the searched names."""
        starts = self._warm_starts
        own = dict(starts[-1]) if starts else {}
        tuned = dict(starts[0]) if self._config.warm_start and starts else {}
        return Configuration(BASELINE, None, own | tuned, None, ())

    def choose_configurations(self, searched: Sequence[TrialRecord]) -> list[Configuration]:
        """Choose what is to be certified: each set of values once, the baseline first; nothing without a finalist."""
        able = (one for one in rank_finalists(self._folder, searched) if _can_win(one.folder))
        best = list(itertools.islice(able, max(1, self._settings.top)))
        whole = {record.number for record in searched if record.state == "COMPLETE"}
        found = [
            Configuration(one.name, one.trial, one.params, one.objective, (), whole_budget=one.trial in whole)
            for one in best[: self._settings.top]
        ]
        return drop_duplicates([self.baseline(), *found]) if best else []

    def describe_progress(self) -> str:
        """Say how many of the runs are done; while trials still run, finalists may yet have the baseline's values."""
        wanted = [self.baseline()] if self._chosen is None else self._chosen
        keys = set(self._keys(wanted))
        num_ended = sum(run.key in keys for run in self.runs() if run.state in ENDED)
        if self._chosen is None and self._settings.top:
            return f"{num_ended} of up to {len(self.seeds) * (self._settings.top + 1)} runs"
        return f"{num_ended} of {len(keys)} runs"

    def propose(self, searched: Sequence[TrialRecord] | None) -> TrialRecord | None:
        """Return the next run, from the certification study; None when there is none to begin.

        Args:
            searched: All trials once the search is complete. None before: then only the baseline is known.
        """
        if self._retries:
            return self._retries.pop(0)
        if searched is not None and self._chosen is None:
            self._chosen = self.choose_configurations(searched)
        wanted = [self.baseline()] if searched is None else self._chosen or []
        for seed_index in range(len(self.seeds)):
            for configuration in wanted:
                key = self._key(configuration, seed_index)
                known = self._known_runs().get(key)
                if key not in self._proposed and (known is None or known.state not in ENDED):
                    self._proposed.add(key)
                    return known or self._add_run(configuration, seed_index, key)
        return None

    def retry(self, record: TrialRecord) -> None:
        """Put a run that went wrong back in front."""
        self._retries.insert(0, record)

    def _key(self, configuration: Configuration, seed_index: int) -> str:
        """What makes two runs the same: values, seed and budget, whoever asked for them."""
        values = json.dumps(dict(configuration.params), sort_keys=True)
        return f"{values} seed={self.seeds[seed_index]} env_steps={self._config.budget.env_steps}"

    def _keys(self, configurations: Sequence[Configuration]) -> list[str]:
        return [self._key(one, seed_index) for one in configurations for seed_index in range(len(self.seeds))]

    def _known_runs(self) -> dict[str, TrialRecord]:
        """The runs of earlier drivers and of this one, by their keys."""
        if self._runs_by_key is None:
            self._runs_by_key = self._read_keyed_runs()
        return self._runs_by_key

    def _read_keyed_runs(self) -> dict[str, TrialRecord]:
        return {run.key: run for run in self.runs() if run.key is not None}

    def _add_run(self, configuration: Configuration, seed_index: int, key: str) -> TrialRecord:
        # A driver that was killed between `ask` and `note` left a run without a key: that one is taken instead.
        known = {run.number for run in self._known_runs().values()}
        vacant = [run.number for run in self.runs() if run.key is None and run.number not in known]
        number = vacant[0] if vacant else self.study.ask(lambda suggest: {}, {})[0]
        self.study.note(
            number,
            params=dict(configuration.params),
            configuration=configuration.name,
            place=seed_index,
            seeds=[self.seeds[seed_index]],
            name=make_run_name(configuration, seed_index),
            key=key,
        )
        record = self.study.trial(number)
        self._known_runs()[key] = record
        return record

    def assign(self, record: TrialRecord) -> Assignment:
        """Make a run's assignment: a trial's, with a folder of its own kind and with episodes at the end."""
        best = record.checkpoint
        return replace(
            self._assign(record),
            kind=CERTIFY,
            episodes=self._settings.episodes,
            evaluation_seed=RUN_SEED,
            best_path=best["path"] if best and is_whole(self._folder, best) else None,
        )

    def is_done(self, searched: Sequence[TrialRecord]) -> bool:
        """Whether nothing is left to train."""
        ended = {run.key for run in self.runs() if run.state in ENDED}
        return ended.issuperset(self._keys(self.choose_configurations(searched)))

    def judge(self, searched: Sequence[TrialRecord]) -> Certification | None:
        """Judge the configurations by their runs; None before the last has ended, or when none succeeded."""
        if not self.is_done(searched):
            return None
        runs = self._read_keyed_runs()
        configurations = [self._with_results(one, runs) for one in self.choose_configurations(searched)]
        certification = judge_configurations(configurations, self.seeds, self._settings.episodes)
        if certification is None:
            return None
        train_s = sum(runs[key].train_s for key in set(self._keys(configurations)))
        return replace(certification, env_steps=self._config.budget.env_steps, train_s=round(train_s, 3))

    def _with_results(self, configuration: Configuration, runs: Mapping[str, TrialRecord]) -> Configuration:
        own = [runs[key] for key in self._keys([configuration])]
        results = tuple(_result_of(run) for run in own if run.state == "COMPLETE")
        failed = tuple(run.seeds[0] for run in own if run.state != "COMPLETE")
        return replace(configuration, per_seed=results, failed_seeds=failed)

    def note_mlflow_run(self, name: str, run_id: str) -> None:
        """Keep a run's MLflow run; the baseline's own node in MLflow's tree is no run."""
        for record in list(self._known_runs().values()):
            if record.name == name:
                self.study.note_run(record.number, run_id)


def _result_of(run: TrialRecord) -> SeedResult:
    """Read what a successful run has come to."""
    assert run.score is not None  # the recorder fails a run without them
    assert run.checkpoint is not None
    return SeedResult(
        seed=run.seeds[0],
        mean=run.score,
        returns=run.returns,
        checkpoint=run.checkpoint["path"],
        run=run.number,
        mlflow_run_id=run.mlflow_run_id,
        name=run.name,
    )


def _can_win(checkpoint_folder: Path) -> bool:
    """Whether a policy can be evaluated, or has not yet been found to be one that cannot."""
    return is_playable(checkpoint_folder) or not (checkpoint_folder / REASON_FILE).is_file()
