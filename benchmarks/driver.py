"""What the driver costs: a sweep of instant trials, 20 reports each, with and without MLflow.

    python benchmarks/driver.py [--trials 500] [--tracking off,local] [--profile]

Seconds and CPU seconds per report in ledger, tracking's queue and console (`Recorder.on_trial_result`) and per trial
in starting and ending it; reports per second and resident memory over the sweep's tenths: neither may get worse.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
REPORTS = 20
BAR_MS = 5.0
OVERRIDES = (
    "+algo.training.quality=1.0", "~tuned", "~space", "+space.quality=[uniform,0,1]", "searcher=random",
    "scheduler=none", "certify=off", "certify.top=0", "tracking.register=false", "report=false", "name=driver",
    f"budget.env_steps={REPORTS * 100}",
    f"budget.reports={REPORTS}", "checkpoint.every_s=1e9",
)  # fmt: skip


class Meter:
    """Wraps the recorder's events, and keeps when each report came and what it took."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, float, float]] = []  # moment, seconds, CPU seconds of this thread
        self.events: dict[str, list[float]] = {}
        self.memory: list[tuple[int, float]] = []

    def watch(self, owner: type, name: str) -> None:
        """Time a method."""
        plain: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began, cpu = time.perf_counter(), time.thread_time()
            answer = plain(*args, **kwargs)
            took = time.perf_counter() - began
            self.events.setdefault(name, []).append(took)
            if name == "on_trial_result":
                self.reports.append((began, took, time.thread_time() - cpu))
                if len(self.reports) % 500 == 1:
                    self.memory.append((len(self.reports), resident_mb()))
            return answer

        setattr(owner, name, timed)

    def figures(self) -> dict[str, Any]:
        """The sweep in numbers."""
        tenth = max(2, len(self.reports) // 10)
        warm = self.reports[tenth // 2 :]  # the first few pay for imports
        first, last = warm[:tenth], warm[-tenth:]
        middle = len(self.memory) // 2
        return {
            "reports": len(self.reports),
            "report_ms": 1000 * sum(one[1] for one in warm) / len(warm),
            "report_cpu_ms": 1000 * sum(one[2] for one in warm) / len(warm),
            "report_cpu_ms_first_last": [1000 * sum(one[2] for one in part) / tenth for part in (first, last)],
            "reports_per_s_first_last": [(len(p) - 1) / (p[-1][0] - p[0][0]) for p in (first, last)],
            "trial_ms": {name: 1000 * sum(v) / len(v) for name, v in self.events.items() if name != "on_trial_result"},
            "rss_mb": [round(self.memory[i][1]) for i in (0, middle, -1)],
        }


def resident_mb() -> float:
    """This process's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def request(*overrides: str) -> Any:
    """What a command with these overrides would ask for."""
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore

    from rltune.config.schema import RunConfig
    from rltune.config.validation import parse_config
    from sweeps._command import conf_dir

    ConfigStore.instance().store("base_run", RunConfig)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return parse_config(compose("run", list(overrides)))


def one(trials: int, tracking: str, profile: bool) -> dict[str, Any]:
    """Run the sweep in this process, in the present folder."""
    from rltune.sweep import pipeline, plan
    from rltune.sweep.pipeline import run_sweep

    plan.preflight = lambda made: None  # RLlib's check has nothing to say about a quality
    settings = request(*OVERRIDES, f"budget.trials={trials}", f"tracking={tracking}")
    meter = Meter()
    enter = pipeline._work

    def work(*args: Any) -> Any:
        from rltune.sweep.tune.recorder import Recorder
        from rltune.sweep.tune.searcher import StudySearcher

        for name in ("on_trial_result", "on_trial_start", "on_trial_complete", "on_step_end"):
            meter.watch(Recorder, name)
        meter.watch(StudySearcher, "suggest")
        return enter(*args)

    pipeline._work = work
    from benchmarks.instant import InstantTrial

    profiler = cProfile.Profile()
    began, cpu = time.perf_counter(), time.process_time()
    if profile:
        profiler.enable()
    outcome = run_sweep(settings, stream=io.StringIO(), trainable=InstantTrial)
    profiler.disable()
    if profile:
        for order in ("tottime", "cumulative"):
            pstats.Stats(profiler, stream=sys.stderr).sort_stats(order).print_stats(45)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    ended = {"trials": dict(outcome.trials), "wall_s": wall_s, "driver_cpu_s": cpu_s}
    return {**ended, **meter.figures()}


def measure(trials: int, tracking: str, profile: bool) -> dict[str, Any]:
    """Run the sweep in a process and a folder of its own."""
    typed = [sys.executable, "-m", "benchmarks.driver", "--one", tracking, "--trials", str(trials)]
    paths = [str(HERE.parent), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}  # for Ray's workers, too
    with tempfile.TemporaryDirectory(prefix="bench-driver-") as folder:
        done = subprocess.run(
            typed + ["--profile"] * profile, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def table(results: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [
        "| driver, 20 reports a trial | trials | ms a report | CPU ms a report (first, last tenth) "
        "| reports/s (first, last tenth) | memory MB (start, middle, end) |",
        "|---|---|---|---|---|---|",
    ]
    for tracking, got in results.items():
        cpu = ", ".join(f"{value:.2f}" for value in got["report_cpu_ms_first_last"])
        rate = ", ".join(f"{value:.0f}" for value in got["reports_per_s_first_last"])
        cells = [f"tracking={tracking}", f"{got['trials']['total']}", f"**{got['report_ms']:.2f}** (<= {BAR_MS:g})"]
        cells += [f"{got['report_cpu_ms']:.2f} ({cpu})", rate, ", ".join(map(str, got["rss_mb"]))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--quick", action="store_true", help="100 trials")
    parser.add_argument("--tracking", default="off,local", help="comma-separated")
    parser.add_argument("--profile", action="store_true", help="print where the driver's time goes")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=RESULTS / "driver.json")
    arguments = parser.parse_args()
    trials = 100 if arguments.quick else arguments.trials
    if arguments.one:
        print(json.dumps(one(trials, arguments.one, arguments.profile)), flush=True)
        return
    results = {each: measure(trials, each, arguments.profile) for each in arguments.tracking.split(",")}
    print(table(results))
    machine = {"platform": platform.platform(), "cores": os.cpu_count()}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    record = {"date": time.strftime("%Y-%m-%d"), "machine": machine, "results": results}
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
