"""Commands whose settings Hydra composes, and the others, which do without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rltune.cli.application.composed import ComposedCommand
from rltune.cli.application.program import load_command

WITHOUT_HYDRA = """
import sys
from rltune.cli.application.composed import ComposedCommand
from rltune.cli.application.program import load_commands
from rltune.compose.command_settings import read_command_settings
composed = []
for name, command in load_commands().items():
    if isinstance(command, ComposedCommand):
        composed.append(name)
    else:
        read_command_settings(name, command.schema, [f"{key}=x" for key in ("policy", "sweep") if key in
            command.schema.__dataclass_fields__])
print(*composed, "hydra" in sys.modules)
"""


@pytest.mark.slow
def test_hydra_is_loaded_only_where_groups_are_composed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_HYDRA], capture_output=True, text=True)
    assert done.stdout.split() == ["run", "evaluate", "probe", "submit", "False"], done.stderr


@pytest.mark.parametrize("typed", ["seed=1 -m algo=ppo,dqn env=cartpole", "-m seed=1 algo=ppo,dqn env=cartpole"])
def test_settings_may_stand_on_both_sides_of_a_flag(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["run"])
    command = load_command("run")
    assert isinstance(command, ComposedCommand)
    jobs = command._compose(typed.split())
    assert [(job.settings.algo.name, job.settings.seed, job.multirun) for job in jobs] == [
        ("ppo", 1, True),
        ("dqn", 1, True),
    ]
