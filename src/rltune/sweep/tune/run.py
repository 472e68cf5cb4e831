"""One driver's work on a sweep, between its opened folder and its outcome: ledger, tracking, Tune, winner, model.

Runs in the driver.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from ray import tune
from ray.tune import Callback, CheckpointConfig, FailureConfig, PlacementGroupFactory, RunConfig, TuneConfig
from ray.tune.search import Searcher

from rltune.certification.champion import Candidate, register_champion
from rltune.certification.finalists import Finalist, describe_winner, rank_finalists
from rltune.certification.result import CONTROL, Certification
from rltune.certification.retraining import Retraining
from rltune.certification.selection import TABLE, FinalEvaluation, measure_policies, write_table
from rltune.cluster.resources import Share
from rltune.cluster.shared_storage import not_shared
from rltune.compat.tune_controller import adapt_tune
from rltune.config.settings_file import format_settings
from rltune.config.uris import redact_address, resolve_uri
from rltune.reporting import html
from rltune.reporting.console import Console
from rltune.reporting.html import try_report
from rltune.reporting.wording import read_typed_command
from rltune.search.schedulers import build_stopping_rule
from rltune.study.checkpoints import is_whole
from rltune.study.disk_full import DISK_FULL, is_disk_full, make_disk_full_error
from rltune.study.outcome import EXIT_NONE, EXIT_WINNER, Outcome, compute_cost, count_states
from rltune.study.record import TrialRecord
from rltune.study.storage import open_ledger, save_copy
from rltune.study.sweep_folder import make_resume_command
from rltune.sweep.context import SweepContext
from rltune.sweep.plan import tracking_uri_of
from rltune.sweep.provenance import list_versions, read_git_commit
from rltune.sweep.publish import make_closing_page, trial_view_of
from rltune.sweep.stopper import SweepStopper
from rltune.sweep.tune.certification_stage import Router, RunRecorder, StagedSearcher
from rltune.sweep.tune.recorder import Recorder, make_trial_end
from rltune.sweep.tune.scheduler import StoppingRuleScheduler
from rltune.sweep.tune.searcher import SearchPlan, StudySearcher
from rltune.tracking.tracker import NoTracker, Tracker, TrackingSettings, TrialEnd
from rltune.trial.assignment import Assignment
from rltune.trial.trainable import Trial

# What MLflow keeps of its own log_table, by which its page shows the file as a table.
SHOWN = {"mlflow.loggedArtifacts": json.dumps([{"path": f"{TABLE}.json", "type": "table"}])}
logger = logging.getLogger(__name__)


class TuneRun:
    """Runs a session; a context manager that leaves nothing open.

    Args:
        session: What to do.
        share: A trial's share of the machine.
    """

    def __init__(self, session: SweepContext, share: Share) -> None:
        self.session, self.share = session, share
        self.config, self.plan = session.plan.config, session.plan
        arguments = self.config.scheduler
        self.rungs = build_stopping_rule(arguments.kind, arguments.args, self.config.budget.env_steps)
        self.study = open_ledger(self.config.study.storage, session.folder, new=not session.resumed)
        if session.resumed:
            save_copy(session.folder)
        entries = self.study.entries()
        spent = self.config.replicates * sum(entry.env_steps for entry in entries)
        self.control = SweepStopper(session.folder, self.config, spent)
        self.unfinished = [entry for entry in entries if entry.state == "RUNNING"]
        if self.rungs:
            self.rungs.replay((entry.number, entry.reports) for entry in entries)
        certify = self.config.certify
        plan = session.plan
        self.retraining = (
            Retraining(session.folder, self.config, plan.certification_seeds(), plan.warm_starts, self._assignment)
            if certify.seeds
            else None
        )
        self.finals = FinalEvaluation(
            session.folder, certify.top, certify.champion_episodes, share.slots, session.aside
        )
        self._earlier_s = float(self.study.attribute("wall_s", 0.0))
        self.tracker = self._open_tracker()
        self.console = Console(
            name=session.name,
            num_trials=self.config.budget.trials,
            env_steps=self.config.budget.env_steps,
            slots=share.slots,
            stream=session.stream,
        )

    def __enter__(self) -> Self:
        """Nothing more to open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave no run RUNNING and no connection open, whatever happened."""
        self.console.stop()
        self.tracker.close("FAILED" if isinstance(error, Exception) else "KILLED", timeout_s=5.0)
        self.control.clear()
        self.finals.close()
        if self.retraining:
            self.retraining.close()
        self.study.close()
        save_copy(self.session.folder)

    # -- the four acts --------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Search, choose the winner, register it, say how it ended."""
        self._begin()
        if self.unfinished or self.study.num_trials < self.config.budget.trials or not self._certified():
            self._search()
        if self.control.reason == DISK_FULL:
            raise make_disk_full_error(self.session.folder)
        for path, node in self.control.lost.items():
            raise not_shared(self.session.folder, node, path)
        return self._end()

    def _certified(self) -> bool:
        """Whether certification has nothing left to train."""
        return self.retraining is None or self.retraining.done(self.study.entries())

    def _begin(self) -> None:
        session = self.session
        self.study.set_attribute("status", "running")
        self.study.set_attribute("folder", str(session.folder))  # it may have been moved
        if self.study.attribute("began") is None:
            self.study.set_attribute("config", format_settings(self.config))
            self.study.set_attribute("versions", list_versions())
            self.study.set_attribute("git_commit", read_git_commit())
            self.study.set_attribute("command", read_typed_command())
            self.study.set_attribute("began", datetime.now(UTC).isoformat(timespec="seconds"))
        self.tracker.start(
            run_id=self.study.attribute("mlflow_run_id"),
            params=self._described(),
            tags={"rltune.folder": str(session.folder), "rltune.git_commit": read_git_commit()},
            config_text=format_settings(self.config),
            packages="\n".join(f"{name}=={version}" for name, version in list_versions().items()) + "\n",
        )
        if session.resumed:
            self.tracker.settle(self._endings())
        self.console.start([trial_view_of(entry) for entry in self.study.entries()])
        for note in self.plan.notes:
            self.console.note(note)

    def _endings(self) -> dict[int | str, TrialEnd]:
        """How trials and certification's runs have ended, by their names in MLflow."""
        runs = self.retraining.entries() if self.retraining else []
        named: dict[int | str, TrialRecord] = {entry.number: entry for entry in self.study.entries()}
        named |= {str(entry.attributes["name"]): entry for entry in runs if "name" in entry.attributes}
        return {
            name: make_trial_end(self.session.folder, entry, entry.state, str(entry.attributes.get("stop_reason", "")))
            for name, entry in named.items()
            if entry.state != "RUNNING"
        }

    def _described(self) -> dict[str, Any]:
        """What tells one sweep from another in MLflow's table."""
        config = self.config
        return {
            "algo": config.algo["name"],
            "env": config.env.id,
            "searcher": config.searcher.kind,
            "scheduler": config.scheduler.kind,
            "budget.trials": config.budget.trials,
            "budget.env_steps": config.budget.env_steps,
            "replicates": config.replicates,
            "seed": config.seed,
        }

    def _search(self) -> None:
        scheduler = StoppingRuleScheduler(self.rungs)
        recorder = Recorder(self.study, self.tracker, self.console, scheduler, self.control, self.config)
        wanted = SearchPlan(
            self.config.budget.trials,
            self.share.slots,
            self.plan.warm_starts,
            self.unfinished,
            self.plan.seeds,
            self.plan.sampler,
        )
        orders = lambda entry: self._assignment(entry).to_config()  # noqa: E731
        searcher = StudySearcher(self.study, self.plan.space, wanted, orders, self.control.asked)
        recorder.searcher = searcher
        if not self.retraining:
            searcher.idle = lambda: self.finals.begin(self.study.entries())
        staged, router = self._staged(searcher, recorder)
        trainable = tune.with_resources(self.session.trainable or Trial, PlacementGroupFactory(self.share.bundles))
        scratch = self.session.folder / ".tune"
        # Tune would start a searcher's trials one after the other, each after the last one's process is up (Ray 2.60).
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(self.share.slots)
        tuner = tune.Tuner(
            trainable,
            tune_config=TuneConfig(
                search_alg=staged,
                scheduler=scheduler,
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=RunConfig(
                name="tune",
                storage_path=str(scratch),
                callbacks=[router],
                stop=self.control,
                verbose=0,
                failure_config=FailureConfig(max_failures=self.config.failures.max_retries),
                checkpoint_config=CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            ),
        )
        try:
            with adapt_tune(one_process=self.config.cluster.address is None and not self.share.env_runners):
                tuner.fit()
        except KeyboardInterrupt:
            self.control.request("interrupted at once", 2)
        except Exception as error:
            if not is_disk_full(error):
                raise
            self.control.request(DISK_FULL)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _staged(self, searcher: StudySearcher, recorder: Recorder) -> tuple[Searcher, Callback]:
        """With certification, what proposes after the search, and what tells whose events Tune's are."""
        retraining = self.retraining
        if retraining is None:
            return searcher, recorder
        staged = StagedSearcher(searcher, retraining, self.share.slots, self.control.asked)
        return staged, Router(recorder, lambda: RunRecorder(retraining, recorder))

    def _assignment(self, entry: TrialRecord) -> Assignment:
        """A trial's orders for its worker; one that ran before goes on from its newest whole checkpoint."""
        best = entry.attributes.get("checkpoint")
        records: list[dict[str, Any]] = [record for record in (entry.attributes.get("latest"), best) if record]
        whole = [record for record in records if is_whole(self.session.folder, record)]
        latest = max(whole, key=lambda record: record["env_steps"], default=None)
        self._tell_damaged(entry, records, latest)
        return Assignment(
            number=entry.number,
            params=entry.params,
            seeds=tuple(entry.attributes["seeds"]),
            sweep=str(self.session.folder),
            env_steps=self.config.budget.env_steps,
            reports=self.config.budget.reports,
            checkpoint_every_s=self.config.checkpoint.every_s,
            stall_s=self.config.failures.stall_s,
            threads=self.share.threads,
            engine=self.config.engine,
            build=self.plan.assignment_build(),
            latest=latest,
            best_objective=best["objective"] if best and best in whole else None,
            best_path=best["path"] if best and best in whole else None,
            tags={"sweep": self.session.name, "env_name": self.config.env.name},
        )

    def _tell_damaged(self, entry: TrialRecord, records: list[dict[str, Any]], latest: dict[str, Any] | None) -> None:
        newest = max(records, key=lambda record: record["env_steps"], default=None)
        if newest is not None and newest is not latest:
            name = entry.attributes.get("name", f"trial {entry.number}")
            there = f"goes on from {latest['path']}" if latest else "starts anew: no other one is left"
            self.console.note(f"{name}: its checkpoint {newest['path']} is damaged or gone; it {there}")

    # -- the end --------------------------------------------------------------------------------------------------

    def _end(self) -> Outcome:
        entries = self.study.entries()
        winner, found = self._judge(entries)
        model = None
        if winner and self.control.signal is None and self.config.tracking.register:
            candidate = Candidate(winner, found, self.config, self.session.name)
            model = register_champion(candidate, self.tracker, self.console.note)
        ended = self._outcome(entries, winner, model, found)
        ended.save()
        self._publish(ended, found)
        self.console.stop()
        unfinished = ended.trials["interrupted"] or self.control.signal is not None or not self._certified()
        resume = make_resume_command(self.session.folder) if unfinished else None
        self.console.summary(make_closing_page(ended, entries, self._shown_uri(), resume))
        return ended

    def _outcome(
        self,
        entries: list[TrialRecord],
        winner: Finalist | None,
        model: dict[str, Any] | None,
        found: Certification | None,
    ) -> Outcome:
        runs = self.retraining.entries() if self.retraining else []
        wall_s = self._earlier_s + time.monotonic() - self.session.began
        self.study.set_attribute("wall_s", wall_s)
        interrupted = self.control.signal is not None
        trials = count_states(entries)
        failed = winner is None and (self.control.failed or not trials["interrupted"])
        status = (
            "interrupted" if interrupted else "failed" if failed else "stopped" if self.control.reason else "complete"
        )
        code = EXIT_NONE if failed else EXIT_WINNER
        return Outcome(
            name=self.session.name,
            status=status,
            trials=trials,
            winner=describe_winner(winner, self.session.folder),
            model=model,
            cost=compute_cost(entries, self.config, self.share.slots, wall_s, runs),
            certified=found.summary() if found else None,
            reason=self.control.reason,
            exit_code=128 + self.control.signal if self.control.signal is not None else code,
            folder=self.session.folder,
        )

    def _publish(self, ended: Outcome, found: Certification | None) -> None:
        self.study.set_attribute("status", ended.status)
        self.study.set_attribute("winner", ended.winner)
        self.study.set_attribute("champion", ended.model)
        self.study.set_attribute("certification", found.to_dict() if found else None)
        if found:
            self._show_certified(found)
        self.tracker.artifact(self.session.folder / "summary.json")
        wanted = self.config.report and ended.status != "interrupted"  # seconds that a signal does not give
        if wanted and (pages := try_report(self.session.folder, self.study, self.console.note)):
            self.tracker.artifact(pages, html.FOLDER)
        status = {"interrupted": "KILLED", "failed": "FAILED"}.get(ended.status, "FINISHED")
        if not self.tracker.close(status, self.control.left_s() if ended.status == "interrupted" else 60.0):
            self.console.note("MLflow has not received everything; the rest is sent by the next sweeps.resume")
        for warning in self.tracker.warnings():
            self.console.note(warning)

    def _judge(self, entries: list[TrialRecord]) -> tuple[Finalist | None, Certification | None]:
        """The winner, and what certification says where it is complete."""
        certify, folder = self.config.certify, self.session.folder
        if self.retraining and self.control.signal is None:
            self.tracker.wait_until_sent()  # the record names the runs
        found = self.retraining.result(entries) if self.retraining and self.control.signal is None else None
        if found:
            measured, winner = measure_policies(found, folder, certify.champion_episodes)
            return winner, measured
        candidates = [] if self.control.failed else entries
        if self.control.signal is not None:
            return next(rank_finalists(folder, candidates), None), None
        best = self.finals.winner(candidates, self.console.note)
        if self.retraining and best:
            failed = self._certified() and self.retraining.entries()
            why = "every run of it failed" if failed else "the sweep was stopped before"
            self.console.note(f"not certified: {why}, so that the winner is the search's")
        return best, None

    def _show_certified(self, found: Certification) -> None:
        """The certification in MLflow: a table with the sweep, marks on its configurations."""
        for path in write_table(found, self.session.folder):
            self.tracker.artifact(path)
        for one in found.configurations:
            metrics = {"certified_iqm": one.iqm, "certified_low": one.low, "certified_high": one.high}
            metrics["certified_failed_seeds"] = len(one.failed_seeds)
            tags = {"rltune.certified": found.verdict(one) or "yes"}
            if one.name == CONTROL:
                self.tracker.trial_ended(CONTROL, "COMPLETE", metrics=metrics, tags=tags, artifacts=None)
                tags = tags | {"rltune.configuration": CONTROL}  # below which are the runs of the trial of its values
            if one.trial is not None:
                self.tracker.describe(one.trial, metrics, tags)
        self.tracker.describe(None, {"certified_iqm": found.best().iqm}, {"rltune.winner": found.winner} | SHOWN)

    # -- where things are -----------------------------------------------------------------------------------------

    def _open_tracker(self) -> Tracker:
        if self.config.tracking.kind == "off":
            return NoTracker()
        settings = TrackingSettings(
            uri=tracking_uri_of(self.config),
            experiment=self.config.tracking.experiment or self.config.env.name,
            sweep=self.session.name,
            spool_dir=self.session.folder / ".spool",
        )
        return Tracker(settings, self._keep_run)

    def _keep_run(self, number: int | str | None, run_id: str) -> None:
        """Called from the tracker's thread."""
        if number is None:
            self.study.set_attribute("mlflow_run_id", run_id)
        elif isinstance(number, str):
            if self.retraining:
                self.retraining.note_run(number, run_id)
        else:
            self.study.note_run(number, run_id)

    def _shown_uri(self) -> str | None:
        return None if self.config.tracking.kind == "off" else redact_address(resolve_uri(tracking_uri_of(self.config)))


def _trial_name(trial: Any) -> str:
    return f"trial-{trial.config['assignment']['number']:03d}-{trial.trial_id}"
