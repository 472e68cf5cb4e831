"""Ways to join a Ray that runs already: with a token, without, from a job, from another version."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from joined import finish, ray_head, sweep
from joining import OTHER_VERSION, join, submit_sweep

pytestmark = pytest.mark.slow  # Rays of its own

TOKEN = secrets.token_hex(32)
MODE = {"RAY_AUTH_MODE": "token"}
WHOLE = MODE | {"RAY_AUTH_TOKEN": TOKEN}
REFUSED = ": wrong or missing token\n  allowed: the cluster's own token, in RAY_AUTH_TOKEN"
# Which Ray, by which address, with what in the environment and whether with the token in ~/.ray: what is said.
WAYS = {
    "its token, without a mode": ("guarded", "{}", {"RAY_AUTH_TOKEN": TOKEN}, False, "joined 2 CPUs"),
    "its token in a file": ("guarded", "{}", {"RAY_AUTH_TOKEN_PATH": "{home}/.ray/auth_token"}, True, "joined 2 CPUs"),
    "its token at home": ("guarded", "{}", {}, True, "joined 2 CPUs"),
    "no token": ("guarded", "{}", {}, False, REFUSED),
    "a mode and no token": ("guarded", "{}", MODE, False, REFUSED),
    "another token": ("guarded", "{}", {"RAY_AUTH_TOKEN": TOKEN[::-1]}, False, REFUSED),
    "a file that is not there": ("guarded", "{}", {"RAY_AUTH_TOKEN_PATH": "/nowhere/token"}, False, REFUSED),
    "a token that it did not ask for": ("open", "auto", {"RAY_ADDRESS": "{}"}, True, "joined 2 CPUs"),
    "a mode that it has not": ("open", "{}", WHOLE, False, ": this Ray asks for no token, but RAY_AUTH_MODE=token is"),
    "another version": ("older", "{}", {}, False, ": Ray 2.59.9 on Python "),
    "nobody there": ("open", "127.0.0.1:9", {}, False, ": no Ray answers (ConnectionRefusedError"),
    "a Ray of its own": ("open", "own", {"RAY_ADDRESS": "{}"}, False, "joined 1 CPUs"),
}
AT_ONCE = ("no token", "a mode and no token", "another token", "a file that is not there", "a mode that it has not")
SOON_S = 20.0  # Ray itself tries for so long


@pytest.fixture(scope="module")
def rays() -> Iterator[dict[str, str]]:
    """A Ray that asks for a token, one that does not, and one of another version: their addresses."""
    older = (sys.executable, "-c", OTHER_VERSION)
    made = {"guarded": ray_head(**WHOLE), "open": ray_head(), "older": ray_head(1, older)}
    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        yield dict(zip(made, pool.map(stack.enter_context, made.values()), strict=True))


@pytest.fixture(scope="module")
def joined(rays: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, float]]:
    """All ways, two at a time: the exit code, what was said, the seconds until a refusal."""

    homes = {way: tmp_path_factory.mktemp("home") for way in WAYS}  # not in the threads: pytest's folders are for one

    def type_in(way: str) -> tuple[int, str, float]:
        ray, address, settings, at_home, _ = WAYS[way]
        home = homes[way]
        if at_home:
            (home / ".ray").mkdir()
            (home / ".ray" / "auth_token").write_text(TOKEN)
        filled = {name: value.format(rays[ray], home=home) for name, value in settings.items()}
        return join(address.format(rays[ray]), home, **filled)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(WAYS, pool.map(type_in, WAYS), strict=True))


@pytest.mark.replacement
@pytest.mark.parametrize("way", WAYS)
def test_a_ray_is_joined_or_it_is_said_why_not(way: str, joined: dict[str, tuple[int, str, float]]) -> None:
    code, out, took_s = joined[way]
    *_, said = WAYS[way]
    assert said in out
    assert code == (0 if said.startswith("joined") else 2), out
    if code:
        assert [line.split(":")[0].strip() for line in out.splitlines()] == ["error", "allowed", "try"]
    assert took_s < SOON_S or way not in AT_ONCE, out


@pytest.mark.replacement
def test_a_refused_sweep_leaves_nothing_behind(rays: dict[str, str], tmp_path: Path) -> None:
    code, out = sweep("run", tmp_path, f"cluster.address={rays['guarded']}", RAY_AUTH_TOKEN=TOKEN[::-1])
    assert code == 2, out
    assert REFUSED in out
    assert not (tmp_path / "outputs").exists()


def test_a_job_joins_its_cluster_and_saves_all_when_stopped(rays: dict[str, str], tmp_path: Path) -> None:
    words = ("cluster.address=auto", "budget.trials=2", "algo.training.seconds=0.5", "checkpoint.every_s=1000")
    kept = "outputs/toy/trials/*/best-*"  # there has been a report
    code, out = finish(submit_sweep(rays["guarded"], tmp_path, *words, stop_when=kept, **WHOLE))
    assert code == 0, out
    assert out.rstrip().endswith("STOPPED"), out
    assert json.loads((tmp_path / "outputs/toy/summary.json").read_text())["status"] == "interrupted"
    assert list(tmp_path.glob("outputs/toy/trials/*/latest-*")), "saved at the end: no other moment was due"
