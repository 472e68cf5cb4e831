"""A service started at boot, and by users with no home, no name, no terminal and a disk that cannot be written."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from machines import can_isolate
from real import PATIENCE_S, ROOT, Project, make_environment
from waiting import wait_until

from rltune.errors import StudyError
from rltune.service.client import Client
from rltune.service.folder import ServiceFolder

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

CODE = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
TINY = ("algo=ppo", "env=cartpole", "experiment=smoke", "tracking=off")
NO_HOME = ("unshare", "--user", "--map-user=54321", "--map-group=54321")  # A user that no file of passwords names.
# The folder is mounted at /mnt, an empty /tmp beside it can be written, and nothing else can.
READ_ONLY = 'mount --bind . /mnt && mount -t tmpfs tmpfs /tmp && mount -o remount,bind,ro / && cd /mnt && exec "$@"'
USERS = {
    "no-home": (*NO_HOME, "env", "HOME=/nonexistent"),
    "read-only": ("unshare", "--mount", "sh", "-c", READ_ONLY, "sh"),
    "all": ("unshare", "--mount", "sh", "-c", READ_ONLY, "sh", *NO_HOME, "env", "-i", "LANG=C", f"PYTHONPATH={CODE}"),
}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.skipif(not can_isolate(), reason="mounts of one's own need root (unshare)")
def test_any_user_submits_runs_and_reads(tmp_path: Path, user: str) -> None:
    """The service has a folder, and the person who submits has another, whose user has the same lacks."""
    project, elsewhere = Project(tmp_path / "served"), Project(tmp_path / "elsewhere")
    project.folder.mkdir()
    elsewhere.folder.mkdir()
    words = ("-m", "rltune", "serve", "port=0")
    log = (project.folder / "log").open("wb")
    serving = subprocess.Popen(
        [*USERS[user], sys.executable, *words],
        cwd=project.folder,
        env=make_environment() | {"PYTHONPATH": CODE},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    folder = ServiceFolder(project.folder / "outputs")
    try:
        wait_until(lambda: folder.read_address() is not None or serving.poll() is not None, 120)
        assert serving.poll() is None, (project.folder / "log").read_text()
        token = (project.folder / "outputs" / ".service" / "token").read_text().strip()
        address = folder.read_address()
        service = (f"RLTUNE_SERVICE={address}", f"RLTUNE_SERVICE_TOKEN={token}")
        before = (*USERS[user], *(() if "env" in USERS[user] else ("env",)), *service)
        for command in (("submit", *TINY, "name=one"), ("watch", "sweep=one"), ("show", "sweep=one", "json=true")):
            done = elsewhere.start("-m", "rltune", *command, before=before)
            out, _ = done.communicate(timeout=PATIENCE_S)
            assert done.returncode == 0, out
        assert '"status": "complete"' in out
        assert (project.folder / "outputs" / "one" / "report" / "index.html").is_file()
    finally:
        os.killpg(serving.pid, signal.SIGKILL)
        serving.wait()
        log.close()


def read_unit(folder: Path) -> dict[str, str]:
    """Read the service's section of the unit, with a person's folder in place of the example's."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read_string((ROOT / "deploy" / "rltune.service").read_text().replace("/srv/rltune", str(folder)))
    return dict(unit["Service"])


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as the unit's example has it: the environment's command in ``.venv/bin``."""
    command = tmp_path / ".venv" / "bin" / "rltune"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!{sys.executable}\nfrom rltune.cli.application.program import main\nmain()\n")
    command.chmod(0o755)
    return tmp_path


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_the_unit(installed: Path) -> None:
    text = (ROOT / "deploy" / "rltune.service").read_text().replace("/srv/rltune", str(installed))
    unit = installed / "rltune.service"
    unit.write_text(text.replace("User=rltune", "User=root"))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_unit_that_is_restarted_keeps_its_running_sweep(installed: Path) -> None:
    """As its unit says: started with that environment, ended by a signal to the service alone, and started again."""
    unit = read_unit(installed)
    assert unit["KillMode"] == "process"
    settings = dict(word.split("=", 1) for word in shlex.split(unit["Environment"]))
    folder = ServiceFolder(installed / "outputs")

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*shlex.split(unit["ExecStart"]), "port=0"],
            cwd=unit["WorkingDirectory"],
            env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: folder.read_address() is not None or process.poll() is not None, 120)
        assert process.poll() is None
        return process

    first = start()
    try:
        client = Client(output_dir=str(folder.sweeps))
        client.submit(*TINY, "budget.env_steps=300000", name="one")
        wait_until(lambda: (client.show("one")["sweep"] or {}).get("env_steps", 0) > 0, 240)
        first.terminate()
        first.wait(60)
    finally:
        first.kill()
    second = start()
    try:
        (ended,) = Client(output_dir=str(folder.sweeps)).wait("one", timeout_s=PATIENCE_S)
    except StudyError as error:
        pytest.fail(str(error))
    finally:
        second.kill()
        second.wait()
    assert (ended["state"], ended["attempts"]) == ("complete", 1), "no second driver"
