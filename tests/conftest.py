"""Fixtures by class of test: fast ones ask for none, ray tests for ``ray_cluster``, slow ones train for real."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import actions, checkpoint, made_store, outputs, store  # noqa: F401
from composing import compose

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Ray's workers inherit the environment, not sys.path: they must find the toy too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parent / "support"), os.environ.get("PYTHONPATH")))
)


LONG = ("finished_sweep", "ray_cluster")  # whoever asks for these waits for whole sweeps


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files whose tests wait for sweeps, the most of them first: two processes end together then."""
    waiting = Counter(item.path for item in items if set(LONG) & set(getattr(item, "fixturenames", ())))
    items.sort(key=lambda item: -waiting[item.path])  # stable: a file's own order stays


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One local Ray of four logical CPUs and one logical GPU for all ray tests."""
    from rltune.cluster.ray_cluster import connect_ray, prepare_environment
    from rltune.config.schema import ClusterConfig

    prepare_environment()
    with connect_ray(ClusterConfig(num_cpus=4, num_gpus=1)):
        yield


@pytest.fixture(scope="session")
def finished_sweep(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A person's folder after ``python -m sweeps.run algo=ppo env=cartpole`` with a small budget."""
    from real import SMALL, Project

    project = Project(tmp_path_factory.mktemp("project"))
    project.ran = project.type("-m", "sweeps.run", "algo=ppo", "env=cartpole", "resources.max_concurrent=2", *SMALL)
    return project


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Settings for a sweep in a folder of its own, from overrides."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def make(*overrides: str) -> Any:
        from rltune.config.validation import parse_config

        return parse_config(compose("run", f"output_dir={tmp_path / 'outputs'}", *overrides))

    return make


@pytest.fixture
def stream() -> io.StringIO:
    """Where a test's console writes."""
    return io.StringIO()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """As a terminal answers."""
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Somebody's terminal of 80 columns, without colours."""
    monkeypatch.setenv("TERM", "dumb")
    return Terminal()


@pytest.fixture
def toy_run(request_of: Callable[..., Any], stream: io.StringIO, monkeypatch: Any) -> Callable[..., Any]:
    """Run a toy sweep; RLlib's own checks do not apply to what the toy invents."""
    monkeypatch.setattr("rltune.sweep.plan.preflight", lambda plan: None)

    def run(*overrides: str) -> Any:
        from toy import TOY, ToyTrial

        from rltune.sweep.pipeline import run_sweep

        return run_sweep(request_of(*TOY, *overrides), stream=stream, trainable=ToyTrial)

    return run
