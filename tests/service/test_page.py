"""The page, in a real browser by clicks alone, and its forms without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from browser import Browser, open_browser
from ended import make_certification, write_sweep
from ledger import add_reports
from serviced import TOKEN, Serviced, run_service

from rltune.errors import RltuneError
from rltune.service.access import name_cookie
from rltune.service.dispatcher import Ending
from rltune.service.page import list_groups, read_facts, spell_form
from rltune.study.storage import open_ledger


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serviced]:
    with run_service(tmp_path / "outputs") as service:
        yield service


@pytest.fixture
def browser(service: Serviced, tmp_path: Path) -> Iterator[Browser]:
    """One that has logged in by the printed link."""
    with open_browser(tmp_path / "profile") as browser:
        browser.open(f"{service.address}/login#{TOKEN}")
        browser.wait("location.pathname === '/' && document.documentElement.dataset.ready")
        yield browser


def state(service: Serviced, name: str) -> str:
    return service.queue.get(name).state


def test_the_form_says_only_what_was_chosen() -> None:
    given = {"algo": "dqn", "env": "", "budget.trials": "3", "overrides": "space.lr='[loguniform, 1e-5, 1e-3]' seed=1"}
    assert spell_form(given) == ["algo=dqn", "budget.trials=3", "space.lr=[loguniform, 1e-5, 1e-3]", "seed=1"]
    with pytest.raises(RltuneError, match="settings: No closing quotation"):
        spell_form({"overrides": "name='x"})


def test_values_to_be_enqueued_are_numbers_where_they_are() -> None:
    typed = {"space.lr": "1e-3", "space.n_step": "3", "space.activation": "relu", "space.gamma": " "}
    assert read_facts("enqueue", typed) == {"space": {"lr": 1e-3, "n_step": 3, "activation": "relu"}}
    assert read_facts("resume", {"trials": "40"}) == {"overrides": ["budget.trials=40"]}
    assert read_facts("resume", {}) == read_facts("stop", {"from": "list"}) == {}
    with pytest.raises(RltuneError, match="trials=many"):
        read_facts("resume", {"trials": "many"})


def test_a_persons_own_files_are_among_the_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"ppo", "dqn"} <= set(list_groups()["algo"])
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "mine.yaml").touch()
    assert "mine" in list_groups()["env"]


def test_without_a_login_there_is_a_login(service: Serviced) -> None:
    answer = service.ask("GET", "/sweeps/any")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    ours = {"Origin": service.address}
    wrong = service.ask("POST", "/login", data={"token": "guess"}, headers=ours)
    assert wrong.status_code == 401
    assert "Set-Cookie" not in wrong.headers
    right = service.ask("POST", "/login", data={"token": TOKEN}, headers=ours)
    assert "HttpOnly" in right.headers["Set-Cookie"]
    assert "SameSite=strict" in right.headers["Set-Cookie"]


def test_a_name_of_markup_and_a_log_of_markup_stay_text(service: Serviced) -> None:
    service.queue.add("s", ["+algo.x=<script>alert(1)</script>"])
    service.desk.folder.log_of("s").write_text("<img src=x onerror=alert(1)>")
    cookie = f"{name_cookie(service.address.removeprefix('http://'))}={service.access.cookie}"
    for path in ("/", "/sweeps/s", "/sweeps/s?part=true"):
        page = service.ask("GET", path, headers={"Cookie": cookie}).text
        assert "<script>alert" not in page
        assert "<img" not in page
    assert "&lt;img" in page


def test_a_report_runs_apart_and_nothing_beside_it_is_shown(service: Serviced) -> None:
    service.queue.add("s", [])
    report = write_sweep(service.desk.folder.sweeps / "s", 1) / "report"
    report.mkdir()
    (report / "index.html").write_text("the report")
    (report / ".index.html").write_text("a draft")
    cookie = {"Cookie": f"{name_cookie(service.address.removeprefix('http://'))}={service.access.cookie}"}
    answer = service.ask("GET", "/sweeps/s/report/index.html", headers=cookie)
    assert answer.text == "the report"
    assert answer.headers["Content-Security-Policy"].startswith("sandbox")
    assert service.desk.show("s")["report"] is True
    (report / "plotly.min.js").touch()
    assert service.desk.show("s")["report"] is False, "apart, its script would not be fetched"
    for file in (".index.html", "..%2fconfig.yaml", "%2e%2e/config.yaml", "none.html"):
        assert service.ask("GET", f"/sweeps/s/report/{file}", headers=cookie).status_code in (404, 422)


@pytest.mark.slow
def test_a_sweep_is_submitted_watched_stopped_and_resumed_by_clicks(service: Serviced, browser: Browser) -> None:
    browser.click("nav a[href='/submit']")
    browser.wait("document.getElementById('submit')")
    browser.choose("#field-algo", "dqn")
    browser.type("#field-name", "mine")
    browser.type("#field-overrides", "budget.trails=3")
    browser.click("#submit")
    browser.wait("document.querySelector('[role=alert]')")
    assert "did you mean 'trials'?" in browser.text()
    browser.complaints.clear()  # a browser notes the answer's status
    assert browser.run("document.getElementById('field-name').value") == "mine", "nothing has to be typed again"
    browser.run("document.getElementById('field-overrides').value = ''")
    browser.type("#field-overrides", "budget.trials=3")
    browser.click("#submit")
    browser.wait("location.pathname === '/sweeps/mine'")
    assert service.queue.get("mine").words == ("algo=dqn", "budget.trials=3")
    assert "number 1 in the queue" in browser.text()

    service.desk.dispatcher.step()
    browser.wait("document.querySelector('.state.running')")
    assert "Starting: its settings are checked" in browser.text()
    folder = write_sweep(service.desk.folder.sweeps / "mine", 0, None, "running", "budget.trials=3")
    with closing(open_ledger(folder)) as ledger:
        number = ledger.trials.add({"lr": 1e-3}, [1]).number
        add_reports(ledger, number, {200: 1.0, 400: 2.0})
    service.desk.folder.log_of("mine").write_text("more\n" * 99 + "trial 0 reports\n")
    browser.wait("document.querySelector('polyline') && document.querySelectorAll('#trials tbody tr').length === 1")
    browser.wait("document.querySelector('.log').innerText.includes('trial 0 reports')")
    assert browser.run("document.querySelector('.log').scrollTop") > 0, "the end is in sight"

    browser.click("#stop-mine")
    browser.wait("document.querySelector('.state').innerText === 'told to end'")
    assert service.processes.stopped == ["mine"]
    service.processes.endings["mine"] = Ending(143)
    service.desk.dispatcher.step()
    browser.click("#resume-mine")
    browser.wait("document.querySelector('.state').innerText.includes('in the queue')")
    assert state(service, "mine") == "queued"
    assert browser.complaints == [], "nothing was refused by the page's own policy"


@pytest.mark.slow
def test_failed_trials_and_enqueued_values_go_on_by_clicks(service: Serviced, browser: Browser) -> None:
    service.queue.change(service.queue.add("done", []), state="complete", ended_s=1.0)
    folder = write_sweep(service.desk.folder.sweeps / "done", 3, make_certification(), "complete", "budget.trials=4")
    with closing(open_ledger(folder)) as ledger:
        ledger.trials.end(ledger.trials.add({"lr": 1e-3}, [1]).number, "FAIL", "the pole broke")
    browser.open(f"{service.address}/sweeps/done")
    assert "Certified on fresh seeds" in browser.text()
    assert "the pole broke" in browser.text()
    browser.click("#retry-done")
    browser.wait("document.querySelector('.state').innerText.includes('in the queue')")
    browser.type("#space-lr", "5")
    browser.click("#enqueue")
    browser.wait("document.querySelector('[role=alert]')")
    assert browser.run("document.getElementById('space-lr').value") == "5", "it can be mended"
    browser.complaints.clear()
    browser.open(browser.run("location.href"))
    browser.wait("location.pathname === '/sweeps/done'")
    browser.type("#space-lr", "1e-3")
    browser.click("#enqueue")
    browser.wait("document.getElementById('space-lr').value === ''")
    with closing(open_ledger(folder)) as ledger:
        assert sorted(request.kind for request in ledger.read_requests()) == ["enqueue", "retry"]
    assert browser.complaints == []


@pytest.mark.slow
def test_on_a_phone_nothing_hangs_over_and_all_has_a_name(service: Serviced, browser: Browser) -> None:
    for name in ("cartpole-ppo-20261122-120000-abcd", "short"):
        service.queue.add(name, ["algo=ppo", "space.lr=[loguniform,0.00001,0.001]", "env.id=SomeQuiteLongName-v0"])
    write_sweep(service.desk.folder.sweeps / "short", certified=make_certification())
    browser.resize(390)
    unnamed = """[...document.querySelectorAll('button, a, input:not([type=hidden]), select, textarea, svg, progress')]
        .filter(one => !(one.getAttribute('aria-label') || one.innerText || (one.labels && one.labels.length)))
        .map(one => one.outerHTML)"""
    for path in ("/", "/sweeps/short", "/submit", "/login"):
        browser.open(f"{service.address}{path}")
        assert browser.run("document.documentElement.scrollWidth") <= 390, path
        assert browser.run(unnamed) == [], path
        assert browser.run("document.documentElement.lang") == "en"
