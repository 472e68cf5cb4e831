"""The client finds its service, speaks for a script, and says what is wrong in three parts."""

from __future__ import annotations

import concurrent.futures
import http.server
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from composing import compose
from omegaconf import OmegaConf
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

import rltune
import rltune.service.client
from rltune.cli.run import ResumeConfig, resume
from rltune.compose.command_settings import read_command_settings
from rltune.errors import ConfigError, RltuneError, UnavailableError, UnexpectedError
from rltune.service.client import Client, ServiceError, TokenError
from rltune.service.folder import ADDRESS, TOKEN
from rltune.service.processes import Ending
from tests.service.serviced import Serviced, run_service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serviced]:
    with run_service(tmp_path / "outputs") as service:
        yield service


def test_a_service_is_found_by_its_folder_by_a_variable_or_by_name(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ServiceError):
        rltune.Client()
    service.sweeps.folder.write_address(service.address)
    with pytest.raises(TokenError):
        Client().list()
    assert Client().address == service.address
    monkeypatch.setenv(ADDRESS, "http://127.0.0.1:1")
    with pytest.raises(ServiceError):
        Client().list()
    assert Client(service.address, "a-token").list() == []


def test_a_wrong_token_is_named_by_its_variable(service: Serviced) -> None:
    client = Client(service.address, "a-wrong-token")
    for request in (client.list, client.check, lambda: client.submit("algo=ppo"), lambda: client.stop("one")):
        with pytest.raises(TokenError) as error:
            request()
        assert error.value.key == TOKEN
        assert "a-wrong-token" not in str(error.value)


def test_a_token_that_is_not_set_is_not_called_wrong(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(TokenError) as error:
        Client(service.address, output_dir=str(tmp_path)).list()
    assert (error.value.key, error.value.value) == (TOKEN, None)


def test_a_script_submits_waits_and_reads_the_log(service: Serviced) -> None:
    client = service.client
    made = client.submit("algo=ppo", env="cartpole", budget={"trials": 3}, name="one", group="g")
    assert made["overrides"] == ["algo=ppo", "env='cartpole'", "budget.trials=3"]
    service.sweeps.dispatcher.step()
    with pytest.raises(TimeoutError):
        client.wait("one", timeout_s=0)
    log = service.sweeps.folder.log_of("one")
    log.write_text("begins\n")

    def end() -> None:
        with log.open("a") as file:
            file.write("ends\n")
        service.processes.endings["one"] = Ending(0)
        service.sweeps.dispatcher.step()

    timer = threading.Timer(0.5, end)
    timer.start()
    assert "".join(client.logs("one", follow=True)) == "begins\nends\n"
    assert [one["state"] for one in client.wait("one", timeout_s=10)] == ["complete"]
    assert [one["name"] for one in client.list("g")] == ["one"]
    assert client.list("h") == []


def test_verbs_reach_the_queue_and_their_refusals_come_back(service: Serviced) -> None:
    client = service.client
    client.submit(name="one")
    with pytest.raises(RltuneError) as error:
        client.enqueue("one", lr=1e-3)
    assert error.value.key == "sweep"
    assert client.stop("one")["state"] == "interrupted"
    assert client.resume("one", "budget.trials=3")["overrides"] == ["budget.trials=3"]
    # A waiting sweep is not resumed, one without a ledger has no trials to retry, and an unknown one is not shown.
    for request in (lambda: client.resume("one"), lambda: client.retry("one"), lambda: client.show("onne")):
        with pytest.raises(RltuneError) as error:
            request()
        assert error.value.key == "sweep"
        assert error.value.allowed
        assert error.value.fix


def test_a_resume_by_command_may_leave_trackers_out(
    service: Serviced, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "a-token")
    words = ["tracking.kinds=[gone_module:Log]", "seed=3"]
    service.queue.add("one", words, settings=OmegaConf.to_yaml(compose("run", "name=one", *words)))
    service.client.stop("one")
    words = ["sweep=one", "tracking.kinds=[]", f"service.address={service.address}"]
    assert resume.work(read_command_settings("resume", ResumeConfig, words)).exit_code == 0
    assert service.queue.get("one").overrides == ("seed=3", "tracking.kinds=[]")
    assert capsys.readouterr().out.startswith("one:")


@pytest.mark.parametrize("status", [200, 201, 302, 401, 404, 500, 502])
@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[1, 2]", b'{"error": "x"}', b""])
def test_an_answer_of_a_login_proxy_is_no_service(tmp_path: Path, status: int, body: bytes) -> None:
    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/login")
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *words: object) -> None:
            """Stay silent."""

    with http.server.HTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}", "a-token")
        requests: tuple[Callable[[], object], ...] = (
            client.check,
            client.list,
            lambda: client.submit("algo=ppo"),
            lambda: list(client.logs("one")),
            lambda: client.report("one"),
            lambda: client.table("one"),
            lambda: client.policy("one", tmp_path / "policy"),
            lambda: client.stop("one"),
        )
        for request in requests:
            with pytest.raises(ServiceError) as error:
                request()
            assert error.value.exit_code == 75
        server.shutdown()


def answer_502(port: int) -> http.server.HTTPServer:
    """Play a proxy that runs while its service restarts."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(502)

        def log_message(self, *words: object) -> None:
            """Stay silent."""

    server = http.server.HTTPServer(("127.0.0.1", port), Proxy)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


def test_who_waits_goes_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rltune.service.client, "INTERVAL_S", 0.05)
    monkeypatch.setattr(rltune.service.client, "PATIENCE_S", 30.0)
    outputs = tmp_path / "outputs"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with run_service(outputs) as service:
            waiting, following = service.client, service.client
            waiting.submit(name="one")
            service.sweeps.dispatcher.step()
            service.sweeps.folder.log_of("one").write_text("begins\n")
            log = following.logs("one", follow=True)
            assert next(log) == "begins\n"
            waited, logged = pool.submit(waiting.wait, "one"), pool.submit("".join, log)
            time.sleep(0.3)
        port = int(service.address.rpartition(":")[2])
        proxy = answer_502(port)
        time.sleep(0.3)
        proxy.shutdown()
        proxy.server_close()
        assert not any(each.done() for each in (waited, logged))
        with run_service(outputs, port=port) as service:
            service.sweeps.folder.log_of("one").write_text("begins\nends\n")
            service.processes.endings["one"] = Ending(0)
            service.sweeps.dispatcher.step()
            assert [sweep["state"] for sweep in waited.result(30)] == ["complete"]
            assert logged.result(30) == "ends\n"


def test_who_waits_gives_up_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rltune.service.client, "INTERVAL_S", 0.05)
    with run_service(tmp_path / "outputs") as service:
        client = service.client
        client.submit(name="one")
        client._session.headers["Authorization"] = "Bearer another"
        with pytest.raises(TokenError):  # At once: a person has to do something.
            client.wait("one")
    with pytest.raises(ServiceError):
        client.wait("one", timeout_s=0.3)  # Not the minutes that a restart may take.
    monkeypatch.setattr(rltune.service.client, "PATIENCE_S", 0.3)
    for wait in (lambda: client.wait("one"), lambda: list(client.logs("one", follow=True))):
        began_s = time.monotonic()
        with pytest.raises(ServiceError):
            wait()
        assert 0.3 <= time.monotonic() - began_s < 10


def test_a_restarted_service_of_a_folder_is_found_at_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "a-token")
    outputs = tmp_path / "outputs"
    with run_service(outputs) as service:
        service.sweeps.folder.write_address(service.address)
        client = Client(output_dir=str(outputs))
        client.submit(name="one")
    with pytest.raises(ServiceError):  # Whoever has the port now gets no token.
        client.list()
    with run_service(outputs) as service:
        service.sweeps.folder.write_address(service.address)
        assert [sweep["name"] for sweep in client.list()] == ["one"]
        assert client.address == service.address


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8288", "service", "ftp://service", "http://[::1", "http://127.0.0.1:99999"]
)
def test_what_is_no_address_is_a_wrong_request(address: str) -> None:
    with pytest.raises(ConfigError) as error:
        Client(address, "a-token").list()
    assert (error.value.key, error.value.value, error.value.exit_code) == ("service.address", address, 2)


@pytest.mark.parametrize("token", ["t\u20ac", "a\nb", "a\x00"])
def test_what_is_no_token_is_refused_before_it_is_sent(token: str) -> None:
    with pytest.raises(TokenError) as error:
        Client("http://127.0.0.1:1", token)
    assert error.value.key == TOKEN
    assert token not in str(error.value)


def test_a_line_break_after_the_token_is_no_part_of_it(service: Serviced) -> None:
    assert Client(service.address, "a-token\n").list() == []


def test_a_fault_of_the_service_is_marked_as_its_answer(service: Serviced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.sweeps.submissions, "list", lambda *_: 1 // 0)
    with pytest.raises(UnexpectedError, match="ZeroDivisionError"):
        service.client.list()


def test_a_database_that_restarts_is_an_outage_and_no_fault(service: Serviced, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = itertools.cycle(
        [
            OperationalError("SELECT 1", {}, Exception("terminating connection due to administrator command")),
            PoolTimeoutError("QueuePool limit of size 5 overflow 10 reached"),
        ]
    )

    def fail(*_: object) -> None:
        raise next(errors)

    monkeypatch.setattr(service.sweeps.submissions, "_read_rows", fail)
    client = service.client
    for request in 2 * (client.list, lambda: client.show("one"), lambda: client.stop("one"), lambda: client.submit()):
        with pytest.raises(UnavailableError) as error:
            request()
        assert error.value.exit_code == 75
    page = service.ask("GET", "/", headers=service.log_in() | {"Accept": "text/html"})
    assert page.status_code == 503
    assert "Content-Security-Policy" in page.headers
