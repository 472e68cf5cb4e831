"""What `sweeps.list envs`, `algos` and `spaces` print."""

from __future__ import annotations

import pytest

from rltune.compose.composing import conf_dir
from rltune.views import available
from rltune.views.available import list_available, show_available


@pytest.mark.parametrize("kind", available.KINDS)
def test_a_list_fits_a_terminal_of_eighty_columns(kind, terminal):
    show_available(kind, *list_available(kind, [conf_dir()]), terminal)
    assert max(map(len, terminal.getvalue().splitlines())) <= 80


def test_what_is_typed_is_never_broken_over_two_lines(terminal):
    for kind in available.KINDS:
        show_available(kind, *list_available(kind, [conf_dir()]), terminal)
    words = terminal.getvalue().split()
    assert {"ale_py:ALE/Breakout-v5", "lunarlander_continuous", "circular_buffer_iterations_per_batch"} <= set(words)


def test_an_environments_extra_is_named_with_what_installs_it(stream):
    show_available("envs", *list_available("envs", [conf_dir()]), stream)
    lines = stream.getvalue().splitlines()
    assert next(line for line in lines if line.startswith("ant ")).split()[-1] == "mujoco"
    assert "rltune[" in lines[-1]


def test_a_users_own_file_is_listed_before_ours(tmp_path, stream):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "cartpole.yaml").write_text("name: cartpole\nid: My/Cart-v0\n")
    show_available("envs", *list_available("envs", [tmp_path, conf_dir()]), stream)
    (line,) = (line for line in stream.getvalue().splitlines() if line.startswith("cartpole "))
    assert "My/Cart-v0" in line
