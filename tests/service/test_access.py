"""Who is let in: the token's holder, and a browser only from the service's own page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from rltune.service.access import MAX_BODY_BYTES, Access, list_hosts
from tests.service.serviced import TOKEN, Serviced, run_service

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serviced]:
    with run_service(tmp_path_factory.mktemp("service") / "outputs") as service:
        yield service


@pytest.mark.parametrize(
    ("method", "user", "origin", "status"),
    [
        ("GET", "nobody", None, 401),
        ("GET", "token", None, 200),
        ("GET", "cookie", None, 200),
        ("POST", "nobody", None, 401),
        ("POST", "token", None, 422),  # The request was let in; its body is missing.
        ("POST", "cookie", None, 403),
        ("POST", "cookie", "own", 422),
        ("POST", "cookie", "http://127.0.0.1:9999", 403),
        ("POST", "cookie", "https://evil.example", 403),
        ("POST", "cookie", "null", 403),
        ("POST", "token", "https://evil.example", 403),
        ("POST", "nobody", "own", 401),
        ("POST", "wrong", None, 401),
        ("GET", "wrong", None, 401),
        ("GET", "empty", None, 401),
        ("GET", "basic", None, 401),
        ("GET", "token as cookie", None, 401),
        ("GET", "cookie as token", None, 401),
        ("GET", "broken cookie", None, 401),
    ],
)
def test_who_may_do_what(service: Serviced, method: str, user: str, origin: str | None, status: int) -> None:
    cookie = service.log_in()["Cookie"]
    name, _, value = cookie.partition("=")
    headers = {
        "nobody": {},
        "token": BEARER,
        "cookie": {"Cookie": f"other=1; {cookie}"},
        "wrong": {"Authorization": f"Bearer {TOKEN[:-1]}"},
        "empty": {"Authorization": "Bearer "},
        "basic": {"Authorization": f"Basic {TOKEN}"},
        "token as cookie": {"Cookie": f"{name}={TOKEN}"},
        "cookie as token": {"Authorization": f"Bearer {value}"},
        "broken cookie": {"Cookie": f"{name}=x{value[1:]}; =;;\x01"},
    }[user]
    if origin is not None:
        headers = headers | {"Origin": service.address if origin == "own" else origin}
    answer = service.ask(method, "/api/sweeps", headers=headers)
    assert answer.status_code == status
    assert answer.headers.get("WWW-Authenticate") == ("Bearer" if status == 401 else None)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8288", 200),
        ("localhost:8288", 200),
        ("[::1]:8288", 200),
        ("evil.example:8288", 400),
        ("127.0.0.1.evil.example", 400),
        ("", 400),
        ("[", 400),
    ],
)
def test_a_host_name_of_somebody_else_is_refused(service: Serviced, host: str, status: int) -> None:
    assert service.ask("GET", "/api/sweeps", headers=BEARER | {"Host": host}).status_code == status


def test_names_that_were_given_are_among_the_hosts() -> None:
    assert {"sweeps.example.org", "localhost", "127.0.0.1", "[::1]"} <= set(list_hosts(["sweeps.example.org"]))


def test_without_a_token_only_the_login_is_seen(service: Serviced) -> None:
    ours = {"Origin": service.address}
    assert service.ask("GET", "/login").status_code == 200
    assert service.ask("POST", "/login").status_code == 403
    assert service.ask("POST", "/login", headers=ours).status_code == 401
    assert service.ask("GET", "/").headers["Location"] == "/login"
    assert service.ask("GET", "/api/sweeps").status_code == 401
    assert service.ask("GET", "/api/openapi.json").status_code == 200, "what it describes has a token"


def test_a_cookie_is_private_and_is_not_the_token(service: Serviced) -> None:
    answer = service.ask("POST", "/login", data={"token": TOKEN}, headers={"Origin": service.address})
    cookie = answer.headers["Set-Cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie


def test_two_services_of_a_machine_have_a_cookie_each(service: Serviced, tmp_path: Path) -> None:
    with run_service(tmp_path / "outputs") as other:
        names = {one.log_in()["Cookie"].partition("=")[0] for one in (service, other)}
    assert len(names) == 2


def test_a_token_is_compared_in_constant_time(service: Serviced, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr("hmac.compare_digest", lambda *words: bool(compared.append(words)))
    assert not Access("a", 1).is_token("b\n")
    assert compared == [(b"b", b"a")]


@pytest.mark.parametrize("path", ["/login", "/api/sweeps"])
def test_a_body_from_a_stranger_is_limited(service: Serviced, path: str) -> None:
    def send_parts() -> Iterator[bytes]:
        for _ in range(3):
            yield b"x" * (MAX_BODY_BYTES // 2)

    for body in (b"x" * (MAX_BODY_BYTES + 1), send_parts()):
        try:
            status = service.ask("POST", path, data=body, headers={"Origin": service.address}).status_code
        except requests.ConnectionError:  # The service answered and hung up before everything was sent.
            continue
        assert status == 413
