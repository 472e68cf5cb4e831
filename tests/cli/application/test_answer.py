"""What a command answers to a person and to a program."""

from __future__ import annotations

import io
import json
import math
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ended import make_certification, write_sweep

import rltune
from rltune.cli.application.answer import Answer, explain_crash, own_output, take_switch, to_json
from rltune.cli.application.program import main
from rltune.errors import CONTROLS, ConfigError
from rltune.ledger.lease import take_lease
from rltune.ledger.storage import open_ledger
from rltune.service.descriptions import SweepDescriptions
from rltune.service.folder import ServiceFolder
from rltune.service.submissions import Submissions


@dataclass(frozen=True)
class Part:
    """A value of ours."""

    number: float


class Unread(io.StringIO):
    """A pipe whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Type a command, and read its exit code and the one JSON document on standard output."""

    def type_words(*words: str) -> tuple[int, Any]:
        monkeypatch.setattr("rltune.cli.application.command.end_command", sys.exit)
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "argv", ["rltune", *words])
        with pytest.raises(SystemExit) as left:
            main()
        return int(str(left.value.code)), json.loads(capsys.readouterr().out)

    return type_words


@pytest.mark.parametrize("ends", [KeyboardInterrupt(15), SystemExit(15)])
def test_a_signal_is_answered_with_the_command_that_goes_on(
    type_in: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, ends: BaseException
) -> None:
    ends.add_note("rltune resume sweep=mine")

    def interrupt(*_: object) -> None:
        print("to standard error")
        raise ends

    monkeypatch.setattr("rltune.cli.listing.list_submissions", interrupt)
    code, answer = type_in("list", "json=true")
    assert (code, answer["exit_code"], answer["try"]) == (143, 143, "rltune resume sweep=mine")


def test_a_refusal_that_nobody_reads_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rltune", "nonesuch", "json=true"])
    monkeypatch.setattr(sys, "stdout", Unread())
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2


OWNS = """
import os
from rltune.cli.application.answer import own_output
own_output()
os.write(1, b"simulator")
os.system("echo child")
print("our own \\udcff")
"""


def test_standard_output_is_the_commands_own() -> None:
    """Of what is written to its descriptor, below Python and by children; what it cannot encode is escaped."""
    done = subprocess.run([sys.executable, "-c", OWNS], capture_output=True, check=True)
    assert done.stdout == b"our own \\udcff\n"
    assert done.stderr == b"simulatorchild\n"


def test_a_stream_that_is_no_descriptor_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """As in a notebook."""
    before = sys.stdout
    own_output()
    assert sys.stdout is before


@pytest.mark.parametrize("words", ["list +foo=1", "resume sweep=x +foo=1", "show sweep=x +foo=1"])
def test_a_key_that_the_command_does_not_have_cannot_be_added(type_in: Callable[..., Any], words: str) -> None:
    code, answer = type_in(*words.split(), "json=true")
    assert (code, answer["exit_code"]) == (2, 2)
    assert "foo" in answer["error"]
    assert "output_dir" in answer["allowed"]


def test_numbers_are_numbers_and_what_is_none_is_null() -> None:
    value = {"a": np.float32(0.5), "b": math.nan, "c": (1, Path("x")), "d": Part(-math.inf)}
    assert json.loads(to_json(value)) == {
        "a": 0.5,
        "b": None,
        "c": [1, "x"],
        "d": {"number": None},
    }


def test_unknown_bytes_break_no_report() -> None:
    error = explain_crash(ValueError("no file \udcff.stl"))
    for text in (error.pretty(), to_json(error.to_dict()), Path(error.fix.removeprefix("see ")).read_text()):
        assert "udcff.stl" in text.encode().decode()
    assert json.loads(to_json({"path": "\udcff"})) == {"path": "\udcff"}


def test_an_answer_has_nothing_that_changes_a_terminal() -> None:
    name = "a\x1b]0;b\x9b31m\u202ec"
    text = to_json({name: [name]})
    assert not CONTROLS.search(text)
    assert json.loads(text) == {name: [name]}


def test_a_switch_is_taken_out_of_the_command_line() -> None:
    assert take_switch("json", ["sweep=a", "json=True"]) == (True, ["sweep=a"])
    assert take_switch("json", ["json=true", "json=false"]) == (False, [])
    assert take_switch("check", ["json=true"]) == (False, ["json=true"])
    with pytest.raises(ConfigError) as refused:
        take_switch("check", ["check=maybe"])
    assert (refused.value.key, refused.value.value) == ("check", "maybe")


def test_sweeps_are_read_as_json(
    type_in: Callable[..., tuple[int, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sweep(tmp_path / "first")
    code, answer = type_in("list", f"output_dir={tmp_path}", "json=true")
    (sweep,) = answer["sweeps"]
    assert (code, answer["submissions"], answer["service"]) == (0, [], False)
    assert (sweep["name"], sweep["status"], sweep["algorithm"], sweep["seed"]) == ("first", "complete", "ppo", 0)
    empty = dict.fromkeys(("sweep", "group", "reason", "submitted", "queue", "starting", "stopping"))
    known = [
        {**empty, "name": each, "state": each, "in_words": each, "overrides": []} for each in ("queued", "refused")
    ]
    monkeypatch.setattr("rltune.cli.listing.list_submissions", lambda *_: (None, known))
    assert type_in("list", f"output_dir={tmp_path}", "json=true")[1]["submissions"] == known
    code, shown = type_in("show", "sweep=first", f"output_dir={tmp_path}", "json=true")
    assert code == 0
    assert shown["best"] == sweep["best"]
    assert shown["trials_best_first"][0]["score"] == sweep["best"]["score"]
    assert len(shown["trials_best_first"]) == sweep["trials"]["total"] == 12
    assert {trial["state"] for trial in shown["trials_best_first"]} == {"complete", "pruned"}


@pytest.mark.parametrize("status", ["running", "complete", "failed", "interrupted"])
def test_show_list_rest_and_python_say_the_same(
    status: str, type_in: Callable[..., tuple[int, Any]], tmp_path: Path
) -> None:
    write_sweep(tmp_path / "s", 3, make_certification() if status == "complete" else None, status)
    shown = type_in("show", "sweep=s", f"output_dir={tmp_path}", "json=true")[1]
    (listed,) = type_in("list", f"output_dir={tmp_path}", "json=true")[1]["sweeps"]
    with ServiceFolder(tmp_path).hold(), closing(Submissions(ServiceFolder(tmp_path).database, "here")) as queue:
        queue.change(queue.add("s", []), state=status, last_driver="an earlier one")
        (submission,) = SweepDescriptions(ServiceFolder(tmp_path)).list(queue)
    assert (shown["version"], shown["status"]) == (1, status)
    assert rltune.open_sweep(tmp_path / "s").describe() == shown
    assert json.loads(json.dumps(submission["sweep"], allow_nan=False)) == listed
    assert listed == {key: shown[key] for key in listed}


def test_a_watched_sweep_whose_driver_died_elsewhere_is_interrupted(
    type_in: Callable[..., tuple[int, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_sweep(tmp_path / "s", 2, None, "running")
    with closing(open_ledger(folder)) as ledger, take_lease(ledger):
        ledger.trials.start(ledger.trials.add({"lr": 1e-3}, [1]).number)
        monkeypatch.setattr("rltune.ledger.lease.DriverRecord.is_alive", lambda _: None)
        monkeypatch.setattr("rltune.ledger.lease.LEASE_S", 0.0)
        code, answer = type_in("watch", "sweep=s", f"output_dir={tmp_path}", "json=true")
    assert (code, answer["exit_code"], answer["status"]) == (130, 130, "interrupted")
    assert (answer["trials"]["running"], answer["trials"]["interrupted"]) == (0, 1)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (("run", "budget.trials=0"), "budget.trials", 0),
        (("run", "algo=PPO"), "algo", "PPO"),
        (("show", "sweep=nonesuch"), "sweep", "nonesuch"),
        (("run", "check=maybe"), "check", "maybe"),
        (("runn",), None, None),
        (("run", "--algo", "ppo"), "--algo", None),
        (("evaluate",), "policy", None),
    ],
)
def test_a_refusal_is_json_with_its_parts(
    type_in: Callable[..., tuple[int, Any]], words: tuple[str, ...], key: str | None, value: Any
) -> None:
    code, answer = type_in(*words, "json=true")
    assert (code, answer["exit_code"], answer["key"], answer["value"]) == (2, 2, key, value)
    assert answer["allowed"]
    assert answer["try"]


def test_a_request_is_checked_without_a_trace(
    type_in: Callable[..., tuple[int, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rltune.cluster.fork_server.begin_fork_server", lambda: pytest.fail("nothing is started"))
    code, answer = type_in("run", "env.id=CartPole-v1", "budget.trials=4", "check=true", "json=true")
    (sweep,) = answer["sweeps"]
    assert (code, answer["ok"], sweep["environment"], sweep["trials"]) == (0, True, "CartPole-v1", 4)
    assert sweep["search_env_steps"] == 400_000
    assert sweep["certification_env_steps"] == sweep["certification_runs"] * 100_000
    code, answer = type_in("run", "space.lr=[1e-4,1e-2]", "check=true", "json=true")
    assert (code, answer["key"]) == (2, "space.lr")
    assert not list(tmp_path.iterdir())


def test_an_exception_that_nobody_expects_is_answered_without_a_traceback(
    type_in: Callable[..., tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("http://maria:secret@host")

    monkeypatch.setattr("rltune.views.available._list_envs", fail)
    code, answer = type_in("list", "envs", "json=true")
    assert (code, answer["exit_code"]) == (1, 1)
    assert "KeyError" in answer["error"]
    file = Path(answer["try"].split()[-1])
    try:
        assert "in fail" in file.read_text()
        assert "secret" not in file.read_text() + answer["error"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    finally:
        file.unlink()


def test_a_crash_is_a_fault_and_no_wrong_request() -> None:
    error = explain_crash(ValueError("first\nsecond"))
    Path(error.fix.split()[-1]).unlink()
    assert (error.exit_code, error.key) == (1, "")
    assert Answer(None).exit_code == 0


def test_a_file_that_is_no_yaml_is_named_with_its_line(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("id: {a: 1\nname: x\n")
    with path.open() as file, pytest.raises(yaml.YAMLError) as caught:
        yaml.safe_load(file)
    error = explain_crash(caught.value)
    assert error.exit_code == 2
    assert f"{path}, line 2" in error.what
