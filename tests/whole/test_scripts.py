"""Scripts against REST: submit, wait, read the reason of a failure, and fetch the policy of the best trial."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ended import write_sweep

from rltune.checkpoints.store import compute_digest
from rltune.ledger.lease import take_lease
from rltune.ledger.storage import open_ledger
from rltune.records import CheckpointRecord
from rltune.service.folder import ADDRESS, TOKEN
from rltune.service.processes import Ending
from tests.policies.bundles import BOX, write_linear
from tests.service.serviced import Serviced, run_service

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
(BY_REST,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "import requests" in block)
# A client that openapi-python-client has made of OpenAPI, in whose answers each word is an attribute.
BY_GENERATED_CLIENT = """
import os, sys, time
from rltune_client import AuthenticatedClient
from rltune_client.api.default import policy, result, show, submit
from rltune_client.models import SubmitBody, SweepDescription

client = AuthenticatedClient(os.environ["RLTUNE_SERVICE"], os.environ["RLTUNE_SERVICE_TOKEN"])
sweep = submit.sync(client=client, body=SubmitBody(overrides=["algo=ppo", "env=cartpole"], name="by-rest"))
if not isinstance(sweep, SweepDescription):
    sys.exit(f"{sweep.error}; try {sweep.try_}")
while sweep.state in ("queued", "running"):
    time.sleep(1)
    sweep = show.sync("by-rest", client=client)
if sweep.state != "complete":
    sys.exit(f"{sweep.state.value}: {sweep.reason}")
best = result.sync("by-rest", client=client).best
print(best.score, best.params.to_dict())
open("policy.zip", "wb").write(policy.sync_detailed("by-rest", client=client).content)
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serviced]:
    with run_service(tmp_path / "outputs") as service:
        yield service


def end_soon(service: Serviced, is_failed: bool) -> None:
    """Play the driver of the sweep, once it was submitted."""
    deadline = time.monotonic() + 60
    while not service.queue.list():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    service.sweeps.dispatcher.step()
    sweep = write_sweep(service.sweeps.folder.sweeps / "by-rest", 4, None, "failed" if is_failed else "complete")
    best = sweep / "trials" / "3" / "best"
    write_linear(best / "policy", BOX, {"id": "CartPole-v1"})
    with closing(open_ledger(sweep)) as ledger:
        take_lease(ledger).release()
        ledger.change_sweep(status="failed" if is_failed else "complete")
        record = CheckpointRecord("trials/3/best", 1000, 1.0, compute_digest(best))
        ledger.trials.replace_checkpoint(3, record)
    reason = "every trial has failed: sensor unplugged"
    service.processes.endings["by-rest"] = Ending(1, "failed", reason) if is_failed else Ending(0, "complete")
    service.sweeps.dispatcher.step()


def run_script(
    service: Serviced, script: str, folder: Path, is_failed: bool, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    driver = threading.Thread(target=end_soon, args=(service, is_failed))
    driver.start()
    variables = os.environ | {ADDRESS: service.address, TOKEN: "a-token", "PYTHONPATH": str(folder)}
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(script)
    command = [python, "script.py"]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=90, check=False)
    driver.join(90)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("is_failed", [False, True])
def test_a_script_needs_nothing_but_rest(service: Serviced, tmp_path: Path, is_failed: bool) -> None:
    assert len(BY_REST.split("session = ")[1].splitlines()) <= 20
    done = run_script(service, BY_REST, tmp_path / "script", is_failed)
    check_done(done, tmp_path / "script", is_failed)


def check_done(done: subprocess.CompletedProcess[str], folder: Path, is_failed: bool) -> None:
    if is_failed:
        assert done.returncode == 1, done.stderr
        assert "sensor unplugged" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        score, params = done.stdout.split(" ", 1)
        assert float(score) == 30.0
        assert "'lr'" in params
        with zipfile.ZipFile(folder / "policy.zip") as packed:
            assert json.loads(packed.read("policy.json"))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("is_failed", [False, True])
def test_a_generated_client_reads_each_answer(service: Serviced, tmp_path: Path, is_failed: bool) -> None:
    generator = shutil.which("openapi-python-client")
    if generator is None:
        pytest.skip("openapi-python-client is not installed; it may lie in any environment of PATH")
    file, folder = tmp_path / "openapi.json", tmp_path / "script"
    file.write_text(service.ask("GET", "/api/openapi.json").text)
    folder.mkdir()
    options = ["--path", str(file), "--meta", "none", "--output-path", str(folder / "rltune_client")]
    made = subprocess.run([generator, "generate", *options], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "WARNING" not in made.stdout + made.stderr
    # Its environment has what clients need.
    python = Path(generator).resolve().parent / "python"
    check_done(run_script(service, BY_GENERATED_CLIENT, folder, is_failed, python), folder, is_failed)
