"""What the driver costs: a sweep of instant trials, 20 reports each, beside Tune alone with the same trials.

    python -m benchmarks.driver [--trials 500,5000] [--kinds tune,off,local] [--profile]

About 6 minutes on two quiet cores; 2 with --quick, which keeps no record.
CPU milliseconds of the whole process, all threads, per report, trials' starts and ends included, over the run and its
first and last tenth, which must not differ. Of these: recording a report, what is ours when trials start and end (the
searcher, Optuna), and the thread that sends to MLflow. Resident memory and files per trial. ``off`` and ``local`` are
tracking's; what is imported once a sweep is left out.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import io
import itertools
import json
import os
import pstats
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.commands import make_environment
from benchmarks.records import make_record, write_record

REPORTS = 20
KINDS = {"tune": "Tune alone", "off": "rltune, tracking=off", "local": "rltune with MLflow"}
OVERRIDES = (
    "+algo.training.learner_config_dict.quality=1.0", "~tuned", "~space", "+space.quality=[uniform,0,1]",
    "searcher=random",
    "scheduler=none", "certify=off", "certify.top=0", "tracking.register=false", "report=false", "name=driver",
    f"budget.env_steps={REPORTS * 100}", "resources.max_concurrent=2",
    f"budget.reports={REPORTS}", "checkpoint.every_s=1e9",
)  # fmt: skip


class Meter:
    """Counts reports, and reads the clocks after each eleventh of them; the first one warms up.

    Args:
        reports: How many will come.
    """

    def __init__(self, reports: int) -> None:
        self.every = max(1, reports // 11)
        self.count, self.ours = 0, {"recording": 0.0, "trials": 0.0}
        self.marks: list[dict[str, float]] = []

    def watch(self, owner: type, *names: str) -> None:
        """Add the CPU that methods take to ours; a report is counted when it was recorded."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name), name == "on_trial_result"))

    def _timed(self, plain: Any, counts: bool) -> Any:
        part = "recording" if counts else "trials"

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return plain(*args, **kwargs)
            finally:
                self.ours[part] += time.thread_time() - began
                if counts:
                    self.add()

        return timed

    def add(self) -> None:
        """Count one report."""
        self.count += 1
        if self.count % self.every == 0:
            sent = [thread.ident for thread in threading.enumerate() if thread.name.startswith("feed-")]
            sending = sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in sent if ident)
            clocks = {"wall": time.perf_counter(), "cpu": time.process_time(), "sending": sending, **self.ours}
            self.marks.append({**clocks, "mb": resident_mb()})

    def figures(self) -> dict[str, Any]:
        """The run in numbers: CPU milliseconds a report, in all and of its first and last tenth; kB a trial."""
        first, second, *_, last_but_one, last = self.marks
        reports = (len(self.marks) - 1) * self.every
        parts = {f"{part}_ms": 1000 * (last[part] - first[part]) / reports for part in ("cpu", "sending", *self.ours)}
        tenths = (second["cpu"] - first["cpu"], last["cpu"] - last_but_one["cpu"])
        return {
            "reports": self.count,
            "reports_per_s": reports / (last["wall"] - first["wall"]),
            **parts,
            "cpu_ms_first_last": [1000 * tenth / self.every for tenth in tenths],
            "memory_kb": 1024 * (last["mb"] - first["mb"]) * REPORTS / reports,
        }


def resident_mb() -> float:
    """This process's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def request(*overrides: str) -> Any:
    """What a command with these overrides would ask for."""
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore

    from rltune.compose.composing import conf_dir
    from rltune.config.schema import RunConfig
    from rltune.config.validation import parse_config

    ConfigStore.instance().store("base_run", RunConfig)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return parse_config(compose("run", list(overrides)))


def run_ours(trials: int, tracking: str, meter: Meter) -> dict[str, float]:
    """Run a sweep; kB a trial that it leaves in its databases."""
    from rltune.cluster.background_imports import NEEDED_AT_END

    from benchmarks.instant import InstantTrial
    from rltune.driver import plan
    from rltune.driver.run import run_sweep
    from rltune.driver.tune.recorder import Recorder
    from rltune.driver.tune.searcher import StageSearcher

    plan.preflight = lambda *_: ()  # RLlib's check has nothing to say about a quality
    for module in NEEDED_AT_END:
        importlib.import_module(module)
    if tracking != "off":
        from mlflow import MlflowClient

        MlflowClient(f"sqlite:///{Path.cwd() / 'mlflow.db'}").search_experiments()  # lays the store out
    meter.watch(Recorder, "on_trial_result", "on_trial_start", "on_trial_complete", "on_step_end")
    meter.watch(StageSearcher, "suggest")
    settings = request(*OVERRIDES, f"budget.trials={trials}", f"tracking={tracking}")
    outcome = run_sweep(settings, stream=io.StringIO(), trainable=InstantTrial)
    assert outcome.trials["complete"] == trials, outcome.trials
    files = {name: (outcome.folder / name).stat().st_size for name in ("ledger.db", "study.db")}
    return {f"{name}_kb": size / 1024 / trials for name, size in files.items()}


def run_tune(trials: int, meter: Meter) -> dict[str, float]:
    """Have Tune alone run the same trials, in warm processes too."""
    from rltune.cluster.ray_cluster import connect_ray, prepare_environment
    from rltune.config.schema import ClusterConfig

    prepare_environment()  # before Ray is imported
    from ray import tune

    from benchmarks.instant import InstantTrial
    from rltune.compat.tune_controller import adapt_tune
    from rltune.trial.assignment import Assignment

    class Count(tune.Callback):
        def on_trial_result(self, *args: Any, **info: Any) -> None:
            meter.add()

    def assign(number: int) -> dict[str, Any]:
        budget = {"env_steps": REPORTS * 100, "reports": REPORTS, "stall_s": 600.0}
        budget |= {"checkpoint_every_s": 1e9, "replay_gb": 0}
        about = {"number": number, "params": {"quality": 0.5}, "seeds": (number,), "sweep": str(Path.cwd())}
        how = {"threads": 1, "engine": "fast", "build": {"algo": {"name": "instant"}, "env": {}}}
        return dict(vars(Assignment(**about, **budget, **how)))

    numbers = itertools.count()
    with connect_ray(ClusterConfig()), adapt_tune(one_process=True):
        tune.Tuner(
            tune.with_resources(InstantTrial, {"CPU": 1}),
            param_space={"assignment": tune.sample_from(lambda spec: assign(next(numbers)))},
            tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=True, max_concurrent_trials=2),
            run_config=tune.RunConfig(
                name="tune", storage_path=str(Path.cwd()), callbacks=[Count()], verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            ),
        ).fit()  # fmt: skip
    assert meter.count == trials * REPORTS
    return {}


def one(trials: int, kind: str, profile: bool) -> dict[str, Any]:
    """Run it in this process, in the present folder."""
    meter, profiler = Meter(trials * REPORTS), cProfile.Profile()
    began = time.perf_counter()
    if profile:
        profiler.enable()
    files = run_tune(trials, meter) if kind == "tune" else run_ours(trials, kind, meter)
    profiler.disable()
    if profile:
        for order in ("tottime", "cumulative"):
            pstats.Stats(profiler, stream=sys.stderr).sort_stats(order).print_stats(45)
    return {"trials": trials, "wall_s": time.perf_counter() - began, **meter.figures(), **files}


def measure(trials: int, kind: str, profile: bool) -> dict[str, Any]:
    """Run it in a process and a folder of its own."""
    typed = [sys.executable, "-m", "benchmarks.driver", "--one", kind, "--trials", str(trials)]
    with tempfile.TemporaryDirectory(prefix="bench-driver-") as folder:
        done = subprocess.run(
            typed + ["--profile"] * profile,
            cwd=folder,
            env=make_environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    names = [f"driver, {REPORTS} reports a trial", "CPU ms a report (first, last tenth)", "recording it"]
    names += ["starts, ends", "sending", "reports/s", "memory kB a trial", "ledger.db, study.db kB a trial"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for got in record["results"]:
        first, last = got["cpu_ms_first_last"]
        cells = [f"{KINDS[got['kind']]}, {got['trials']:,} trials", f"{got['cpu_ms']:.2f} ({first:.2f}, {last:.2f})"]
        cells += [f"{got[key]:.2f}" for key in ("recording_ms", "trials_ms", "sending_ms")]
        cells += [f"{got['reports_per_s']:.0f}", f"{got['memory_kb']:.1f}"]
        cells += [", ".join(f"{got[key]:.1f}" for key in ("ledger.db_kb", "study.db_kb") if key in got)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", default="500", help="comma-separated")
    parser.add_argument("--quick", action="store_true", help="100 trials, no record")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    parser.add_argument("--profile", action="store_true", help="print where the driver's time goes")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/driver.json")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(int(arguments.trials), arguments.one, arguments.profile)), flush=True)
        return
    results = [
        {"kind": kind, **measure(trials, kind, arguments.profile)}
        for trials in ((100,) if arguments.quick else map(int, arguments.trials.split(",")))
        for kind in arguments.kinds.split(",")
    ]
    record = make_record("driver", 1, results)
    print(table(record))
    if arguments.json or not arguments.quick:
        write_record(record, arguments.json)


if __name__ == "__main__":
    main()
