"""A client of MLflow and the store that it makes."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rltune.config.uris import resolve_uri
from rltune.errors import RltuneError, UnavailableError
from rltune.tracking.mlflow_client import check_uri, make_artifact_folder, make_store
from rltune.tracking.mlflow_runs import MLflowRuns

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow


@pytest.mark.slow
def test_a_driver_killed_meanwhile_leaves_no_half_made_store(tmp_path):
    store = tmp_path / "mlflow.db"
    code = "import sys; from rltune.tracking import mlflow_client; mlflow_client.make_store(sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", code, f"sqlite:///{store}"])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".mlflow.db-*/mlflow.db")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert list(tmp_path.glob(".mlflow.db-*/mlflow.db")), "it was at work"
    assert not store.exists()


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "postgresql://127.0.0.1:9/mlflow"])
def test_no_file_is_made_for_a_server(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_store(address)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_there_is_left_as_it_is(tmp_path):
    store = tmp_path / "mlflow.db"
    store.write_bytes(b"somebody's")
    make_store(f"sqlite:///{store}")
    assert store.read_bytes() == b"somebody's"


@pytest.mark.slow
def test_a_new_store_and_its_artifacts_are_readable_by_their_owner_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # mlflow.set_tracking_uri leaves it behind
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    try:
        runs = MLflowRuns(resolve_uri(None), "cartpole")
        runs.connect()
        runs.open_experiment()
        runs.log_text(runs.create("sweep", {}, 0), "text", "file.txt")
    finally:
        os.umask(before)
    assert (tmp_path / "mlflow.db").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "mlruns").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "mlruns").rglob("file.txt")), "there they are"


def test_artifact_folders_that_are_there_or_elsewhere_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir(mode=0o755)
    for location in (
        f"file://{tmp_path}/mine/1",
        "s3://bucket/mlruns/1",
        "mlflow-artifacts:/1",
        str(tmp_path / "mine/2"),
    ):
        make_artifact_folder(location)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755
    make_artifact_folder(f"file://{tmp_path}/new%20one/1")
    assert (tmp_path / "new one").stat().st_mode & 0o777 == 0o700


# -- the first request, before a sweep starts --------------------------------------------------------------------------


def test_a_server_that_answers_passes_the_check(server):
    check_uri(server.uri)


class _Experiments(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server on this machine, which `mlflow.test` names as well."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    resolve = socket.getaddrinfo
    here = {"mlflow.test": "127.0.0.1"}
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **named: resolve(here.get(host, host), *more, **named)
    )
    with http.server.HTTPServer(("127.0.0.1", 0), _Experiments) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield listening.server_port
        listening.shutdown()


PROXIES = [
    ("http_proxy", "http://127.0.0.1:9"),
    ("HTTP_PROXY", "http://me:hunter2@127.0.0.1:9"),
    ("all_proxy", "http://127.0.0.1:9"),
    ("ALL_PROXY", "socks5://127.0.0.1:9"),
]


@pytest.mark.parametrize(("variable", "proxy"), PROXIES)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_an_address_of_this_machine_goes_through_no_proxy(
    host: str, variable: str, proxy: str, answering: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy)
    if host == "127.0.0.2":
        resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **named: resolve("127.0.0.1", *more, **named))
    check_uri(f"http://{host}:{answering}")


@pytest.mark.parametrize(("variable", "proxy"), PROXIES)
def test_a_proxy_that_fails_is_named_and_can_be_left_out(
    variable: str, proxy: str, answering: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy)
    with pytest.raises(UnavailableError) as refused:
        check_uri(f"http://mlflow.test:{answering}")
    assert variable in refused.value.what
    assert "hunter2" not in str(refused.value)
    assert refused.value.fix == "export no_proxy=$no_proxy,mlflow.test"
    monkeypatch.setenv("no_proxy", f"{os.environ['no_proxy']},mlflow.test")
    check_uri(f"http://mlflow.test:{answering}")


@pytest.mark.parametrize(
    ("uri", "exit_code"),
    [
        ("http://me:hunter2@127.0.0.1:9", 75),
        ("http://no-such-host.invalid:5000", 75),
        ("postgresql://me:hunter2@127.0.0.1:9/mlflow", 75),
        ("sqlite:////etc/hostname/mlflow.db", 2),
        ("./mlruns", 2),
        ("htp://localhost:5000", 2),
    ],
)
def test_an_address_that_cannot_work_is_refused(uri, exit_code, monkeypatch):
    resolve = socket.getaddrinfo

    def resolve_here(host, *more, **named):  # a machine's own resolver may take its time, or know an address for it
        if host == "no-such-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
    began = time.monotonic()
    with pytest.raises(RltuneError) as refused:
        check_uri(uri)
    assert time.monotonic() - began < 60, "MLflow's own client tries for minutes"
    assert (refused.value.key, refused.value.exit_code) == ("tracking.uri", exit_code)
    assert refused.value.allowed
    assert refused.value.fix
    assert "hunter2" not in refused.value.pretty()


@contextlib.contextmanager
def answer_with(status, delay_s=0.0, **headers):
    """Run an HTTP server with one answer to all; yield its address and the logins that it received."""
    logins = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            logins.append(self.headers.get("Authorization"))
            time.sleep(delay_s)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", logins
        server.shutdown()


@pytest.mark.parametrize(("status", "exit_code"), [(401, 2), (403, 2), (404, 2), (429, 75), (500, 75), (503, 75)])
def test_a_server_that_fails_may_be_asked_again_later(status, exit_code):
    with answer_with(status) as (host, _), pytest.raises(RltuneError) as refused:
        check_uri(f"http://{host}")
    assert (refused.value.key, refused.value.exit_code) == ("tracking.uri", exit_code)


def test_a_login_follows_no_redirect():
    with (
        answer_with(200) as (elsewhere, received),
        answer_with(302, Location=f"http://{elsewhere}/x") as (host, logins),
        pytest.raises(RltuneError),
    ):
        check_uri(f"http://me:hunter22@{host}")
    assert logins == [f"Basic {base64.b64encode(b'me:hunter22').decode()}"]
    assert received == []


def test_a_login_is_read_from_mlflows_own_variables(monkeypatch):
    with answer_with(200) as (host, logins):
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
        check_uri(f"http://{host}")
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter22")
        check_uri(f"http://{host}")
    assert logins == ["Bearer t0ken", f"Basic {base64.b64encode(b'me:hunter22').decode()}"]


def test_a_server_that_never_answers_is_refused_in_time(monkeypatch):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            check_uri(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert time.monotonic() - began < 60, "MLflow's own client waits for minutes"


def test_the_first_answer_may_be_as_slow_as_later_ones():
    with answer_with(200, delay_s=2.5) as (host, _):
        check_uri(f"http://{host}")


@pytest.mark.parametrize("typed", ["soon", "-1", ""])
def test_a_time_out_that_is_no_number_is_refused(typed, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", typed)
    with pytest.raises(RltuneError) as refused:
        check_uri("http://127.0.0.1:9")
    assert (refused.value.key, refused.value.exit_code) == ("MLFLOW_HTTP_REQUEST_TIMEOUT", 2)


def test_the_check_writes_nothing_and_imports_no_mlflow(tmp_path):
    program = (
        "import sys; from rltune.tracking.mlflow_client import check_uri; check_uri(None); "
        "print('mlflow' in sys.modules)"
    )
    path = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
    assert list(tmp_path.iterdir()) == []
