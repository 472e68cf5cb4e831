"""How far one driver goes: with how many trials at once, and after how many trials.

    python -m benchmarks.scale

About 15 minutes on two quiet cores; 5 with --quick, which keeps no record.
The first two things are measured in CPU milliseconds, so that other work on the machine disturbs little.

First, sweeps of instant trials with the shipped searcher and stopping rule. Tune, searcher, rule, ledger
and console are real, and so are Ray's futures that the driver waits for; but the trials live in two processes, since a
thousand would need a thousand. In the first row each is a process of its own. A turn of Tune's loop that only records a
report is *a report*: nothing else is decided while it lasts. Turns with a proposal, a start or an end are *a trial*.

Second, a ledger with many trials: what then takes a proposal, a view of the sweep, one picture of it on the terminal, a
reading of the newest reports for MLflow, and the reading of all trials by a resumed sweep.

Third, by the clock, how long a free slot waits for its next trial in a sweep with four slots and 500 ended trials: from
the report that ends one trial until the next one is proposed, with other trials' reports in between.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import make_environment
from benchmarks.driver import REPORTS, request, resident_mb
from benchmarks.records import make_record, write_record

OTHERS = [f"x{index}" for index in range(4)]  # searched beside the quality, which alone counts
OVERRIDES = (
    *(f"+algo.training.learner_config_dict.{name}=1.0" for name in ("quality", *OTHERS)), "~tuned", "~space",
    *(f"+space.{name}=[uniform,0,1]" for name in ("quality", *OTHERS)),
    "certify=off", "certify.top=0", "tracking.register=false", "report=false", "name=scale",
    f"budget.env_steps={REPORTS * 100}", f"budget.reports={REPORTS}", "checkpoint.every_s=1e9",
)  # fmt: skip
HOSTS = 2  # processes that the trials live in
TRIAL = ("proposal", "start", "end")  # what a turn that belongs to a trial has one of
CASES = (  # trials at once, trials, tracking, whether each is a process of its own
    (12, 80, "off", True), (12, 100, "off", False), (100, 150, "off", False), (1000, 1000, "off", False),
    (100, 100, "local", False),
)  # fmt: skip
DONE = (100, 1000, 5000)
SLOTS, WAITS = 4, 100  # and so many waits by each of
SEARCHERS = ("tpe", "rf", "random")
SAMPLE = 20  # proposals of each sampler beside those


class Times:
    """CPU milliseconds of the threads that were asked, one for each call, by name."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = defaultdict(list)

    def watch(self, owner: type, method: str, name: str) -> None:
        """Time a method."""
        plain = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            answer = plain(*args, **kwargs)
            if name != "proposal" or answer:  # Tune asks again and again while all slots are taken
                self.of[name].append(1000 * (time.thread_time() - began))
            return answer

        setattr(owner, method, timed)

    def watch_turns(self) -> None:
        """Time the turns of Tune's loop: those that record a report, and all others."""
        from ray.tune.execution.tune_controller import TuneController

        plain = TuneController.step

        def step(controller: Any) -> None:
            before, began = [len(self.of[name]) for name in ("recording", *TRIAL)], time.thread_time()
            plain(controller)
            took = 1000 * (time.thread_time() - began)
            after = [len(self.of[name]) for name in ("recording", *TRIAL)]
            recorded, *others = (new > old for new, old in zip(after, before, strict=True))
            kind = "trial" if any(others) else "report" if recorded else "idle"
            self.of[kind].append(took)

        TuneController.step = step

    def mean(self, name: str) -> float:
        """The mean; 0 without a call."""
        values = self.of[name]
        return sum(values) / len(values) if values else 0.0

    def quantile(self, name: str, share: float) -> float:
        """The value that this share of the calls does not exceed; 0 without a call."""
        values = sorted(self.of[name])
        return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


class Host:
    """A process with many trials in it; each call is one to one of them."""

    def __init__(self, trainable: Any) -> None:
        self._trainable, self._trials = trainable, {}

    def call(self, number: int, method: str, args: Any, kwargs: Any) -> Any:
        """Call a trial's method; ``__init__`` makes it, ``stop`` removes it."""
        if method == "__init__":
            self._trials[number] = self._trainable(**kwargs)
        elif method == "stop":
            self._trials.pop(number).stop()
        elif method != "__ray_ready__":
            return getattr(self._trials[number], method)(*args, **kwargs)
        return None


class HostedTrial:
    """Stands for an actor's handle."""

    def __init__(self, host: Any, number: int) -> None:
        self._host, self._number, self._actor_id = host, number, host._actor_id

    def __getattr__(self, method: str) -> Any:
        return HostedMethod(self._host, self._number, method)


class HostedMethod:
    """Stands for an actor's method."""

    def __init__(self, host: Any, number: int, method: str) -> None:
        self._host, self._about = host, (number, method)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self._host.call.remote(*self._about, args, kwargs)


class HostedTrials:
    """Stands for an actor's class."""

    def __init__(self, trainable: Any) -> None:
        import ray

        self._hosts = [ray.remote(num_cpus=0)(Host).remote(trainable) for _ in range(HOSTS)]
        self._made = 0

    def remote(self, **kwargs: Any) -> HostedTrial:
        """Make a trial."""
        self._made += 1
        made = HostedTrial(self._hosts[self._made % HOSTS], self._made)
        HostedMethod(made._host, self._made, "__init__").remote(**kwargs)
        return made


def make_room(at_once: int, own_processes: bool) -> None:
    """Let so many trials run at once, whatever the machine has.

    Args:
        at_once: How many.
        own_processes: Whether each is a process, as in any other sweep.
    """
    import ray
    from ray.air.execution import FixedResourceManager

    from rltune.cluster.slots import Slots
    from rltune.compat import tune_controller

    room = dict.fromkeys(("CPU", "GPU", "memory"), math.inf)
    FixedResourceManager._available_resources = property(lambda manager: room)
    Slots.count = property(lambda slots: at_once)
    hosted: list[HostedTrials] = []

    def get(cache: Any, trainable: type) -> Any:
        actors = ray.remote(trainable)
        if own_processes:
            options = actors.options
            actors.options = lambda **given: options(num_cpus=0)
        else:
            hosted.extend([HostedTrials(trainable)] if not hosted else [])
            actors.options = lambda **given: hosted[0]
        return actors

    tune_controller._PlainActors.get = get


def run_at_once(at_once: int, trials: int, tracking: str, own_processes: bool) -> dict[str, Any]:
    """Run a sweep in the present folder, and measure it."""
    from rltune.cluster.ray_cluster import prepare_environment

    prepare_environment()  # before Ray is imported

    from benchmarks.instant import InstantTrial
    from rltune.driver import plan
    from rltune.driver.run import run_sweep
    from rltune.driver.tune.proposals import SearchProposals
    from rltune.driver.tune.recorder import Recorder
    from rltune.tracking.feed import Feed
    from rltune.tracking.mlflow_runs import MLflowRuns

    plan.preflight = lambda *_: ()  # RLlib's check has nothing to say about a quality
    times = Times()
    times.watch(Recorder, "on_trial_result", "recording")
    times.watch(Recorder, "on_trial_start", "start")
    times.watch(Recorder, "on_trial_complete", "end")
    times.watch(SearchProposals, "propose", "proposal")
    times.watch(Feed, "_deliver", "sending")
    for method in ("log", "create", "end"):
        times.watch(MLflowRuns, method, "request")
    times.watch_turns()
    make_room(at_once, own_processes)
    settings = request(*OVERRIDES, f"budget.trials={trials}", f"tracking={tracking}", "resources.max_concurrent=2")
    outcome = run_sweep(settings, stream=io.StringIO(), trainable=InstantTrial)
    assert sum(outcome.trials[state] for state in ("complete", "pruned")) == trials, outcome.trials
    reports = len(times.of["recording"])
    return {
        "reports": reports,
        "report_ms": [times.mean("report"), times.quantile("report", 0.5), times.quantile("report", 0.99)],
        "recording_ms": times.mean("recording"),
        "trial_ms": sum(times.of["trial"]) / trials,
        "idle_s": sum(times.of["idle"]) / 1000,
        "proposal_ms": times.mean("proposal"),
        "request_ms": times.mean("request"),
        "requests": len(times.of["request"]),
        "sending_s": sum(times.of["sending"]) / 1000,
        "memory_mb": resident_mb(),
    }


def run_waits(searcher: str) -> dict[str, Any]:
    """Run a sweep in the present folder, and time how long its slots were free once it had many trials."""
    from rltune.cluster.ray_cluster import prepare_environment

    prepare_environment()  # before Ray is imported
    from benchmarks.instant import PacedTrial
    from rltune.driver import plan
    from rltune.driver.run import run_sweep
    from rltune.driver.tune.recorder import Recorder
    from rltune.driver.tune.searcher import StageSearcher

    plan.preflight = lambda *_: ()
    freed: deque[float] = deque()
    waits: list[float] = []
    complete, suggest = Recorder.on_trial_complete, StageSearcher.suggest

    def on_trial_complete(self: Any, *args: Any, **kwargs: Any) -> None:
        freed.append(time.monotonic())  # the slot is free; what the driver still does to the ended trial counts
        complete(self, *args, **kwargs)

    def propose(self: Any, trial_id: str) -> Any:
        answer = suggest(self, trial_id)
        if isinstance(answer, dict) and freed:
            waits.append(time.monotonic() - freed.popleft())
        return answer

    Recorder.on_trial_complete, StageSearcher.suggest = on_trial_complete, propose
    make_room(SLOTS, own_processes=False)
    trials = PacedTrial.after + SLOTS + WAITS
    more = (f"budget.trials={trials}", "tracking=off", f"searcher={searcher}", f"resources.max_concurrent={SLOTS}")
    outcome = run_sweep(request(*OVERRIDES, *more), stream=io.StringIO(), trainable=PacedTrial)
    assert sum(outcome.trials[state] for state in ("complete", "pruned")) == trials, outcome.trials
    late = sorted(1000 * wait for wait in waits[-WAITS:])
    return {
        "waits": len(late),
        "p50_ms": late[len(late) // 2],
        "p99_ms": late[int(0.99 * len(late)) - 1],
        "most_ms": late[-1],
    }


def fill_ledger(ledger: Any, settings: Any, space: Any, trials: int) -> None:
    """Put trials with 20 reports each into a ledger, as if they had ended."""
    from sqlalchemy import insert

    from rltune.ledger import tables
    from rltune.ledger.database import connect_ledger

    luck, now, rows, reports = random.Random(0), time.time(), [], []
    for number in range(trials):
        drawn = {label: luck.random() for label in space.distributions()}
        rows.append({
            "id": number + 1, "sweep_id": 1, "kind": "trials", "number": number, "state": "COMPLETE", "drawn": drawn,
            "params": space.decode(drawn), "seeds": [number], "revision": 2, "env_steps": settings.budget.env_steps,
            "began_s": now, "ended_s": now + number, "stop_reason": "done",
        })  # fmt: skip
        for index in range(1, REPORTS + 1):
            steps, value = index * 100, luck.random()
            numbers = dict.fromkeys(("score", "return_min", "return_max", *OTHERS), value)
            about = {"trial_id": number + 1, "nominal_steps": steps, "env_steps": steps}
            reports.append(about | {"score": value, "numbers": numbers, "time_s": now})
    engine = connect_ledger(ledger.url)
    with engine.begin() as connection:
        connection.execute(insert(tables.SWEEP_TRIALS), rows)
        connection.execute(insert(tables.REPORTS), reports)
        marks = {"tracker": "MLflow", "revision": 2, "checkpoint": ""}
        connection.execute(insert(tables.TRIAL_DELIVERIES), [marks | {"trial_id": row["id"]} for row in rows])
    engine.dispose()


def run_done(trials: int) -> dict[str, Any]:
    """Measure a driver's work with so many trials in its ledger, in the present folder."""
    from rltune.config.settings_file import format_settings
    from rltune.driver.plan import make_plan
    from rltune.ledger.ledger import Ledger
    from rltune.ledger.optuna_study import OptunaStudy
    from rltune.ledger.storage import set_journal, start_ledger
    from rltune.ledger.trial_table import TrialTable
    from rltune.search.sampler_view import choose_view
    from rltune.search.samplers import build_sampler
    from rltune.views.console import Console
    from rltune.views.sweep_view import SweepView

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    times, folder = Times(), Path.cwd()
    settings = request(*OVERRIDES, f"budget.trials={trials}", "tracking=off")
    plan = make_plan(settings)
    ledger = start_ledger(None, folder, new=True)
    set_journal(ledger, shared=False)
    fill_ledger(ledger, settings, plan.space, trials)
    for owner, method, name in (
        (TrialTable, "records", "read"), (Console, "draw", "picture"), (Ledger, "read_reports_after", "sender"),
        (Ledger, "read_pending_trials", "sender"),
    ):  # fmt: skip
        times.watch(owner, method, name)
    study = OptunaStudy(ledger.trials, choose_view(plan.traits), plan.read_drawn)
    # the forest with a model each time: half of its proposals take no more than random ones
    args: dict[str, dict[str, Any]] = {"tpe": {}, "rf": {"random_fraction": 0.0}, "random": {}}
    samplers = {name: partial(build_sampler, name, given) for name, given in args.items()}
    study.propose({}, samplers["rf"](0), plan.space.draw)  # imports what the forest needs
    newest = REPORTS * trials - 5
    for index in range(SAMPLE):
        for name, build in samplers.items():
            began = time.thread_time()
            study.propose({}, build(trials + index), plan.space.draw)
            times.of[name].append(1000 * (time.thread_time() - began))
        ledger.read_reports_after(newest, 2000)
        ledger.read_pending_trials("MLflow", with_checkpoints=True)
    ledger.change_sweep(config=format_settings(plan.settings))
    console, view = Console(Terminal()), None
    times.watch(SweepView, "read", "view")
    for _ in range(6):
        view = SweepView.read(ledger, view)
        console.draw(view)
    console.close()
    first_ms, *later_ms = times.of["view"]
    ledger.close()
    return {
        "tpe_ms": [times.quantile("tpe", 0.5), times.quantile("tpe", 1.0)],
        "rf_ms": [times.quantile("rf", 0.5), times.quantile("rf", 1.0)],
        "random_ms": times.quantile("random", 0.5),
        "view_ms": [first_ms, sum(later_ms) / len(later_ms)],
        "picture_ms": times.mean("picture"),
        "sender_ms": sum(times.of["sender"]) / SAMPLE,
        "read_ms": times.mean("read"),
        "ledger_mb": (folder / "ledger.db").stat().st_size / 2**20,
    }


def measure(*words: str) -> dict[str, Any]:
    """Measure one case in a process and a folder of its own."""
    typed = [sys.executable, "-m", "benchmarks.scale", "--one", *words]
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        done = subprocess.run(typed, cwd=folder, env=make_environment(), stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    names = ["trials at once", "CPU ms a report, mean (p50, p99)", "of it ours", "a trial", "of it its proposal"]
    names += ["a request to MLflow", "memory MB"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for got in record["results"]["at_once"]:
        kind = "processes" if got["own_processes"] else "MLflow" if got["tracking"] != "off" else ""
        mean, half, most = got["report_ms"]
        cells = [f"{got['at_once']:,} {kind}".strip(), f"{mean:.1f} ({half:.1f}, {most:.1f})"]
        cells += [f"{got['recording_ms']:.1f}", f"{got['trial_ms']:.0f}"]
        cells += [f"{got['proposal_ms']:.0f}", f"{got['request_ms']:.1f}" if got["requests"] else ""]
        cells += [f"{got['memory_mb']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    names = ["trials done", "CPU ms a proposal by TPE, p50 (most)", "by the forest's model", "random"]
    names += ["a view of the sweep, first", "later", "a picture on the terminal"]
    names += ["a reading for MLflow", "reading all, when resumed", "ledger.db MB"]
    lines += ["", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for got in record["results"]["done"]:
        cells = [f"{got['done']:,}"]
        cells += ["{:.0f} ({:.0f})".format(*got[key]) if key in got else "" for key in ("tpe_ms", "rf_ms")]
        cells += [f"{got['random_ms']:.1f}"]
        cells += [f"{ms:.1f}" for ms in got["view_ms"]] if "view_ms" in got else ["", ""]  # Older records have none.
        cells += [f"{got[key]:.1f}" for key in ("picture_ms", "sender_ms", "read_ms")]
        lines.append(f"| {' | '.join([*cells, str(round(got['ledger_mb']))])} |")
    waits = record["results"].get("waits", [])  # older records have none
    names = ["searcher, 4 slots, 500 trials done", "ms that a free slot waits, p50", "p99", "most"]
    lines += ["", f"| {' | '.join(names)} |", "|---" * len(names) + "|"] if waits else []
    for got in waits:
        cells = [got["searcher"], *(f"{got[key]:.0f}" for key in ("p50_ms", "p99_ms", "most_ms"))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smaller cases, no record")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/scale.json")
    arguments = parser.parse_args()
    if arguments.one:
        given = [json.loads(word) for word in arguments.one]
        run = run_at_once if len(given) > 1 else run_waits if isinstance(given[0], str) else run_done
        print(json.dumps(run(*given)), flush=True)
        return
    keys = ("at_once", "trials", "tracking", "own_processes")
    cases = [
        ("at_once", dict(zip(keys, case, strict=True)), case) for case in (CASES[1:3] if arguments.quick else CASES)
    ]
    cases += [("done", {"done": trials}, (trials,)) for trials in (DONE[:2] if arguments.quick else DONE)]
    cases += [("waits", {"searcher": one}, (one,)) for one in (SEARCHERS[:1] if arguments.quick else SEARCHERS)]
    results: dict[str, list[dict[str, Any]]] = {"at_once": [], "done": [], "waits": []}
    record = make_record("scale", 1, results)
    for number, (part, about, case) in enumerate(cases, 1):
        print(f"{number} of {len(cases)}: {', '.join(map(str, case))}", file=sys.stderr, flush=True)
        results[part].append({**about, **measure(*map(json.dumps, case))})
        if arguments.json or not arguments.quick:
            write_record(record, arguments.json)  # what there is by now, should the rest be ended
    print(table(record))


if __name__ == "__main__":
    main()
