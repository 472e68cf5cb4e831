"""The commands as they are typed: real processes in an empty folder, their exit codes and what they say."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from ended import damage_table, write_sweep
from joined import needs_mounts
from omegaconf import OmegaConf
from real import call_command, make_environment

from rltune.ledger.database import choose_journal, has_write_ahead_log

LATE = ("ray", "torch", "mlflow", "optuna")  # seconds each: nothing that a typo should wait for


@dataclass(frozen=True)
class Typed:
    """A command that was typed, and what came of it."""

    code: int
    out: str
    err: str
    loaded: frozenset[str]
    left: tuple[str, ...]


REFUSED = {
    # what is typed: the first words of the answer, the setting that is wrong and its value; empty where it is none
    "run algo=pp0": "algo=pp0",
    "run algo=zzz": "algo=zzz",
    "run certify=off certify.seeds=2": "certify.seeds=2",
    "run budget.env_steps=1.5e0": "budget.env_steps=1.5",
    "run budget.wall_time_s=abc": "budget.wall_time_s=abc",
    "run env=gym": "env.id",
    "run space.lr=nan": "space.lr=nan",
    "run space.lr=[loguniform,1e-2,1e-4]": "space.lr=[loguniform",
    "run output_dir=/sys/x": "output_dir=/sys/x",
    "run algo=sac env=cartpole": "algo=sac",
    "run output_dir=/proc/x": "output_dir=/proc/x",
    "run space.lrr=1": "space.lrr=1",
    "run budget.env_steps=-5": "budget.env_steps=-5",
    "run resources.cpus_per_trial=4096": "resources.cpus_per_trial=4096",
    "run resources.trials_per_gpu=4": "resources.trials_per_gpu=4",
    "run resources.trials_per_gpu=auto": "resources.trials_per_gpu=auto",
    "run resources=gpu_fraction": "resources.gpus_per_trial=0.25",
    "run cluster=address cluster.address=ray://head:10001": "cluster.address=ray://head:10001",
    "run env.id=NoSuchEnv-v0": "env.id=NoSuchEnv-v0",
    "run notify=https://hooks.example.org/T0/s3cret": "notify=",
    "resume sweep=nope tracking.uri=http://me:s3cret@x": "tracking.uri=",
    "run tracking=server tracking.uri=http://me:s3cret@127.0.0.1:9": "tracking.uri=",
    "run study.storage=postgresql://me:s3cret's@db.example/rl": "study.storage=",
    "run -m seed=1,2 name=twice": "name=twice",
    "run -m env.id=CartPole-v1,NoSuchEnv-v0": "env.id=NoSuchEnv-v0",
    "run -m algo=ppo,pp0": "algo=pp0",
    "run -m hydra/launcher=basic seed=1,2": "hydra/launcher=basic",
    "submit algo=pp0": "algo=pp0",
    "submit space.lr=nan": "",
    "submit -m seed=1,2 budget.trails=3": "budget.trails=3",
    "submit service.address=http://127.0.0.1:9": "",
    "logs sweep=nope": "",
    "logs": "sweep",
    "serve width=0": "width=0",
    "compare group=mine": "group=mine",
    "probe widths=[0]": "widths=[0]",
    "probe env.id=NoSuchEnv-v0": "env.id=NoSuchEnv-v0",
    "resume sweep=nope": "sweep=nope",
    "stop sweep=nope": "sweep=nope",
    "enqueue sweep=nope space.lr=1e-3": "sweep=nope",
    "retry sweep=nope trials=[1]": "sweep=nope",
    "watch sweep=nope": "sweep=nope",
    "run notify=slack://hook": "notify=slack://hook",
    "run tracking.kinds=[os:system]": "tracking.kinds=os:system",
    "run callbacks=[os:system]": "callbacks=[os:system]",
    "show -m sweep=a,b": "-m",
    "list hydra.run.dir=x": "hydra.run.dir=x",
    "stop wait=maybe": "wait=maybe",
    "resume budget.trails=10": "budget.trails=10",
    "show sweep=nope": "sweep=nope",
    "report sweep=nope": "sweep=nope",
    "show one two": "two",
    "list environments": "environments",
    "export": "policy",
    "compare sweeps=[nope]": "sweeps=nope",
    "evaluate env=nope": "env=nope",
    "evaluate": "policy",
    "evaluate policy=sweep:nope": "policy=sweep:nope",
    "run tracking.uri=http://127.0.0.1:9": "tracking.uri=http://127.0.0.1:9",
    "run name=-rf": "name=-rf",
    "run name=.service": "name=.service",
    "run notify=http://": "notify=http://",
    "run name=" + "n" * 300: "name=",
    "run algo=" + "n" * 300: "algo=",
    "show sweep=" + "n" * 300: "sweep=",
}
UNAVAILABLE = (  # what may be answered otherwise when it is typed again
    "run tracking.uri=http://127.0.0.1:9",
    "submit space.lr=nan",
    "submit service.address=http://127.0.0.1:9",
    "logs sweep=nope",
)
TYPED = (  # In processes of their own, which show the exit code, and what is imported before the answer.
    "run algo=pp0",
    "run env.id=NoSuchEnv-v0",
    "run -m algo=ppo,pp0",
    "run study.storage=postgresql://me:s3cret's@db.example/rl",
    "submit service.address=http://127.0.0.1:9",
    "run --help",
    "run --cfg job",
    "list output_dir=a",
    "show sweep=nope",
    "evaluate -m policy=sweep:nope seed=1,2",
)


def type_in(command: str, folder: Path) -> Typed:
    """Type ``python -m sweeps.<command>`` in an empty folder."""
    folder.mkdir()
    words = command.split()
    arguments = [sys.executable, "-X", "importtime", "-m", f"sweeps.{words[0]}", *words[1:]]
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=make_environment() | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = done.stderr.splitlines()
    said = "\n".join(line for line in lines if not line.startswith("import time:"))
    loaded = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    return Typed(done.returncode, done.stdout, said, frozenset(loaded), list_files(folder))


def list_files(folder: Path) -> tuple[str, ...]:
    return tuple(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """Type the commands of `TYPED`, two at a time."""
    root = tmp_path_factory.mktemp("typed")
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda item: type_in(item[1], root / str(item[0])), enumerate(TYPED))
        return dict(zip(TYPED, done, strict=True))


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call a command in this process, in an empty folder."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(command: str) -> Typed:
        folder = tmp_path / "folder"
        folder.mkdir()
        return Typed(*call_command(folder, *command.split()), frozenset(), list_files(folder))

    return run


def check_refusal(command: str, done: Typed) -> None:
    assert done.code == (75 if command in UNAVAILABLE else 2), done.err
    *_, what, allowed, fix = done.err.rstrip("\n").splitlines()
    assert what.startswith(f"error: {REFUSED[command]}")
    assert [line.split()[0] for line in (allowed, fix)] == ["allowed:", "try:"]
    assert "Traceback" not in done.err
    assert "s3cret" not in done.err + done.out
    said = [line for line in done.out.splitlines() if not line.startswith("checking ")]  # on a busy machine
    assert len(said) <= 1, "the line that says what is checked"
    assert done.left == (), "nothing is left behind"


@pytest.mark.parametrize("command", [command for command in REFUSED if command not in TYPED])
def test_a_request_that_cannot_be_met_is_refused(call, command):
    check_refusal(command, call(command))


@pytest.mark.parametrize("command", [command for command in TYPED if command in REFUSED])
def test_a_typo_is_answered_before_anything_heavy_is_loaded(typed, command):
    check_refusal(command, typed[command])
    assert sorted(typed[command].loaded & set(LATE)) == []


@pytest.mark.parametrize("command", [command for command in TYPED if command not in REFUSED])
def test_a_command_that_runs_no_sweep_leaves_nothing_behind(typed, command):
    assert typed[command].left == ()


def test_a_sweep_says_something_before_anything_heavy_is_loaded():
    """It is the first line on the terminal, and the next one comes after Ray's start."""
    said = (
        "import builtins, sys; from composing import compose; import sweeps.run;"
        f"end = lambda text, file, flush: sys.exit(str([flush, *({{*{LATE!r}}} & set(sys.modules)), text]));"
        "builtins.print = end;"
        "from rltune.cli.application.multirun import Job; sweeps.run.run.work([Job(compose('run'), (), False)])"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, env=env, check=False)
    flushed, *loaded, text = ast.literal_eval(done.stderr)
    assert flushed
    assert not loaded
    assert "CartPole-v1" in text


def list_choices(page: str, group: str) -> set[str]:
    """List what the help page offers for a group; ``group`` is written with its default."""
    (line,) = [line for line in page.splitlines() if line.startswith(f"  {group} ")]
    return set(re.findall(r"\w+", line.replace(group, "", 1)))


def test_help_names_the_groups_with_their_choices_and_every_setting_with_its_comment(typed):
    done = typed["run --help"]
    assert done.code == 0
    assert {"sweeps.run", "algo=ppo", "env=cartpole"} <= set(done.out.splitlines()[0].split())
    assert list_choices(done.out, "algo=ppo") >= {"a2c", "dqn"}
    assert "smoke" in list_choices(done.out, "experiment=null")
    assert re.search(r"^  trials: 48 # .+", done.out, re.MULTILINE)
    assert not typed["run --help"].loaded & {*LATE, "hydra"}


def test_help_has_all_that_a_commands_file_says_and_its_groups_alone(call):
    done = call("probe --help")
    assert done.code == 0
    assert re.search(r"^seconds: 2 # .+", done.out, re.MULTILINE)
    assert list_choices(done.out, "env=cartpole") >= {"acrobot", "bipedalwalker"}
    assert not re.search(r"^  searcher=", done.out, re.MULTILINE)


def test_help_after_overrides_names_the_command_and_shows_what_they_compose(call):
    done = call("run env=pendulum --help")
    assert done.code == 0
    assert "sweeps.run" in done.out.splitlines()[0].split()
    assert "Pendulum-v1" in done.out
    assert "ppo_cartpole" not in done.out  # what a group of ours holds that nobody types


def test_every_job_of_a_multirun_is_run_in_its_turn(typed):
    done = typed["evaluate -m policy=sweep:nope seed=1,2"]
    assert done.code == 2, "the worst of its jobs'"
    jobs = [line.split()[-1] for line in done.out.splitlines() if " of 2: " in line]
    assert jobs == ["seed=1", "seed=2"]


def test_a_command_that_shows_sweeps_loads_what_it_needs_alone(typed):
    for command in ("list output_dir=a", "show sweep=nope"):
        assert not typed[command].loaded & {*LATE, "hydra", "numpy", "pandas"}


def test_cfg_job_prints_the_composed_settings_and_runs_nothing(typed):
    done = typed["run --cfg job"]
    assert done.code == 0
    settings = OmegaConf.create(done.out)
    assert settings.algo.name == "ppo"
    assert settings.env.id == "CartPole-v1"
    assert settings.budget.trials == 48


def test_a_flag_that_prints_settings_refuses_json(call):
    done = call("run --cfg job json=true")
    assert (done.code, json.loads(done.out)["key"]) == (2, "json")


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.nightly)])
def test_a_signal_while_ray_starts_leaves_nothing(tmp_path, number):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "RAY_"))}
    env["HOME"] = str(tmp_path)  # where Ray would leave its token for all to read
    process = subprocess.Popen(
        [sys.executable, "-m", "sweeps.run", "name=early", "cluster.num_cpus=1"],
        cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    started, names = [], []
    while process.poll() is None and not any("gcs_server" in name for name in names):
        time.sleep(0.1)  # looking costs as much as the command itself
        with contextlib.suppress(psutil.Error):  # some live for a moment only
            started = psutil.Process(process.pid).children(recursive=True)
            names = [child.name() for child in started]
    process.send_signal(number)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 128 + number, out
    assert "Traceback" not in out
    assert list(tmp_path.iterdir()) == []
    assert psutil.wait_procs(started, timeout=60)[1] == []


def test_a_damaged_ledger_is_answered_in_three_parts(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    damage_table(write_sweep(tmp_path / "outputs/toy") / "ledger.db", "sweep_trials")
    show = (sys.executable, "-m", "rltune", "show", "sweep=toy")
    done = subprocess.run(show, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert [line.split(":")[0].strip() for line in done.stderr.splitlines()] == ["error", "allowed", "try"]
    assert "ledger.db" in done.stderr.splitlines()[0]


@needs_mounts
def test_a_read_only_sweep_can_be_shown(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    ledger = write_sweep(outputs / "toy") / "ledger.db"
    choose_journal(ledger)
    assert has_write_ahead_log(ledger)
    mount = f"mount --bind {outputs} {outputs} && mount -o remount,ro,bind {outputs}"
    shown = f"{mount} && exec {sys.executable} -m rltune show sweep=toy"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", shown], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "complete" in done.stdout
