"""Building: with which engine, without Ray, and how fast."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rltune.engine import build_algorithm
from rltune.errors import ConfigError
from tests.engine.engine_toy import CONFIGS, ppo_config

ROOT = Path(__file__).parents[2]
ALONE = """
import sys, tempfile
import ray
from tests.engine.engine_toy import CONFIGS
from rltune import engine
for make in CONFIGS.values():
    algorithm = engine.build_algorithm(make())
    algorithm.train()
    algorithm.restore_from_path(algorithm.save_to_path(tempfile.mkdtemp()))
    algorithm.stop()
    assert not ray.is_initialized(), make
    assert "torch._dynamo" not in sys.modules, make
print("trained", *CONFIGS)
"""


@pytest.mark.slow
def test_training_starts_no_ray_and_waits_for_no_compiler() -> None:
    """In a process of its own: the one that runs the tests may have both already."""
    ran = subprocess.run([sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.stdout.split() == ["trained", *CONFIGS], ran.stderr


def test_algorithms_build_quickly_one_after_another() -> None:
    """Also with other networks."""
    build_algorithm(ppo_config()).stop()
    start = time.thread_time()  # of this thread: Ray's may be at work beside it
    for width in (8, 24, 40, 56, 72):
        config = ppo_config().rl_module(model_config={"fcnet_hiddens": [width], "vf_share_layers": True})
        algorithm = build_algorithm(config)
        assert algorithm.get_module().pi.net.mlp[0].in_features == width
        algorithm.stop()
    assert (time.thread_time() - start) / 5 < 0.5  # 0.05 s is usual


def test_kind_rllib_forces_stock_and_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ppo_config()
    monkeypatch.setattr(type(config), "build_algo", lambda self: "stock")
    assert build_algorithm(config, "rllib") == "stock"
    with pytest.raises(ConfigError, match="'fast'"):
        build_algorithm(config, "fats")
