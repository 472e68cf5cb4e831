"""What benchmarks/ publishes: ratios round by round, tables made from records, peers with the same settings."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from composing import compose

from benchmarks import engine, gpu, importance, records, runners, scale, shared_settings, spaces, sweep, tables
from rltune.config.validation import parse_config
from rltune.driver.plan import make_plan

ROOT = Path(__file__).parents[2]
LIGHT = (
    "cluster",
    "coverage",
    "defaults",
    "driver",
    "engine",
    "fork_server",
    "gpu",
    "intervals",
    "learning",
    "parity",
    "peers",
    "rltools",
    "run",
    "runners",
    "sac_loss",
    "scale",
    "spaces",
    "sweep",
    "tables",
    "tuned",
    "zoo",
)
HEAVY = ("plain_ray",)  # these import RLlib as they start
pytestmark = [pytest.mark.fast, pytest.mark.nightly]


def speed_record(**contenders):
    """A record of one case; two rounds of one second each, environment steps per contender."""
    figures = {
        kind: {"environments": "single", "rounds": [[steps, 1.0] for steps in rounds]}
        for kind, rounds in contenders.items()
    }
    return {**records.make_record("engine", 2, {"dqn_cartpole": figures}), "commit": "abc1234"}


def sweep_record(**walls):
    """A record of contenders by the wall seconds of their rounds."""
    rounds = {
        kind: [
            {"wall_s": wall, "env_steps": 1000, "evaluation_steps": 500, "stopped": 1, "best": None} for wall in seconds
        ]
        for kind, seconds in walls.items()
    }
    return records.make_record("sweep", 2, [{"trials": 8, "env_steps": 20_000, "contenders": rounds}])


def test_a_ratio_is_the_median_of_rounds_not_of_sides():
    # Both were slow in the second round. The medians of the sides, 10 and 4, would give 2.5.
    assert records.compare_rounds([20, 2, 10], [4, 1, 5]) == records.Spread(2.0, 2.0, 5.0)


def test_a_ratio_needs_both_sides_of_every_round():
    with pytest.raises(ValueError, match="shorter"):
        records.compare_rounds([1, 2], [1])
    with pytest.raises(ValueError, match="no rounds"):
        records.compare_rounds([], [])


@pytest.mark.parametrize(("ratio", "shown"), [(0.871, "0.87"), (3.94, "3.9"), (9.96, "10"), (1234.5, "1,234")])
def test_a_ratio_shows_two_digits(ratio, shown):
    assert records.show(ratio) == shown


def test_pages_are_what_the_records_make():
    differ = [page.name for page in tables.PAGES if tables.fill(page.read_text()) != page.read_text()]
    assert not differ, "python -m benchmarks.tables"


def test_a_figure_changed_by_hand_is_found(tmp_path):
    (tmp_path / "engine.json").write_text(json.dumps(speed_record(ours=[100, 120], sb3=[50, 40])))
    page = tables.fill("before\n<!-- table: engine -->\n<!-- end -->\nafter\n", tmp_path)
    assert "| 110 (220) | 45 (90) | 2.5 (2.0 to 3.0) |" in page
    assert page == tables.fill(page, tmp_path) == tables.fill(page.replace("2.5", "3.5"), tmp_path)
    assert page.startswith("before\n")
    assert page.endswith("<!-- end -->\nafter\n")


def test_what_was_not_measured_says_so(tmp_path):
    assert "benchmarks.engine" in tables.make_table("engine", tmp_path)
    assert "benchmarks.learning" in tables.make_table("learning", tmp_path)
    (tmp_path / "engine.json").write_text(json.dumps(speed_record(ours=[1, 1], sb3=[1, 1])))
    lines = tables.make_table("speed", tmp_path).splitlines()
    assert [line.count("not measured") for line in lines] == [0, 0, 2, 1, 2]
    rows = engine.table(speed_record(ours=[1, 1], sb3=[1, 1])).splitlines()
    complete = ["not measured" not in row for row in rows[2:]]
    assert complete == [case == "dqn_cartpole" for case in engine.CASES]
    assert len({row.count("|") for row in rows}) == 1
    rows = sweep.table(sweep_record(ours=[1.0, 1.0])).splitlines()
    assert [row.count("not measured") for row in rows] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len({row.count("|") for row in rows}) == 1


def test_a_native_vector_environment_is_named():
    figures = {
        "ours": {"environments": "native"},
        "rllib": {"environments": "single"},
        "sb3": {"environments": "single"},
    }
    assert engine.describe_environments(figures) == "native: rltune; single: stock RLlib, SB3"
    assert engine.describe_environments({"ours": {"environments": "single"}}) == "single"


def test_steps_and_spread_stand_beside_a_sweeps_ratio(tmp_path):
    record = sweep_record(ours=[10.0, 20.0], zoo=[100.0, 80.0])
    assert sweep.table(record).splitlines()[6].endswith("| 90.0 |  | 1,000 | 500 | 1 |  | 7.0 (4.0 to 10) |")
    (tmp_path / "sweep.json").write_text(json.dumps(record))
    (row,) = [line for line in tables.make_table("speed", tmp_path).splitlines() if "8 PPO trials" in line]
    assert row.endswith("| 7.0 (4.0 to 10) | not measured |")


def test_a_record_says_what_is_needed_to_judge_it():
    for path in records.RESULTS.glob("*.json"):
        record = records.read_record(path.stem)
        assert f"{path.stem}_".startswith(f"{record['benchmark']}_"), (
            "what follows tells records of one benchmark apart"
        )
        assert record["machine"].keys() == {"cores", "cpu", "system"}
        assert "--quick" not in record["command"], f"{path.name} is a look, not a measurement"
        assert not re.search(r"/home|/work|/root|/tmp|/Users", path.read_text()), f"{path.name} names a folder"


def list_commits(content):
    """The commits that a record names, anywhere in it."""
    if isinstance(content, list):
        return {commit for each in content for commit in list_commits(each)}
    if not isinstance(content, dict):
        return set()
    own = {content["commit"].removesuffix(" with changes")} if "commit" in content else set()
    return own | list_commits(list(content.values()))


def is_known(commit):
    """Whether this repository has a commit."""
    return not subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True
    ).returncode


@pytest.mark.skipif(not is_known("4c508cb6"), reason="this is no whole clone of the repository")
@pytest.mark.parametrize("name", [path.stem for path in records.RESULTS.glob("*.json")])
def test_a_published_record_is_of_a_commit_that_exists(name):
    commits = list_commits(records.read_record(name))
    assert commits
    assert {commit for commit in commits if not is_known(commit)} == set()


def test_of_two_machines_the_readme_gives_the_lesser_ratio(tmp_path):
    (tmp_path / "engine.json").write_text(json.dumps(speed_record(ours=[100, 120], sb3=[10, 10])))
    (tmp_path / "engine_slow.json").write_text(json.dumps(speed_record(ours=[70, 90], sb3=[10, 10])))
    (row,) = [line for line in tables.make_table("speed", tmp_path).splitlines() if "DQN" in line]
    assert row.startswith("| DQN CartPole | 8.0 (7.0 to 9.0) |")


def test_a_record_that_lacks_its_origin_is_refused(tmp_path):
    (tmp_path / "engine.json").write_text('{"results": {}, "date": "2026-01-01"}')
    with pytest.raises(ValueError, match=r"engine\.json") as caught:
        records.read_record("engine", tmp_path)
    named = set(re.findall(r"\w+", str(caught.value)))
    assert named & set(records.KEYS) == set(records.KEYS) - {"results", "date"}


def test_a_record_repeats_its_command_without_its_place():
    words = ["--only", "ours,zoo", "--json", "/somewhere/sweep.json", "--rounds", "3"]
    command = records.describe_command("sweep", words).split()
    assert command == ["python", "-m", "benchmarks.sweep", "--only", "ours,zoo", "--rounds", "3"]


def test_peers_search_our_space_from_our_first_trial():
    config = parse_config(compose("run", "algo=ppo", "env=cartpole", *sweep.CONTENDERS["ours"].options))
    plan, study = make_plan(config), optuna.create_study()
    study.enqueue_trial(shared_settings.first_trial())
    theirs = study.ask()
    drawn = shared_settings.suggest(theirs)
    (first,) = plan.warm_starts
    assert drawn == pytest.approx({name: value for name, value in first.items() if name != "normalise"})
    ours = {dimension.label: dimension.distribution() for dimension in plan.space.dimensions}
    assert list(theirs.distributions.values()) == list(ours.values())
    for section in ("training", "env_runners", "rl_module", "learners"):
        assert plan.build.algo[section] == shared_settings.ALGO[section]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")  # it may be loaded already, and is run all the same
@pytest.mark.parametrize("name", LIGHT)
def test_a_benchmark_says_what_it_takes(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert re.search(r"second|minute|hour", capsys.readouterr().out.lower())


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_benchmark_says_it_as_well(name):
    description = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text())) or ""
    assert f"python -m benchmarks.{name}" in description
    assert re.search(r"second|minute|hour", description.lower())


def test_masks_are_compared_by_time_by_cpu_and_by_return():
    speed = {
        kind: {"environments": "single", "rounds": [[100, 4.0, each]] * 2} for kind, each in (("ours", 1), ("sb3", 3))
    }
    row = {"task": "ppo_jobshop", "training": 1.0, "env_steps": 1}
    returns = [
        {**row, "side": side, "seed": seed, "final": final + seed}
        for side, final in (("ours", 8.0), ("sb3", 6.0))
        for seed in (0, 1)
    ]
    page = spaces.table({"results": {"speed": {"ppo_jobshop": speed}, "returns": returns}})
    speeds, compared = (part.splitlines() for part in page.split("\n\n"))
    (line,) = [line for line in speeds if "| 25 (200) |" in line]
    assert line.endswith("| 1.0 (1.0 to 1.0) |  | 3.0 (3.0 to 3.0) |  |")
    assert len({line.count("|") for line in speeds}) == 1
    assert compared[-1].split(" | ")[3:6] == ["2 and 2", "8.50", "6.50"]
    assert compared[-1].split(" | ")[6].startswith("+2.00 [")


def test_env_runners_are_shown_in_multiples_and_cpu_a_step():
    rounds = {"0": [[100.0, 1000.0, 0.0]] * 2, "1": [[90.0, 40.0, 1050.0]] * 2, "2": [[190.0, 41.0, 1060.0]] * 2}
    lines = runners.table({"results": {"ppo, 1 ms a step": rounds}}).splitlines()
    assert lines[-1] == (
        "| ppo, 1 ms a step | 100; 1,000 | 90: 0.90 (0.90 to 0.90); 40 + 1,050 | 190: 1.9 (1.9 to 1.9); 41 + 1,060 |"
    )
    assert {line.count("|") for line in lines} == {5}


def test_without_a_gpu_nothing_is_measured_on_one(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match="2"):
        gpu.main()
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)


def test_trials_that_share_a_gpu_are_shown_alone_and_together():
    together = {"without MPS": {"1": [100.0], "4": [50.0, 60.0, 50.0, 40.0]}}
    lines = gpu.make_tables({"together": together}).splitlines()
    assert lines[2:] == [
        "| without MPS | 1 | 100 (100 to 100) | 100 |",
        "| without MPS | 4 | 50 (40 to 60) | 200 |",
    ]
    cap = {"total": 80_000.0, "part": 20_000.0, "taken": 19_500.0, "before": 100.0, "after": 5_000.0}
    kept, broken = gpu.make_tables({"cap": cap}), gpu.make_tables({"cap": {**cap, "taken": 30_000.0}})
    assert re.findall(r"[\d,]+(?= MB)", kept)[:2] == ["20,000", "19,500"]
    rates = {"float32": [100.0, 200.0], "bfloat16": [150.0, 300.0]}
    assert re.findall(r"[\d.]+(?= env| \()", gpu.make_tables({"precision": rates})) == ["150", "1.5"]
    assert ("NOT" in kept, "NOT" in broken) == (False, True)
    begun = {"forked": {"first_s": [4.0], "memory_mb": [100.0]}, "started": {"first_s": [], "memory_mb": []}}
    assert gpu.make_tables({"workers": begun}).splitlines()[2:] == ["| forked | 4.0 (4.0 to 4.0) | 100 (100 to 100) |"]
    waits = {"ppo": {"steps": 1024, "seconds": 2.0, "calls": {"cudaStreamSynchronize": [12, 0.5]}}}
    (line,) = [line for line in gpu.make_tables({"waits": waits}).splitlines() if "cudaStreamSynchronize" in line]
    assert {"1,024", "2.00", "12", "25.0%"} <= set(line.split())


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_each_part_types_sweeps_that_compose(monkeypatch, tmp_path, device):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (tmp_path / "control").touch()  # a daemon runs
    run = []

    def run_sweep(what, trials, env_steps, settings, look):
        config = parse_config(compose("run", *what, *gpu.SWEEP, f"budget.trials={trials}"))
        run.append((trials, settings))
        assert (config.resources.trials_per_gpu or config.cluster.num_cpus) == trials
        return gpu.Ran([1.0] * trials, [2.0] * trials, 100.0 * trials)

    monkeypatch.setattr(gpu, "run_sweep", run_sweep)
    together = gpu.measure_together(gpu.Look(device=device))
    counts = (1, 2, 4, 8, 16) if device == "cuda" else (1, 2)
    assert together["without MPS"] == {str(trials): [1.0] * trials for trials in counts}
    assert together.get("with MPS", {}).keys() == ({"2", "4", "8", "16"} if device == "cuda" else set())
    hidden = [bool(settings) for _, settings in run]  # whether a daemon that runs is hidden from the trials
    assert (hidden.count(True), hidden.count(False)) == ((5, 4) if device == "cuda" else (2, 0))
    assert gpu.measure_workers(gpu.Look(quick=True, device=device))["forked"] == {
        "first_s": [2.0],
        "memory_mb": [100.0],
    }
    assert gpu.measure_precision(gpu.Look(device=device)) == {"float32": [1.0] * 3, "bfloat16": [1.0] * 3}


def test_what_does_not_fit_into_a_parts_time_is_left_out(monkeypatch):
    monkeypatch.setattr(gpu, "run_sweep", lambda *arguments: pytest.fail("its time is over"))
    over = gpu.Look(until=time.monotonic())
    parts = {"together": gpu.measure_together(over), "workers": gpu.measure_workers(over)}
    parts["precision"] = gpu.measure_precision(over)
    assert all("(" not in line for line in gpu.make_tables(parts).splitlines())


def test_named_parameters_are_counted_over_simulated_sweeps():
    results = {"12 trials": {"lr": {"lr": 9, "any": 9, "gamma": 1}, "nothing": {}}}
    assert importance.table({"results": results, "rounds": 10}).splitlines()[2:] == [
        "| 12 trials | lr | 9 of 10 | lr 9, gamma 1 |",
        "| 12 trials | nothing | 0 of 10 | - |",
    ]


@pytest.mark.slow
def test_a_full_ledger_is_measured():
    figures = scale.measure("20")
    assert all(figures[f"{searcher}_ms"][0] > 0 for searcher in ("tpe", "rf"))
    assert figures["read_ms"] > 0
    assert figures["ledger_mb"] > 0
