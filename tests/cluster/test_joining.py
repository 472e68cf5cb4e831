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

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # It starts Rays of its own.

TOKEN = secrets.token_hex(32)
MODE = {"RAY_AUTH_MODE": "token"}
WHOLE = MODE | {"RAY_AUTH_TOKEN": TOKEN}
AT_HOME = "{home}/.ray/auth_token"
# Which Ray, by which address, with what in the environment and whether with the token in ~/.ray: the CPUs that are
# joined, or a part of the error's first line that only this error has.
WAYS: dict[str, tuple[str, str, dict[str, str], bool, int | str]] = {
    "its token": ("guarded", "{}", WHOLE, False, 2),
    "its token in a file": ("guarded", "{}", MODE | {"RAY_AUTH_TOKEN_PATH": AT_HOME}, True, 2),
    "its token at home": ("guarded", "{}", MODE, True, 2),
    "no token": ("guarded", "{}", {}, False, "token"),
    "a mode and no token": ("guarded", "{}", MODE, False, "token"),
    "another token": ("guarded", "{}", MODE | {"RAY_AUTH_TOKEN": TOKEN[::-1]}, False, "token"),
    "a file that is not there": ("guarded", "{}", MODE | {"RAY_AUTH_TOKEN_PATH": "/nowhere"}, False, "token"),
    "another version": ("older", "{}", {}, False, "Ray 2.59.9"),
    "nobody there": ("open", "127.0.0.1:9", {}, False, "127.0.0.1:9"),
    "a Ray of its own": ("open", "own", {"RAY_ADDRESS": "{}"}, False, 1),
}


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


@pytest.mark.parametrize("way", WAYS)
def test_a_ray_is_joined_or_refused_in_three_parts(way: str, joined: dict[str, tuple[int, str, float]]) -> None:
    code, out, _ = joined[way]
    *_, expected = WAYS[way]
    if isinstance(expected, int):
        assert (code, out.split()[-2:]) == (0, [str(expected), "CPUs"]), out
        return
    assert code == (75 if way == "nobody there" else 2), out
    error, allowed, fix = out.splitlines()[-3:]  # Ray's own lines about its attempts come before
    assert error.startswith("error: cluster.address=")
    assert expected in error
    assert (allowed.split(":")[0].strip(), fix.split(":")[0].strip()) == ("allowed", "try")
    assert ("RAY_AUTH_TOKEN" in fix) is (expected == "token")


def test_a_refused_sweep_leaves_nothing_behind(rays: dict[str, str], tmp_path: Path) -> None:
    wrong = MODE | {"RAY_AUTH_TOKEN": TOKEN[::-1]}
    code, out = sweep("run", tmp_path, f"cluster.address={rays['guarded']}", **wrong)
    assert (code, "RAY_AUTH_TOKEN" in out) == (2, True), out
    assert not (tmp_path / "outputs").exists()


def test_a_job_joins_its_cluster_and_saves_all_when_stopped(rays: dict[str, str], tmp_path: Path) -> None:
    words = (
        "cluster.address=auto",
        "budget.trials=2",
        "algo.training.learner_config_dict.seconds=0.5",
        "checkpoint.every_s=1000",
    )
    kept = "outputs/toy/trials/*/*/best-*"  # there has been a report
    code, out = finish(submit_sweep(rays["guarded"], tmp_path, *words, stop_when=kept, **WHOLE))
    assert code == 0, out
    assert out.rstrip().endswith("STOPPED"), out
    assert json.loads((tmp_path / "outputs/toy/summary.json").read_text())["status"] == "interrupted"
    assert list(tmp_path.glob("outputs/toy/trials/*/*/latest-*")), "saved at the end: no other moment was due"
