"""What a call asks for, and what it refuses as the command does; a notebook of the examples runs one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from composing import compose
from ended import write_sweep

import rltune
from rltune.config.validation import parse_config


@pytest.fixture
def calls(monkeypatch, tmp_path) -> list[Any]:
    """The requests that a call makes, instead of running them."""
    monkeypatch.chdir(tmp_path)
    folder, requests = write_sweep(tmp_path / "done", 2), []

    def run(config, **more):
        requests.append((config, more))
        return SimpleNamespace(folder=folder)

    monkeypatch.setattr("rltune.driver.run.run_sweep", run)
    return requests


def test_a_call_asks_for_what_the_command_composes(calls):
    done = rltune.sweep(
        "algo=dqn",
        "env=acrobot",
        "~space.gamma",
        budget={"trials": np.int64(4), "env_steps": 1e5},
        space={"lr": ("loguniform", 1e-4, 1e-2)},
        certify="off",
        name="mine",
    )
    words = ("algo=dqn", "env=acrobot", "~space.gamma", "budget.trials=4", "budget.env_steps=100000")
    wanted = compose("run", *words, "space.lr=[loguniform,1e-4,1e-2]", "certify=off", "name=mine")
    ((config, more),) = calls
    assert config == parse_config(wanted)
    assert more["typed"].endswith("++space.lr=['\"'\"'loguniform'\"'\"',0.0001,0.01]' 'certify='\"'\"'off'\"'\"''")
    assert "mine" not in more["typed"], "a name can be used once"
    assert (done.name, len(done.trials)) == ("done", 2)


def test_a_call_may_search_what_the_spaces_file_lacks(calls):
    rltune.sweep(space={"fcnet_hiddens": ["choice", [64, 64], [256, 256]]}, env={"kwargs": {"render_mode": None}})
    ((config, _),) = calls
    assert config.space["fcnet_hiddens"] == ["choice", [64, 64], [256, 256]]
    assert config.space["lr"]
    assert config.env.kwargs == {"render_mode": None}


def test_an_id_of_the_program_gets_its_module_once(calls, monkeypatch):
    names = []
    monkeypatch.setattr("rltune.envs.validation.qualify_id", lambda env_id: names.append(env_id) or f"mine:{env_id}")
    rltune.sweep(env={"id": "Walk-v0"})
    ((config, _),) = calls
    assert (config.env.id, names) == ("mine:Walk-v0", ["Walk-v0"])


REFUSED = [
    (("algo=pp0",), {}, "algo=pp0"),
    (("ppo",), {}, "ppo"),
    ((3,), {}, "3"),
    ((), {"algo": "pp0"}, "algo=pp0"),
    ((), {"algo": 3}, ""),
    ((), {"budget": 4}, "budget"),
    ((), {"budget": {"trials": "many"}}, "budget.trials="),
    ((), {"budget": {"trials": 0}}, "budget.trials=0"),
    ((), {"budget": {"trils": 4}}, "budget.trils=4"),
    ((), {"bugdet": {"trials": 4}}, "bugdet"),
    ((), {"env": {"idd": "CartPole-v1"}}, "env.idd"),
    ((), {"env": object}, "env="),
    ((), {"space": {"lr": float("nan")}}, "space.lr=nan"),
    ((), {"space": {"lrr": 1e-3}}, "space.lrr"),
    ((), {"certify": "off", "name": "a/b"}, "name=a/b"),
    (("algo=sac", "env=cartpole"), {}, "algo=sac"),
    ((), {"output_dir": "/proc/x"}, "output_dir=/proc/x"),
    ((), {"config_dir": "/no/such"}, "config_dir=/no/such"),
    (("check=true",), {}, "check=true"),
    ((), {"check": True}, "check=true"),
]


@pytest.mark.parametrize(("words", "settings", "what"), REFUSED)
def test_a_call_refuses_in_three_parts_and_leaves_nothing(words, settings, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rltune.RltuneError) as refused:
        rltune.sweep(*words, **settings)
    assert refused.value.what.startswith(what)
    assert refused.value.allowed
    assert refused.value.fix
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_call_of_its_own_checks_a_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = rltune.check_sweep("env=cartpole", budget={"trials": 3}, space={"lr": ["loguniform", 1e-4, 1e-2]})
    assert (plan["trials"], plan["searched"]["lr"]) == (3, "[loguniform, 0.0001, 0.01]")
    with pytest.raises(rltune.RltuneError, match=r"budget\.trails"):
        rltune.check_sweep(budget={"trails": 3})
    monkeypatch.setattr(rltune.envs.validation, "qualify_id", lambda env_id: f"__main__:{env_id}")
    with pytest.raises(rltune.RltuneError, match="running program"):
        rltune.check_sweep(env={"id": "Own-v0"})
    assert list(tmp_path.iterdir()) == []


class Walk(gymnasium.Env):
    """An environment that only this process has."""


OBJECTS: dict[str, tuple[Callable[[], object], str, str]] = {
    "a list as a group": (lambda: rltune.check_sweep(space=[1]), "space", "~space"),
    "a number as a group": (lambda: rltune.check_sweep(algo=3), "algo", "~algo"),
    "a class": (lambda: rltune.check_sweep(env=Walk), "env", f"'{__name__}:Walk'"),
    "a class as id": (lambda: rltune.check_sweep(env={"id": Walk}), "env.id", f"'{__name__}:Walk'"),
    "an environment": (lambda: rltune.check_sweep(env=Walk()), "env", f"'{__name__}:Walk'"),
    "one with an id": (lambda: rltune.check_sweep(env=gymnasium.make("CartPole-v1")), "env", "'CartPole-v1'"),
    "a function": (lambda: rltune.check_sweep(env=lambda: Walk()), "env", "gymnasium.register"),
    "a folder": (lambda: rltune.check_sweep(config_dir=3), "config_dir", "conf"),  # type: ignore[arg-type]
    "a folder of sweeps": (lambda: rltune.open_sweep("s", output_dir=None), "output_dir", "outputs"),  # type: ignore[arg-type]
    "settings": (lambda: rltune.run_sweep({}), "config", "rltune.sweep("),  # type: ignore[arg-type]
    "an address": (lambda: rltune.Client(8288), "address", "http://"),  # type: ignore[arg-type]
    "no policy": (lambda: rltune.load_policy(None), "policy", "rltune.load_policy("),  # type: ignore[arg-type]
    "nothing to play": (lambda: rltune.evaluate(None), "policy", "rltune.load_policy("),  # type: ignore[arg-type]
    "a count": (lambda: rltune.evaluate("p", episodes="9"), "episodes", "episodes=1"),  # type: ignore[arg-type]
    "progress": (lambda: rltune.evaluate("p", progress=3), "progress", "print"),  # type: ignore[arg-type]
    "a format": (lambda: rltune.export_policy("p", "p", format=3), "format", "onnx"),  # type: ignore[arg-type]
    "no folder": (lambda: rltune.open_ledger(None), "folder", "rltune.open_sweep("),  # type: ignore[arg-type]
    "no sweep's folder": (lambda: rltune.Sweep(None), "folder", "rltune.open_sweep("),  # type: ignore[arg-type]
    "no sweep": (lambda: rltune.SweepRef(None), "sweep", "rltune.open_sweep("),  # type: ignore[arg-type]
    "a folder of policies": (lambda: rltune.load_policy("sweep:s", output_dir=None), "output_dir", "outputs"),  # type: ignore[arg-type]
    "a storage": (lambda: rltune.SweepRef("s", storage=3), "storage", "storage=None"),  # type: ignore[arg-type]
    "a ledger": (lambda: rltune.SweepRef("s", ledger_url=3), "ledger_url", "ledger_url=None"),  # type: ignore[arg-type]
    "changes": (lambda: rltune.resume_sweep("s", changes="x"), "changes", "budget"),  # type: ignore[arg-type]
    "no sweeps": (lambda: rltune.compare_sweeps(3), "sweeps", "list"),  # type: ignore[arg-type]
    "a token": (lambda: rltune.Client("http://127.0.0.1:1", token=3), "token", "RLTUNE"),  # type: ignore[arg-type]
    "a seed": (lambda: rltune.evaluate("p", seed=None), "seed", "seed=0"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "key", "fix"), OBJECTS.values(), ids=OBJECTS)
def test_an_argument_of_another_type_is_named(call, key, fix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rltune.RltuneError) as caught:
        call()
    assert caught.value.key == key
    assert fix in caught.value.fix
    assert caught.value.allowed


@pytest.mark.parametrize("settings", [{}, {"seed": "one"}])
def test_settings_without_values_are_no_run_config(settings):
    with pytest.raises(rltune.RltuneError) as refused:
        rltune.RunConfig(**settings)
    assert refused.value.fix


def test_the_public_names_are_there_and_nothing_is_imported_for_them():
    assert [name for name in rltune.__all__ if not hasattr(rltune, name)] == []
    assert rltune.__doc__
    assert all(f"{name}(" in rltune.__doc__ for name in ("sweep", "open_sweep", "load_policy", "evaluate"))
