"""A ``close`` that raises is one warning, and costs nothing that was played before it."""

from __future__ import annotations

import contextlib
import errno
import signal
import time
from functools import partial
from typing import Any

import gymnasium
import pytest

from rltune.engine.sampling.vector_envs import make_envs
from rltune.envs import closing
from rltune.envs.closing import close_env
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import ConfigError, GuestError
from rltune.policies.evaluation import Copies, _play


class NoWindow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, True, False, {}

    def close(self) -> None:
        raise AttributeError("no attribute 'window'")


class Leaves(NoWindow):
    def close(self) -> None:
        raise SystemExit(3)


@pytest.fixture(autouse=True)
def env_id(monkeypatch: pytest.MonkeyPatch) -> str:
    spec = gymnasium.envs.registration.EnvSpec("NoWindow-v0", NoWindow)
    monkeypatch.setitem(gymnasium.registry, "NoWindow-v0", spec)
    closing._warn.cache_clear()
    return "NoWindow-v0"


def test_a_close_that_raises_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        close_env(NoWindow())
    (record,) = caplog.records
    assert "close" in record.getMessage()
    assert "no attribute 'window'" in record.getMessage()


def test_the_check_outlives_it(env_id: str) -> None:
    facts = check_env(EnvSpec(env_id))
    assert facts is not None
    note = facts.notes[-1]
    assert note.startswith("close fails with AttributeError")


@pytest.mark.parametrize("vectorize", ["sync", "async"])
def test_a_trials_environments_outlive_it(env_id: str, vectorize: str) -> None:
    from ray.rllib.algorithms.ppo import PPOConfig

    config = PPOConfig().environment(env_id).env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode=vectorize)
    envs = make_envs(config)
    envs.reset([0, 1])
    envs.close()


def test_an_evaluation_keeps_its_episodes() -> None:
    class Idle:
        def stack(self, observations: Any) -> Any:
            return observations

        def predict(self, obs: Any, *args: Any) -> tuple[list[int], None]:
            return [0] * len(obs), None

    class Windows(Copies):
        def take(self, *about: Any) -> list[Any]:
            self._envs = [NoWindow(), NoWindow()]
            return self._envs

    with Windows() as windows:
        play = partial(_play, Idle(), windows, {"id": "NoWindow-v0"}, 5, 0, True, lambda *made: None)
        records, _ = play()
    assert [record[:3] for record in records] == [(1.0, 1, 1.0)] * 5


def test_a_close_that_ends_the_program_does_not_end_ours(caplog: pytest.LogCaptureFixture) -> None:
    close_env(Leaves())
    assert "close of Leaves" in caplog.text


@pytest.mark.fast
@pytest.mark.parametrize(("index", "error"), [(1, RuntimeError("no licence")), (0, OSError(errno.EADDRINUSE, "taken"))])
def test_a_copy_beside_others_that_fails_names_per_copy(index: int, error: Exception) -> None:
    def make(number: int) -> NoWindow:
        if number == index:
            raise error
        return NoWindow()

    with pytest.raises(GuestError) as failed:
        closing.make_copies(make, 3)
    assert "env.per_copy" in failed.value.fix
    assert "env.max_copies" in failed.value.fix
    assert (f"{closing.COPIES}=1" in failed.value.fix) == (index == 1)


@pytest.mark.fast
def test_the_check_of_an_address_in_use_advises_per_copy(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(NoWindow, "__init__", fail)
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id))
    assert "env.per_copy" in refused.value.fix


def test_a_close_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that suppresses exceptions; the handler of the timer is as before."""

    class Hanging:
        def close(self) -> None:
            with contextlib.suppress(Exception):
                time.sleep(60)

    monkeypatch.setattr(closing, "CLOSE_S", 0.05)
    monkeypatch.setattr(closing, "_hangs", [])
    monkeypatch.setattr(signal, "getitimer", lambda which: (0.0, 0.0))  # The tests' own time limit uses the timer.
    began, handler = time.monotonic(), signal.getsignal(signal.SIGALRM)
    closing.close_env(Hanging())
    assert time.monotonic() - began < 10
    assert "close" in caplog.text
    assert signal.getsignal(signal.SIGALRM) == handler
    assert closing._hangs == [0.05], "those after it get less"


def test_a_close_is_called_where_no_handler_can_be_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an interpreter that exits, ``signal.getsignal`` gives None, which ``signal.signal`` refuses."""
    closed: list[str] = []

    class Late:
        def close(self) -> None:
            closed.append("late")

    monkeypatch.setattr(signal, "getitimer", lambda which: (0.0, 0.0))  # The tests' own time limit uses the timer.
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: pytest.fail("a timer without a handler"))
    closing.close_env(Late())
    assert closed == ["late"]
