"""REST over HTTP: who may ask, what is answered, what is wrong in three parts."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from composing import compose
from ended import make_certification, write_sweep
from fastapi import FastAPI
from ledger import make_ledger

from rltune.config.settings_file import redact_config, write_settings
from rltune.config.validation import parse_config
from rltune.errors import RltuneError, UnavailableError
from rltune.service.models import CheckDescription
from rltune.views.description import describe
from rltune.views.sweep_view import SweepView, load_view
from tests.service.serviced import TOKEN, Serviced, run_service

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serviced]:
    with run_service(tmp_path_factory.mktemp("service") / "outputs") as service:
        yield service


def names(service: Serviced) -> list[str]:
    return [one.name for one in service.queue.list()]


def test_a_sweep_is_submitted_shown_and_stopped(service: Serviced) -> None:
    body = {"overrides": ["algo=ppo", "env=cartpole", "experiment=smoke"], "name": "whole", "group": "first"}
    made = service.ask("POST", "/api/sweeps", json=body, headers=BEARER)
    assert (made.status_code, made.headers["Location"]) == (201, "/api/sweeps/whole")
    assert made.json() == service.ask("GET", "/api/sweeps/whole", headers=BEARER).json()
    answer = made.json()
    assert (answer["name"], answer["state"], answer["queue"], answer["group"]) == ("whole", "queued", 1, "first")
    assert answer["overrides"] == body["overrides"]
    assert [one["name"] for one in service.ask("GET", "/api/sweeps?group=first", headers=BEARER).json()] == ["whole"]
    assert service.ask("GET", "/api/sweeps?group=other", headers=BEARER).json() == []
    assert service.ask("POST", "/api/sweeps/whole/stop", headers=BEARER).json()["state"] == "interrupted"
    assert service.ask("POST", "/api/sweeps/whole/resume", headers=BEARER).json()["state"] == "queued"


def test_a_sweep_is_checked_without_being_submitted(service: Serviced) -> None:
    before = names(service)
    plan = service.client.check_sweep("algo=ppo", "seed=3", "budget.trials=7", name="asked")
    assert (plan["name"], plan["seed"], plan["trials"]) == ("asked", 3, 7)
    assert plan.keys() == CheckDescription.__annotations__.keys()
    assert service.client.check_sweep("algo=ppo")["name"] is None
    with pytest.raises(RltuneError) as refused:
        service.client.check_sweep("budget.trails=3")
    assert refused.value.key == "budget.trails"
    assert names(service) == before


def test_a_probe_needs_no_token_and_metrics_do(service: Serviced) -> None:
    assert service.ask("GET", "/health").json() == {"rltune": "well"}
    refused = service.ask("GET", "/metrics")
    assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer"), "Prometheus reads no pages"
    assert service.ask("GET", "/metrics", headers=BEARER).headers["Content-Type"].startswith("text/plain")


def test_the_result_of_a_sweep_is_what_show_prints(service: Serviced) -> None:
    service.queue.add("ended", [])
    for part in ("result", "report"):
        assert service.ask("GET", f"/api/sweeps/ended/{part}", headers=BEARER).status_code == 409, "it has not begun"
        assert service.ask("GET", f"/api/sweeps/none/{part}", headers=BEARER).status_code == 404
    folder = write_sweep(service.sweeps.folder.sweeps / "ended", 4)
    result = service.client.result("ended")
    assert result == json.loads(json.dumps(describe(load_view(folder)), default=str))
    assert (result["name"], len(result["trials_best_first"])) == ("ended", 4)
    assert "<html" in service.client.report("ended")


def test_a_sweep_that_has_not_begun_says_where_it_is(service: Serviced) -> None:
    service.queue.add("later", [])
    for state, has_ledger in (("queued", False), ("running", False), ("running", True), ("refused", False)):
        service.queue.change(service.queue.get("later"), state=state)
        if has_ledger:  # The driver writes the settings into the folder, and then into the ledger.
            folder = service.sweeps.folder.sweeps / "later"
            folder.mkdir()
            make_ledger(folder, "later").close()
            write_settings(folder, redact_config(parse_config(compose("run"))))
        in_words = service.client.show("later")["in_words"]
        for part in ("result", "table", "policy", "report"):
            answer = service.ask("GET", f"/api/sweeps/later/{part}", headers=BEARER)
            parts = answer.json()
            assert (answer.status_code, parts["key"], parts["value"]) == (409, "sweep", "later"), (state, part)
            assert in_words in parts["error"], (state, part)
        assert service.ask("POST", "/api/sweeps/later/retry", headers=BEARER).json() == parts


def test_each_change_of_a_state_is_listed_with_its_reason(service: Serviced) -> None:
    row = service.queue.add("restarted", [])
    for state, reason in (("running", None), ("queued", "its process was killed by SIGKILL"), ("running", None)):
        service.queue.change(row, state=state, reason=reason)
        row = service.queue.get("restarted")
    events = service.client.events("restarted")
    assert [each["state"] for each in events] == ["queued", "running", "queued", "running"]
    shown = service.client.show("restarted")
    assert (shown["attempts"], shown["reason"]) == (2, None)
    assert shown["last_end"] == events[2]
    assert shown["begun"] == events[1]["at"], "the first start, and not the last one"


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"overrides": ["algo=pp0"]}, "algo"),
        ({"overrides": ["budget.trails=3"]}, "budget.trails"),
        ({"overrides": ["space.lr=nan"]}, "space.lr"),
        ({"overrides": ["env.id=NoSuchEnv-v0"]}, "env.id"),
        ({"overrides": ["output_dir=/elsewhere"]}, "output_dir"),
        ({"overrides": ["--multirun"]}, "--multirun"),
        ({"overrides": ["study.storage=postgresql://me:s3cret@db/x"]}, "study.storage"),
        ({"overrides": [], "name": "../up"}, "name"),
        ({"overrides": [], "group": "a b"}, "group"),
        ({"overrides": [], "group": 256 * "g"}, "group"),
        ({"overrides": [], "name": 101 * "n"}, "name"),
        ({"overides": []}, "overides"),
        ({"name": "of-nothing"}, "overrides"),
        ({"overrides": "algo=ppo"}, "overrides"),
        ({"overrides": ["\ud800"]}, "body"),
    ],
)
def test_a_wrong_request_is_answered_in_three_parts(service: Serviced, body: Any, key: str) -> None:
    before = names(service)
    answer = service.ask("POST", "/api/sweeps", json=body, headers=BEARER)
    assert answer.status_code == 422
    parts = answer.json()
    assert all(parts[name] for name in ("error", "allowed", "try"))
    assert (parts["key"], parts["exit_code"]) == (key or None, 2)
    assert "s3cret" not in answer.text
    assert names(service) == before


@pytest.mark.parametrize(
    ("method", "path", "fields", "status"),
    [
        ("GET", "/api/sweeps/nope", {}, 404),
        ("GET", "/api/sweeps/%00", {}, 404),
        ("GET", "/api/sweeps/nope/logs", {}, 404),
        ("POST", "/api/sweeps/nope/stop", {}, 404),
        ("POST", "/api/sweeps/waits/explode", {}, 404),
        ("GET", "/api/nope", {}, 404),
        ("DELETE", "/api/sweeps", {}, 405),
        ("POST", "/api/sweeps", {"json": {"overrides": [], "name": "waits"}}, 409),  # The name is taken.
        ("POST", "/api/sweeps/waits/resume", {}, 409),
        ("POST", "/api/sweeps/waits/retry", {}, 409),
        ("POST", "/api/sweeps/waits/enqueue", {"json": {"space": {"lr": 1e-3}}}, 409),
        ("POST", "/api/sweeps/over/stop", {}, 409),
        ("POST", "/api/sweeps/waits/retry", {"json": {"trials": "3"}}, 422),
        ("POST", "/api/sweeps/waits/enqueue", {"json": {"space": 3}}, 422),
        ("POST", "/api/sweeps", {"data": "{"}, 422),
        ("GET", "/api/sweeps?limit=0", {}, 422),
        ("GET", "/api/sweeps?grup=first", {}, 422),
        ("POST", "/api/sweeps/waits/stop?group=first", {}, 422),
        ("GET", "/api/sweeps", {"headers": {}}, 401),
        ("GET", "/api/sweeps", {"headers": {"Host": "evil.example"}}, 400),
    ],
)
def test_each_refusal_has_its_status_and_the_same_parts(
    service: Serviced, method: str, path: str, fields: dict[str, Any], status: int
) -> None:
    if "waits" not in names(service):
        service.queue.add("waits", [])
        service.queue.change(service.queue.add("over", []), state="interrupted")
    answer = service.ask(method, path, **{"headers": BEARER} | fields)
    assert answer.status_code == status
    assert answer.json().keys() == {"error", "key", "value", "allowed", "try", "exit_code"}
    assert answer.headers.get("Allow") == ("GET, POST" if status == 405 else None)


@pytest.mark.parametrize(
    ("body", "kind", "key", "place"),
    [
        ('{"overrides": []}', "application/x-www-form-urlencoded", "Content-Type", ""),
        ('{"overrides": []}', "", "Content-Type", ""),
        ("{bad", "application/json", "body", "line 1, column 2"),
        ('{"overrides":\n  [algo=ppo]}', "application/json", "body", "line 2, column 4"),
        ("", "application/json", "body", ""),
        ("[]", "application/json", "body", ""),
    ],
)
def test_a_body_that_is_no_json_is_answered_with_the_place(
    service: Serviced, body: str, kind: str, key: str, place: str
) -> None:
    answer = service.ask("POST", "/api/sweeps", data=body, headers=BEARER | ({"Content-Type": kind} if kind else {}))
    parts = answer.json()
    assert (answer.status_code, parts["key"], parts["exit_code"]) == (422, key, 2)
    assert place in parts["error"]
    assert ("Content-Type: application/json" in parts["try"]) is (key == "Content-Type")


def test_a_list_of_some_states_has_no_others(tmp_path: Path) -> None:
    with run_service(tmp_path / "outputs") as service:
        for name, state in (("a", "running"), ("b", "queued"), ("c", "failed"), ("d", "complete")):
            service.queue.change(service.queue.add(name, []), state=state)
        assert [sweep["name"] for sweep in service.client.list(state="failed")] == ["c"]
        assert {sweep["name"] for sweep in service.client.list(state=["running", "queued"])} == {"a", "b"}
        assert service.ask("GET", "/api/sweeps?state=runing", headers=BEARER).json()["key"] == "state"


def test_openapi_needs_no_token_and_describes_results(service: Serviced) -> None:
    paths = service.ask("GET", "/api/openapi.json").json()["paths"]
    for path, name in (("/sweeps/{name}/result", "SweepResult"), ("/comparison", "ComparisonDescription")):
        answer = paths[f"/api{path}"]["get"]["responses"]["200"]["content"]["application/json"]
        assert answer["schema"]["$ref"].rpartition("/")[2] == name


def test_a_request_that_fails_later_and_one_that_crashes_have_the_same_parts(
    service: Serviced, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, status, exit_code in ((UnavailableError("down"), 503, 75), (OSError("disk at s3://me:pw@x"), 500, 1)):
        monkeypatch.setattr(service.queue, "list", Mock(side_effect=error))
        answer = service.ask("GET", "/api/sweeps", headers=BEARER)
        assert (answer.status_code, answer.json()["exit_code"]) == (status, exit_code)
        assert "pw" not in answer.text
        with pytest.raises(RltuneError) as raised:
            service.client.list()
        assert raised.value.exit_code == exit_code


def test_a_long_list_is_read_in_pages(tmp_path: Path) -> None:
    with run_service(tmp_path / "outputs") as service:
        for name in "abcde":
            service.queue.add(name, [], "odd" if name in "ace" else None)
        pages = [service.client.list(limit=2, offset=offset) for offset in (0, 2, 4, 6)]
        odd = service.client.list("odd", limit=2, offset=1)
    assert [[sweep["name"] for sweep in page] for page in pages] == [["a", "b"], ["c", "d"], ["e"], []]
    assert [(sweep["name"], sweep["queue"]) for sweep in odd] == [("c", 3), ("e", 5)]


def test_nobody_changes_anything_without_token_or_origin_or_by_get(service: Serviced) -> None:
    service.queue.add("kept", [])
    before = service.queue.list()
    cookie = service.log_in()
    evil = {"Origin": "https://evil.example"}
    ours = {"Origin": service.address}
    body = {"overrides": []}
    for headers in ({}, evil, ours, cookie, cookie | evil, BEARER | evil, {"Host": "evil.example"}):
        assert service.ask("POST", "/api/sweeps", json=body, headers=headers).status_code in (400, 401, 403)
        assert service.ask("POST", "/api/sweeps/kept/stop", headers=headers).status_code in (400, 401, 403)
    for verb in ("stop", "resume", "retry", "enqueue"):
        assert service.ask("GET", f"/api/sweeps/kept/{verb}", headers=BEARER).status_code in (404, 405)
    assert service.ask("GET", "/api/sweeps", headers={"Host": "evil.example"} | BEARER).status_code == 400
    assert service.ask("GET", "/api/sweeps").status_code == 401
    assert service.queue.list() == before
    assert service.ask("POST", "/api/sweeps/kept/stop", headers=cookie | ours).status_code == 200


def test_a_browser_is_told_to_fetch_nothing_from_elsewhere(service: Serviced) -> None:
    for answer in (service.ask("GET", "/api/sweeps", headers=BEARER), service.ask("GET", "/api/sweeps")):
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.slow
def test_every_curl_line_of_the_docs_is_answered(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    (block,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    setting, *lines = block.splitlines()
    assert len(lines) == 15
    with run_service(tmp_path / "outputs") as service:
        for line in lines:
            folder = service.sweeps.folder.sweeps / "first"
            if "result" in line or "enqueue" in line:
                write_sweep(folder, 4, make_certification(), "complete", "budget.trials=5")
            if "comparison" in line:
                service.queue.add("second", [])
                write_sweep(folder.with_name("second"), 4, make_certification())
            if "events" in line:
                shutil.rmtree(folder)  # It has other settings than what the next lines resume.
            if "retry" in line or "policy" in line:
                continue  # nothing has failed, and no trial has a checkpoint
            known = os.environ | {"RLTUNE_SERVICE": service.address, "RLTUNE_SERVICE_TOKEN": TOKEN}
            typed = ["bash", "-c", f"{setting}; {line}"]
            done = subprocess.run(typed, env=known, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}: {done.stderr}{done.stdout}"
        row = service.queue.get("first")
    assert row.overrides == ("algo=ppo", "env=cartpole", "budget.trials=40")


def test_a_log_is_text_with_the_place_where_it_goes_on(service: Serviced) -> None:
    service.queue.add("talks", [])
    service.sweeps.folder.log_of("talks").write_text("one\ntwo\n")
    answer = service.ask("GET", "/api/sweeps/talks/logs", headers=BEARER)
    assert (answer.text, answer.headers["X-Next"]) == ("one\ntwo\n", "8")
    assert service.ask("GET", "/api/sweeps/talks/logs?start=4", headers=BEARER).text == "two\n"
    head = service.ask("HEAD", "/api/sweeps/talks/logs", headers=BEARER)
    assert (head.status_code, head.text, head.headers["X-Next"]) == (200, "", "8")
    assert answer.headers["Content-Type"].startswith("text/plain")


def test_no_request_waits_for_a_description_of_all(service: Serviced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastAPI, "openapi", lambda app: 1 // 0)  # It takes long, and holds up other requests meanwhile.
    assert service.ask("GET", "/api/sweeps?limit=1&state=queued", headers=BEARER).status_code == 200
    refused = service.ask("GET", "/api/sweeps?limt=1", headers=BEARER)
    assert (refused.status_code, refused.json()["key"]) == (422, "limt")
    assert "limit" in refused.json()["allowed"]


READINGS = ("", "/result", "/table", "/report", "/policy", "/events", "/logs")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sweeps SET certification = 'no JSON'",
        "UPDATE sweeps SET config = 'no settings'",
        "UPDATE sweep_trials SET params = '[1]'",
        "UPDATE sweep_trials SET checkpoint = '7' WHERE number = 3",
        "UPDATE reports SET score = 'no score'",
        "UPDATE reports SET score = CASE WHEN id % 2 THEN 1e308 ELSE -1e308 END",
        "UPDATE reports SET score = 9e999",
    ],
)
def test_no_value_in_a_ledger_makes_a_reader_fail(tmp_path: Path, damage: str) -> None:
    with run_service(tmp_path / "outputs") as service:
        for name in ("whole", "damaged"):
            folder = write_sweep(service.sweeps.folder.sweeps / name, 6, make_certification())
            service.queue.change(service.queue.add(name, []), state="complete", ended_s=1.0)
        with closing(sqlite3.connect(folder / "ledger.db")) as raw, raw:
            raw.execute(damage)
        paths = [f"/api/sweeps/damaged{path}" for path in READINGS]
        paths += [
            "/api/comparison?sweeps=whole&sweeps=damaged",
            "/sweeps/damaged",
            "/compare?sweep=whole&sweep=damaged",
        ]
        session = service.log_in()
        for path in paths:
            headers = BEARER if path.startswith("/api") else session
            answer = service.ask("GET", path, headers=headers)
            assert answer.status_code in (200, 409), path
        if "1e308" in damage:
            assert service.ask("GET", "/api/sweeps/damaged/report", headers=BEARER).status_code == 200


def test_a_result_waits_for_the_first_reading(service: Serviced, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_slowly(*given: Any) -> Any:
        time.sleep(0.5)
        return read(*given)

    read = SweepView.read
    monkeypatch.setattr(SweepView, "read", read_slowly)
    monkeypatch.setattr(service.sweeps.descriptions._reader, "_answer_s", 0.05)
    for name in ("long", "longer"):
        write_sweep(service.sweeps.folder.sweeps / name, 3)
        service.queue.change(service.queue.add(name, []), state="complete", ended_s=1.0)
    assert service.ask("GET", "/api/sweeps/long", headers=BEARER).json()["sweep"] is None, "lists and pages do not wait"
    assert len(service.client.result("long")["trials_best_first"]) == 3
    monkeypatch.setattr("rltune.service.descriptions.FIRST_S", 0.1)
    with pytest.raises(UnavailableError):
        service.client.result("longer")
