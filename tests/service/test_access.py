"""Who is let in: the token's holder, and a browser only from the service's own page."""

from __future__ import annotations

import pytest

from rltune.service.access import Access, name_cookie

ACCESS = Access("the-token", ("sweeps.example.org",))
HOST = {"host": "127.0.0.1:8288"}
BEARER = HOST | {"authorization": "Bearer the-token"}
COOKIE = HOST | {"cookie": f"other=1; {name_cookie(HOST['host'])}={ACCESS.cookie}"}
OURS = {"origin": "http://127.0.0.1:8288"}


def status(method: str, path: str, headers: dict[str, str]) -> int:
    """What is answered; 200 stands for whatever comes of it."""
    refusal = ACCESS.refuse(method, path, headers)
    return refusal.status if refusal else 200


@pytest.mark.parametrize(
    ("method", "headers", "wanted"),
    [
        ("GET", HOST, 401),
        ("GET", BEARER, 200),
        ("GET", COOKIE, 200),
        ("POST", HOST, 403),
        ("POST", BEARER, 200),
        ("POST", COOKIE, 403),
        ("POST", COOKIE | OURS, 200),
        ("POST", COOKIE | {"origin": "http://127.0.0.1:9999"}, 403),
        ("POST", COOKIE | {"origin": "https://evil.example"}, 403),
        ("POST", COOKIE | {"origin": "null"}, 403),
        ("POST", BEARER | {"origin": "https://evil.example"}, 403),
        ("POST", HOST | OURS, 401),
        ("DELETE", COOKIE, 403),
        ("GET", HOST | {"authorization": "Bearer the-toke"}, 401),
        ("GET", HOST | {"authorization": "Bearer ü"}, 401),
        ("GET", HOST | {"authorization": "Basic the-token"}, 401),
        ("GET", HOST | {"cookie": f"{name_cookie(HOST['host'])}=the-token"}, 401),
        ("GET", HOST | {"cookie": "=;;\x01"}, 401),
    ],
)
def test_who_may_do_what(method: str, headers: dict[str, str], wanted: int) -> None:
    assert status(method, "/api/sweeps", headers) == wanted


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.0.0.1:8288", 200),
        ("localhost:8288", 200),
        ("[::1]:8288", 200),
        ("192.168.1.7", 200),
        ("sweeps.example.org", 200),
        ("evil.example:8288", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_a_name_that_is_not_ours_is_refused(host: str, wanted: int) -> None:
    assert status("GET", "/api/sweeps", BEARER | {"host": host}) == wanted


def test_without_a_token_the_login_alone_is_seen() -> None:
    assert status("GET", "/login", HOST) == 200
    assert status("POST", "/login", HOST) == 403
    assert status("POST", "/login", HOST | OURS) == 200
    assert status("GET", "/", HOST) == 401


def test_a_cookie_is_no_token() -> None:
    assert not ACCESS.is_token(ACCESS.cookie)
    assert ACCESS.is_token("the-token\n")
    assert status("GET", "/", HOST | {"authorization": f"Bearer {ACCESS.cookie}"}) == 401


def test_two_services_of_a_machine_have_a_cookie_each() -> None:
    assert name_cookie("127.0.0.1:1") != name_cookie("127.0.0.1:2")
