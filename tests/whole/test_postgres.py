"""PostgreSQL for real: the study in it, and a server that passes artifacts on over it; logins appear nowhere."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import postgres
import pytest
from checkpoints import make_sweep
from mlflow import MlflowClient
from optuna.samplers import RandomSampler
from server import Server
from toy import TOY, ToyTrial

from rltune.checkpoints.store import open_store
from rltune.compat.patching import are_replacements_on
from rltune.compat.ray_start import find_logs
from rltune.config.settings_file import format_settings, redact_config
from rltune.driver.housekeeping import Housekeeping
from rltune.driver.requests.actions import enqueue_configuration, stop_sweep
from rltune.driver.requests.inbox import Inbox
from rltune.driver.requests.watching import watch_sweep
from rltune.driver.run import resume_sweep, run_sweep
from rltune.driver.stopper import SweepStopper
from rltune.errors import StudyError
from rltune.ledger.lease import take_lease
from rltune.ledger.ledger import Ledger
from rltune.ledger.optuna_study import OptunaStudy
from rltune.ledger.sweep_ref import SweepRef
from rltune.policies.policy import load_policy
from rltune.records import Report
from rltune.search.sampler_view import tell_as_pruned
from rltune.search.space import parse_space
from rltune.service.submissions import Submissions

pytestmark = pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())

SPACE = parse_space({"lr": ["loguniform", 1e-5, 1e-2]})
WORD = "tracking-word-of-honour"  # the login of the MLflow server, which must appear nowhere either


@pytest.fixture
def address(postgres_server: str) -> str:
    return postgres_server


@pytest.fixture(scope="module")
def mlflow_server(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Started at once, since its tables take seconds; wait for it where it is needed."""
    server = Server(tmp_path_factory.mktemp("mlflow"), postgres.database(postgres_server, "mlflow")).start()
    yield server
    server.kill()


@pytest.mark.usefixtures("mlflow_server")
def test_sweeps_that_start_together_on_an_empty_database_keep_every_report(address: str) -> None:
    url = postgres.database(address, "started-together")
    errors: list[Exception] = []

    def drive(sweep: int) -> None:
        try:
            ledger = Ledger(url, f"sweep-{sweep}", create=True)
            study = OptunaStudy(ledger.trials, tell_as_pruned, lambda record: SPACE.place(record.params, record.drawn))
            for number in range(2):
                drawn = study.propose({}, RandomSampler(), SPACE.draw).drawn
                ledger.trials.add(SPACE.decode(drawn), [number], drawn=drawn)
                for step in range(100, 600, 100):
                    ledger.trials.add_report(Report(number, step, float(step + sweep)))
                study.tell(ledger.trials.end(number, "COMPLETE", "whole budget"))
            ledger.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=drive, args=(sweep,)) for sweep in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for sweep in range(4):
        ledger = Ledger(url, f"sweep-{sweep}")
        assert [dict(record.reports) for record in ledger.trials.records()] == [
            {step: float(step + sweep) for step in range(100, 600, 100)}
        ] * 2
        ledger.close()


def test_a_policy_is_found_in_a_sweep_whose_ledger_is_there(
    address: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)  # the address in config.yaml holds none
    place = postgres.database(address, "policies").rpartition("@")[2]
    make_sweep(tmp_path / "far", checkpoint, f"postgresql+psycopg://sweeper@{place}")
    assert load_policy("sweep:far/3", output_dir=tmp_path).info["trial"] == 3
    assert load_policy("sweep:far", output_dir=tmp_path).info["trial"] == 1
    monkeypatch.delenv("PGPASSWORD")
    whole = f"postgresql+psycopg://sweeper:{postgres.SPELT}@{place}"
    assert load_policy("sweep:far/3", output_dir=tmp_path, ledger_url=whole).info["trial"] == 3


@pytest.mark.usefixtures("ray_cluster")
def test_a_sweep_with_both_on_postgresql_is_complete_resumable_and_tells_no_password(
    address: str, mlflow_server: Server, request_of: Callable[..., Any], monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr("rltune.driver.plan.preflight", lambda *_: ())
    storage, stream = postgres.database(address, "studies"), io.StringIO()
    uri = mlflow_server.wait().uri.replace("://", f"://sweeper:{WORD}@")
    logins = (f"study.storage={storage}", "tracking=server", f"tracking.uri={uri}")
    words = ("name=both", "budget.trials=2", "scheduler=none", "+space.fault=[choice,null,raise]", *logins)
    words += ("warm_start=[{quality:0.9,fault:null},{quality:0.8,fault:raise}]", "failures.max_retries=0")
    first = run_sweep(request_of(*TOY, *words), stream=stream, trainable=ToyTrial)
    assert first.trials["complete"] == 1, stream.getvalue()
    assert first.trials["failed"] == 1
    changes = {"budget": {"trials": 3}, "study": {"storage": storage}, "tracking": {"uri": uri}}
    root = str(first.folder.parent)
    last = resume_sweep(SweepRef("both", root), changes=changes, stream=stream, trainable=ToyTrial)
    assert last.trials["total"] == 3, stream.getvalue()

    client = MlflowClient(mlflow_server.uri)
    runs = client.search_runs([client.get_experiment_by_name("cartpole").experiment_id])
    children = {run.data.tags["rltune.trial"]: run for run in runs if "rltune.trial" in run.data.tags}
    assert len(runs) == 4
    assert {number: children[number].info.status for number in "01"} == {"0": "FINISHED", "1": "FAILED"}
    assert "RUNNING" not in {run.info.status for run in runs}
    points = client.get_metric_history(children["0"].info.run_id, "score")
    assert sorted(point.step for point in points) == list(range(100, 2001, 100))
    assert client.list_artifacts(children["0"].info.run_id, "checkpoint"), "the server passed the artifacts on"

    logs = find_logs()
    assert (logs is not None) is are_replacements_on()
    # The last is all that Ray and Tune keep of their session.
    places = (tmp_path, mlflow_server.folder, *([logs.parent] if logs else []))
    kept = [path for place in places for path in place.rglob("*") if path.is_file()]
    messages = [str(run.data.to_dictionary()) for run in runs] + [stream.getvalue()]
    texts = {str(path): path.read_bytes() for path in kept} | {text[:80]: text.encode() for text in messages}
    assert any(path.endswith("sweep.log") for path in texts)
    words = [word.encode() for word in (WORD, *postgres.HALVES)]
    assert [name for name, text in texts.items() if any(word in text for word in words)] == []


def test_a_services_queue_is_kept_in_postgresql_as_in_a_file(address: str) -> None:
    url = postgres.database(address, "queues")
    queue, other = Submissions(url, "here"), Submissions(url, "elsewhere")
    for name in ("a", "b"):
        queue.add(name, [f"env.id={name}"], "family")
    other.add("a", [])
    first = queue.get("a")
    assert queue.change(first, state="complete", reason="done")
    assert not queue.change(first, state="running"), "it has changed meanwhile"
    assert queue.get("a").reason == "done"
    assert queue.queue_again(queue.get("a"), ["budget.trials=9"])
    with pytest.raises(StudyError) as caught:
        queue.add("b", [])
    assert caught.value.key == "name"
    assert [(one.name, one.overrides) for one in Submissions(url, "here").list()] == [
        ("b", ("env.id=b",)), ("a", ("env.id=a", "budget.trials=9")),
    ]  # fmt: skip
    for one in (queue, other):
        one.close()


def test_a_sweep_is_asked_and_watched_by_its_address_alone(
    address: str, request_of: Callable[..., Any], stream: io.StringIO, tmp_path: Path
) -> None:
    """As from a machine that has nothing of it but its ledger's address."""
    url = postgres.database(address, "asked")
    ref = SweepRef("mine", tmp_path / "nowhere", ledger_url=url)
    ledger = Ledger(url, "mine", create=True)
    stopper = SweepStopper(open_store(tmp_path), request_of("name=mine").budget)
    ledger.change_sweep(
        status="running", config=format_settings(redact_config(request_of("name=mine", "budget.trials=4")))
    )
    with ThreadPoolExecutor(2) as pool:
        with take_lease(ledger), Housekeeping([(0.1, Inbox(ledger, stopper).read)]):
            watched = pool.submit(watch_sweep, ref, stream=stream)
            enqueue_configuration(ref, {"lr": 1e-3}, stream=stream)
            stopped = pool.submit(stop_sweep, ref, stream=stream)
            deadline = time.monotonic() + 60
            while not stopper.is_requested():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            ledger.change_sweep(status="interrupted")
            assert watched.result(60) == 130
        assert stopped.result(60) == "interrupted"
    with pytest.raises(StudyError, match="interrupted") as caught:
        stop_sweep(ref)
    assert caught.value.key == "sweep"
    assert [request.payload for request in ledger.read_requests()] == [{"lr": 1e-3}]
    ledger.close()
    assert not {half for half in postgres.HALVES if half in stream.getvalue()}
