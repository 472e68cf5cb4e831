"""The page, in a real browser by clicks alone, and its forms without one."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ended import damage_table, lock_ledger, make_certification, write_measured, write_sweep
from ledger import add_reports

from rltune.errors import ConfigError, RltuneError
from rltune.ledger.storage import open_ledger
from rltune.service.page import LOG_BYTES, read_arguments, spell_form
from rltune.service.processes import Ending
from rltune.service.submissions import STATES
from tests.service.browser import Browser, open_browser
from tests.service.serviced import TOKEN, Serviced, run_service


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
    given = {"algo": "dqn", "env": "", "name": "mine", "overrides": "space.lr='[loguniform, 1e-5, 1e-3]' seed=1"}
    assert spell_form(given) == ["algo=dqn", "space.lr=[loguniform, 1e-5, 1e-3]", "seed=1"]
    with pytest.raises(RltuneError) as error:
        spell_form({"overrides": "name='x"})
    assert error.value.key == "overrides"


def test_a_damaged_ledger_leaves_all_other_sweeps_listed(service: Serviced, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        service.queue.change(service.queue.add(name, []), state="complete", ended_s=1.0)
        write_sweep(tmp_path / "outputs" / name)
    damage_table(tmp_path / "outputs/bad/ledger.db", "sweep_trials")
    headers = service.log_in()
    pages = [service.ask("GET", path, headers=headers) for path in ("/", "/sweeps/good", "/sweeps/bad")]
    assert [page.status_code for page in pages] == [200] * 3
    assert ["ledger.db" in page.text for page in pages] == [True, False, True]
    unreadable = {sweep["name"]: sweep["unreadable"] for sweep in service.client.list()}
    assert (unreadable["good"], "ledger.db" in unreadable["bad"]) == (None, True)


def test_page_list_and_rest_say_which_ledger_does_not_answer(service: Serviced, tmp_path: Path) -> None:
    for name in ("good", "silent"):
        service.queue.change(service.queue.add(name, []), state="complete", ended_s=1.0)
        write_sweep(tmp_path / "outputs" / name, 2)
    service.client.list()
    headers, connection = service.log_in(), lock_ledger(tmp_path / "outputs" / "silent")
    pages = [service.ask("GET", path, headers=headers) for path in ("/", "/sweeps/good", "/sweeps/silent")]
    sweeps = {sweep["name"]: sweep for sweep in service.client.list()}
    connection.close()
    assert [page.status_code for page in pages] == [200] * 3
    since = sweeps["silent"]["stale_since"]
    assert [since in page.text for page in pages] == [True, False, True]
    assert sweeps["good"]["stale_since"] is None
    assert [sweep["sweep"]["trials"]["ended"] for sweep in sweeps.values()] == [2, 2]


def test_the_form_offers_the_options_of_each_group(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "conf" / "certify" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("top: 7\n")
    monkeypatch.chdir(tmp_path)
    page = service.ask("GET", "/submit", headers=service.log_in()).text
    groups = dict(re.findall(r'<select name="(\w+)"(.*?)</select>', page, re.DOTALL))
    assert {"algo", "env", "space", "experiment", "certify"} <= set(groups)
    assert ">default: ppo</option>" in groups["algo"]
    assert "<option>dqn</option>" in groups["algo"]
    assert "<option>mine</option>" in groups["certify"]


def test_a_wrong_word_is_answered_and_all_that_was_typed_is_kept(service: Serviced) -> None:
    ours = service.log_in() | {"Origin": service.address}
    given = {"algo": "dqn", "name": "mine", "overrides": "seed=3 certify.seeds=many 'budget.trials=2'"}
    answer = service.ask("POST", "/submit", data=given, headers=ours)
    assert (answer.status_code, service.queue.list()) == (422, [])
    alert = answer.text.partition('role="alert"')[2].partition("</div>")[0]
    assert "certify.seeds=many" in alert
    assert "Allowed: " in alert
    assert "Try: " in alert
    assert f">{given['overrides']}</textarea>" in html.unescape(answer.text)
    assert 'value="mine"' in answer.text
    assert "<option selected>dqn</option>" in answer.text
    answer = service.ask("POST", "/submit", data=given | {"overrides": "seed=3 certify.seeds=5"}, headers=ours)
    assert answer.headers["Location"] == "/sweeps/mine"
    assert service.queue.get("mine").overrides == ("algo=dqn", "seed=3", "certify.seeds=5")


def test_the_form_says_what_a_sweep_costs_and_its_command(service: Serviced) -> None:
    ours = service.log_in() | {"Origin": service.address}
    given = {"algo": "dqn", "name": "mine", "overrides": "budget.trials=7 'space.lr=[loguniform, 1e-5, 1e-3]'"}

    def ask(**changes: str) -> str:
        answer = service.ask("POST", "/submit/cost", data=given | changes, headers=ours)
        assert answer.status_code == 200
        return html.unescape(re.sub("<[^>]+>", "", answer.text))

    assert "7 trials x 100,000 environment steps" in ask()
    assert "rltune submit algo=dqn budget.trials=7 'space.lr=[loguniform, 1e-5, 1e-3]' name=mine" in ask()
    assert " x 3 seeds, 5,000,000 in all" in ask(overrides="replicates=3 budget.total_env_steps=5000000")
    assert ", then 20 trainings to certify" in ask(overrides="certify.seeds=5 certify.top=3")
    for wrong in ("budget.trails=3", "budget.trials='${no}'", "name='x", "budget.trials=0"):
        assert "Try: " in ask(overrides=wrong)
    assert service.queue.list() == []


def test_the_winners_of_a_group_are_compared(service: Serviced) -> None:
    for name, above in (("first", 0.0), ("second", 1.0)):
        service.queue.change(service.queue.add(name, [], "both"), state="complete", ended_s=1.0)
        write_sweep(service.sweeps.folder.sweeps / name, 4, make_certification(above))
    headers = service.log_in()
    for path in ("/compare?group=both", "/compare?sweep=first&sweep=second"):
        page = service.ask("GET", path, headers=headers).text
        assert re.findall(r'<th scope="row"[^>]*>([^<]+)</th>', page) == ["first", "second"]
    for path in ("/compare?group=none", "/compare?sweep=none", "/compare"):
        assert 400 <= service.ask("GET", path, headers=headers | {"Accept": "text/html"}).status_code < 500


def test_of_many_trials_the_best_twenty_come_first(service: Serviced) -> None:
    service.queue.change(service.queue.add("s", []), state="interrupted", reason="lightning", ended_s=1.0)
    write_sweep(service.sweeps.folder.sweeps / "s", 23)
    page = service.ask("GET", "/sweeps/s", headers=service.log_in()).text
    assert re.findall(r'<tr[^>]* data-trial="(\d+)"', page) == [*map(str, range(22, -1, -1))]
    assert re.search(r'<details id="other-trials"><summary>3 more</summary>', page)
    assert page.count("lightning") == 1, "the state tells it, and nothing repeats it"


def test_a_row_has_what_the_browser_filters_and_sorts_by(service: Serviced) -> None:
    service.queue.add("waits", ["seed=1"], "night")
    service.queue.change(service.queue.add("s", []), state="complete", ended_s=1.0)
    write_sweep(service.sweeps.folder.sweeps / "s", 4)
    page = service.ask("GET", "/", headers=service.log_in()).text
    assert re.findall(r'<tr data-state="(\w+)" data-group="(\w*)"', page) == [("queued", "night"), ("complete", "")]
    assert re.findall(r"<option>(\w+)</option>", page) == [*STATES, "night"]
    assert re.findall(r'data-label="(\w+)"[^>]*data-sort="([^"]+)"', page) == [("Done", "100"), ("Best", "30.0")]


def test_a_list_is_filtered_without_scripts(service: Serviced) -> None:
    for name, group in (("one", "g"), ("two", "g"), ("other", None)):
        service.queue.add(name, [f"env={name}-env"], group)
    service.client.stop("two")
    session = service.log_in()

    def list_rows(query: str) -> list[str]:
        text = service.ask("GET", f"/?{query}", headers=session).text
        assert "None yet" not in text
        return re.findall(r'<th scope="row"><a href="/sweeps/(\w+)"', text)

    assert list_rows("search=one") == ["one", "other", "two"], "a script filters the whole list"
    assert list_rows("search=ENV+one&state=&group=&plain=true") == ["one"]
    assert list_rows("search=&state=interrupted&group=g&plain=true") == ["two"]
    assert list_rows("search=nothing&state=&group=&plain=true") == []


def test_a_failed_sweep_has_no_progress_to_show(service: Serviced) -> None:
    service.queue.change(service.queue.add("s", []), state="failed", reason="every trial has failed", ended_s=1.0)
    write_sweep(service.sweeps.folder.sweeps / "s", 4, None, "failed")
    for path in ("/", "/sweeps/s"):
        page = service.ask("GET", path, headers=service.log_in()).text
        assert ("<progress" in page, "%" in page) == (False, False)


def test_an_error_is_a_page_for_a_browser_and_json_for_programs(service: Serviced) -> None:
    headers = service.log_in()
    shown = service.ask("GET", "/sweeps/none", headers=headers | {"Accept": "text/html,*/*"})
    assert (shown.status_code, 'href="/"' in shown.text, 'role="alert"' in shown.text) == (404, True, True)
    assert service.ask("GET", "/sweeps/none", headers=headers).json()["key"] == "sweep"


def test_a_sweep_is_submitted_again_with_changes(service: Serviced) -> None:
    service.queue.add("first", ["algo=dqn", "space.lr=[loguniform, 1e-5, 1e-3]"])
    page = service.ask("GET", "/submit?like=first", headers=service.log_in()).text
    assert "algo=dqn &#39;space.lr=[loguniform, 1e-5, 1e-3]&#39;</textarea>" in page
    for path in ("/", "/sweeps/first"):
        assert "&#39;space.lr=" in service.ask("GET", path, headers=service.log_in()).text, "as a shell takes it"


def test_the_end_of_a_long_log_begins_with_a_whole_line(service: Serviced) -> None:
    service.queue.add("first", [])
    log = service.sweeps.folder.log_of("first")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("a line of the log that is 40 letters...\n" * (LOG_BYTES // 30))
    page = service.ask("GET", "/sweeps/first", headers=service.log_in()).text
    assert page.count("letters...") == page.count("a line of the log") > 0


def test_the_page_has_the_learning_curve_of_each_trial(service: Serviced) -> None:
    service.queue.change(service.queue.add("s", []), state="complete", ended_s=1.0)
    write_sweep(service.sweeps.folder.sweeps / "s", 4)
    page = service.ask("GET", "/sweeps/s", headers=service.log_in()).text
    assert page.count("<polyline") == 4
    assert re.findall(r'<g class="best" data-trial="(\d)"', page) == ["3", "3"], "a curve, and a score by value"


def test_the_page_has_curves_of_each_own_metric(service: Serviced) -> None:
    service.queue.change(service.queue.add("s", []), state="complete", ended_s=1.0)
    write_measured(service.sweeps.folder.sweeps / "s", 4)
    page = service.ask("GET", "/sweeps/s", headers=service.log_in()).text
    images = re.findall(r'aria-label="The mean (\S+) of (\d) trials', page)
    assert images == [("return", "4"), ("is_success", "4"), ("a/energy", "3")]


def test_the_page_compares_trials_by_columns_of_their_values(service: Serviced) -> None:
    service.queue.change(service.queue.add("s", []), state="complete", ended_s=1.0)
    write_sweep(service.sweeps.folder.sweeps / "s", 3)
    page = service.ask("GET", "/sweeps/s", headers=service.log_in()).text
    assert re.findall(r'data-label="lr">([^<]+)<', page) == ["0.01", "0.001", "1e-4"]
    assert sorted(re.findall(r'data-trial="(\d)"', page)) == [*"000111222"], "a row, a curve and a dot of each"


def test_a_sweeps_page_opens_its_own_mlflow(service: Serviced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own server even where the service has another one, and no link to a store that no server shows."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ours:5000")
    service.queue.change(service.queue.add("s", []), state="complete", ended_s=1.0)
    folder = write_sweep(service.sweeps.folder.sweeps / "s", 2)
    links = []
    for store in (
        None,
        {"uri": "http://theirs:5302", "experiment": "7"},
        {"uri": "sqlite:////x/mlflow.db", "experiment": "1"},
    ):
        with closing(open_ledger(folder)) as ledger:
            ledger.change_sweep(mlflow=store)
        page = service.ask("GET", "/sweeps/s", headers=service.log_in()).text
        links.append(re.findall(r'id="charts" href="([^"]+)"', page))
    assert links[0] == links[2] == []
    assert links[1][0].startswith("http://theirs:5302/#/experiments/7/runs?")
    assert "compareRunsMode=CHART" in links[1][0]


def test_a_configuration_is_tried_with_ranges_in_sight(service: Serviced) -> None:
    for name, state in (("whole", "complete"), ("broken", "failed")):
        service.queue.change(service.queue.add(name, []), state=state, ended_s=1.0)
        write_sweep(service.sweeps.folder.sweeps / name, 3, None, state)
    page = service.ask("GET", "/sweeps/whole", headers=service.log_in()).text
    assert re.findall(r'id="space-lr" value="" placeholder="([^"]*)"', page) == ["0.01"]
    assert "<small>loguniform 1e-4, 0.01</small>" in page
    assert 'id="enqueue"' not in service.ask("GET", "/sweeps/broken", headers=service.log_in()).text


def test_the_page_of_a_sweep_counts_its_running_trials(service: Serviced) -> None:
    service.queue.change(service.queue.add("s", []), state="running")
    folder = write_sweep(service.sweeps.folder.sweeps / "s", 2, None, "running")
    with closing(open_ledger(folder)) as ledger:
        ledger.trials.start(ledger.trials.add({"lr": 1e-3}, [1]).number)
    page = service.ask("GET", "/sweeps/s", headers=service.log_in()).text
    assert "<dt>Running trials</dt><dd>1</dd>" in page


@pytest.mark.parametrize("text", ["[1", "{a: ", "*a", "!!python/object:os.system x", "\0", "a: b: c", "\tx", "'"])
def test_what_is_no_value_is_refused_at_its_field(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_arguments("enqueue", {"space.lr": text})
    assert error.value.key == "space.lr"


def test_values_to_be_enqueued_are_numbers_where_they_are() -> None:
    typed = {"space.lr": "1e-3", "space.n_step": "3", "space.activation": "relu", "space.gamma": " "}
    assert read_arguments("enqueue", typed) == {"space": {"lr": 1e-3, "n_step": 3, "activation": "relu"}}
    assert read_arguments("resume", {"trials": "40"}) == {"overrides": ["budget.trials=40"]}
    assert read_arguments("resume", {}) == read_arguments("stop", {"from": "list"}) == {}
    with pytest.raises(RltuneError) as error:
        read_arguments("resume", {"trials": "many"})
    assert error.value.key == "trials"


def test_the_login_gets_its_style_and_script_without_a_token(service: Serviced) -> None:
    files = re.findall(r'(?:href|src)="(/[^"]+)"', service.ask("GET", "/login").text.partition("<body>")[0])
    assert len(files) == 2
    for file in files:
        assert service.ask("GET", file).status_code == 200
    assert service.ask("GET", "/static/%2e%2e/templates/base.html").status_code == 404


def test_without_a_login_there_is_a_login(service: Serviced) -> None:
    answer = service.ask("GET", "/sweeps/any")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    ours = {"Origin": service.address}
    wrong = service.ask("POST", "/login", data={"token": "guess"}, headers=ours)
    assert wrong.status_code == 401
    assert "Set-Cookie" not in wrong.headers


def test_a_name_of_markup_and_a_log_of_markup_stay_text(service: Serviced) -> None:
    service.queue.add("s", ["+algo.x=<script>alert(1)</script>"])
    service.sweeps.folder.log_of("s").write_text("<img src=x onerror=alert(1)>")
    for path in ("/", "/sweeps/s", "/sweeps/s?part=true"):
        page = service.ask("GET", path, headers=service.log_in()).text
        assert "<script>alert" not in page
        assert "<img" not in page
    assert "&lt;img" in page


def test_a_report_runs_apart_and_nothing_beside_it_is_shown(service: Serviced) -> None:
    service.queue.add("s", [])
    report = write_sweep(service.sweeps.folder.sweeps / "s", 1) / "report"
    report.mkdir()
    (report / "index.html").write_text("the report")
    (report / ".index.html").write_text("a draft")
    cookie = service.log_in()
    answer = service.ask("GET", "/sweeps/s/report/index.html", headers=cookie)
    assert answer.text == "the report"
    assert answer.headers["Content-Security-Policy"].startswith("sandbox")
    assert service.sweeps.show("s")["report"] is True
    for file in (".index.html", "..%2fconfig.yaml", "%2e%2e/config.yaml", "none.html"):
        assert service.ask("GET", f"/sweeps/s/report/{file}", headers=cookie).status_code in (404, 422)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_sweep_is_submitted_watched_stopped_and_resumed_by_clicks(service: Serviced, browser: Browser) -> None:
    browser.click("nav a[href='/submit']")
    browser.wait("document.getElementById('submit') && document.documentElement.dataset.ready")
    browser.type("#field-name", "mine")
    browser.choose("#field-algo", "dqn")
    browser.type("#field-overrides", "budget.trails=3")
    browser.click("#submit")
    browser.wait("document.querySelector('[role=alert]')")
    browser.wait("document.activeElement.id === 'field-overrides'")
    browser.complaints.clear()  # a browser notes the answer's status
    kept = "['name', 'algo', 'overrides'].map(name => document.getElementById(`field-${name}`).value)"
    assert browser.run(kept) == ["mine", "dqn", "budget.trails=3"], "nothing has to be typed again"
    browser.run("document.getElementById('field-overrides').value = ''")
    browser.type("#field-overrides", "budget.trials=3")
    browser.wait("document.getElementById('cost').innerText.includes('3 trials x ')")
    assert "rltune submit algo=dqn budget.trials=3 name=mine" in browser.text()
    browser.click("#submit")
    browser.wait("location.pathname === '/sweeps/mine'")
    assert service.queue.get("mine").overrides == ("algo=dqn", "budget.trials=3")
    browser.wait("document.querySelector('.state')?.innerText.includes('in the queue')")

    service.sweeps.dispatcher.step()
    browser.wait("document.querySelector('.state.running')")
    assert browser.run("document.querySelector('.state').innerText") == "starting"
    folder = write_sweep(service.sweeps.folder.sweeps / "mine", 0, None, "running", "budget.trials=3")
    with closing(open_ledger(folder)) as ledger:
        number = ledger.trials.add({"lr": 1e-3}, [1]).number
        add_reports(ledger, number, {200: 1.0, 400: 2.0})
    service.sweeps.folder.log_of("mine").write_text("more\n" * 99 + "trial 0 reports\n")
    browser.wait("document.querySelectorAll('#table-trials tbody tr').length === 1")
    browser.wait("document.querySelector('.log').innerText.includes('trial 0 reports')")
    assert browser.run("document.querySelector('.log').scrollTop") > 0, "the end is in sight"
    with closing(open_ledger(folder)) as ledger:
        for _ in range(20):
            ledger.trials.add({"lr": 1e-3}, [1])
    browser.wait("document.getElementById('other-trials')")
    browser.run("document.getElementById('other-trials').open = true")
    service.sweeps.folder.log_of("mine").write_text("news\n")
    browser.wait("document.querySelector('.log').innerText.includes('news')")
    assert browser.run("document.getElementById('other-trials').open"), "what was opened stays open"

    press = "dispatchEvent(new PointerEvent('pointerdown', {bubbles: true, button: 0}))"
    browser.run(f"window.button = document.getElementById('stop-mine'); window.button.{press}")
    service.sweeps.folder.log_of("mine").write_text("later\n")
    browser.run("refresh()")
    assert browser.run("window.button.isConnected"), "what is pressed is not replaced before it is released"
    browser.run("dispatchEvent(new Event('pointerup')); refresh()")
    assert not browser.run("window.button.isConnected")
    browser.run(f"window.button = document.getElementById('stop-mine'); document.querySelector('.log').{press}")
    service.sweeps.folder.log_of("mine").write_text("latest\n")
    browser.run("refresh()")
    assert not browser.run("window.button.isConnected"), "a press beside it, such as on a scrollbar, holds nothing up"
    browser.click("#stop-mine")
    browser.wait("document.querySelector('.state').innerText === 'stopping'")
    assert service.processes.stopped == ["mine"]
    service.processes.endings["mine"] = Ending(143)
    service.sweeps.dispatcher.step()
    browser.click("#resume-mine")
    browser.wait("document.querySelector('.state').innerText.includes('in the queue')")
    assert state(service, "mine") == "queued"
    assert browser.complaints == [], "nothing was refused by the page's own policy"


@pytest.mark.nightly
@pytest.mark.slow
def test_failed_trials_and_enqueued_values_go_on_by_clicks(service: Serviced, browser: Browser) -> None:
    service.queue.change(service.queue.add("done", []), state="complete", ended_s=1.0)
    folder = write_sweep(service.sweeps.folder.sweeps / "done", 3, make_certification(), "complete", "budget.trials=4")
    with closing(open_ledger(folder)) as ledger:
        ledger.trials.end(ledger.trials.add({"lr": 1e-3}, [1]).number, "FAIL", "broken-pole")
    browser.open(f"{service.address}/sweeps/done")
    assert "broken-pole" in browser.text()
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


@pytest.mark.nightly
@pytest.mark.slow
def test_a_long_list_is_filtered_and_sorted_by_clicks(service: Serviced, browser: Browser) -> None:
    for number in range(12):
        added = service.queue.add(f"s{number}", [f"seed={number}"], "odd" if number % 2 else "even")
        service.queue.change(added, state="complete", started_s=time.time(), ended_s=100.0 + number)
        write_sweep(service.sweeps.folder.sweeps / f"s{number}", number)
    browser.open(service.address)
    browser.wait("document.documentElement.dataset.ready")
    begun = browser.run("[...document.querySelectorAll('time')].map(time => time.innerText)")
    assert all(re.fullmatch(r"\d\d:\d\d.*, just now", text) for text in begun), (
        "on the reader's clock, without the date"
    )
    names = "[...document.querySelectorAll('#sweeps tbody tr')].filter(row => row.checkVisibility())"
    names += ".map(row => row.cells[0].querySelector('a').innerText)"
    assert browser.run(names) == [f"s{number}" for number in range(11, -1, -1)]
    browser.choose("[name=group]", "even")
    browser.run("document.querySelector('[name=group]').dispatchEvent(new Event('input', {bubbles: true}))")
    assert browser.run(names) == ["s10", "s8", "s6", "s4", "s2", "s0"]
    assert browser.run("document.getElementById('compare').href").endswith("/compare?group=even")
    browser.click("#sort-sweeps-Best")
    browser.click("#sort-sweeps-Best")
    assert browser.run(names) == ["s2", "s4", "s6", "s8", "s10", "s0"], "the least first, what has no score last"
    browser.run("refresh()")
    assert browser.run(names)[0] == "s2", "what is fetched again is shown in the same way"
    browser.click("#sort-sweeps-Best")
    assert browser.run(names)[0] == "s10"
    browser.open(browser.run("location.href"))
    assert browser.run(names)[-1] == "s0", "the address has the filter"
    browser.type("[name=search]", "seed=8")
    assert browser.run(names) == ["s8"]
    assert browser.complaints == []


@pytest.mark.nightly
@pytest.mark.slow
def test_a_trial_is_picked_in_all_figures_by_a_click(service: Serviced, browser: Browser) -> None:
    service.queue.change(service.queue.add("s", []), state="complete", ended_s=1.0)
    write_sweep(service.sweeps.folder.sweeps / "s", 23)
    browser.open(f"{service.address}/sweeps/s")
    browser.wait("document.documentElement.dataset.ready")
    shown = "[...document.querySelectorAll('#table-trials tbody tr')].filter(row => row.checkVisibility())"
    shown += ".map(row => row.dataset.trial)"
    assert browser.run(shown) == [*map(str, range(22, 2, -1))]
    browser.click("#sort-table-trials-lr")
    browser.click("#sort-table-trials-lr")
    assert browser.run(shown) == [*map(str, range(20))], "all are sorted, and the first ones shown"
    browser.click("#table-trials tr[data-trial='2'] td")
    picked = "[...document.querySelectorAll('.picked')].map(each => each.tagName + each.dataset.trial).sort().join()"
    assert browser.run(picked) == "TR2,g2,g2"
    service.sweeps.folder.log_of("s").write_text("news\n")
    browser.run("refresh()")
    assert browser.run("document.querySelector('.log').innerText") == "news\n"
    assert browser.run(picked) == "TR2,g2,g2"
    browser.click("#other-trials summary")
    assert browser.run(shown) == [*map(str, range(23))]
    browser.click("#table-trials tr[data-trial='2'] td")
    assert browser.run(picked) == ""
    assert browser.complaints == []


@pytest.mark.nightly
@pytest.mark.slow
def test_on_a_phone_nothing_hangs_over_and_all_has_a_name(service: Serviced, browser: Browser) -> None:
    for name in ("cartpole-ppo-20261122-120000-abcd", "short"):
        service.queue.add(name, ["algo=ppo", "space.lr=[loguniform,0.00001,0.001]", "env.id=SomeQuiteLongName-v0"])
    write_sweep(service.sweeps.folder.sweeps / "short", certified=make_certification())
    browser.resize(390)
    unnamed = """[...document.querySelectorAll('button, a, input:not([type=hidden]), select, textarea, svg, progress')]
        .filter(one => !(one.getAttribute('aria-label') || one.innerText || (one.labels && one.labels.length)))
        .map(one => one.outerHTML)"""
    for path in ("/", "/sweeps/short", "/submit", "/login"):
        browser.open(f"{service.address}{path}")
        browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert browser.run("document.documentElement.scrollWidth") <= 390, path
        assert browser.run(unnamed) == [], path
        assert browser.run("document.documentElement.lang") == "en"
