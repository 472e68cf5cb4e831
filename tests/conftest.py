"""Fixtures, and the mark of every test: ray (on ``ray_cluster``), slow (real training, commands, servers) or fast."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import io
import json
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import omegaconf.base
import postgres
import psutil
import pytest
import yaml
from _pytest.logging import caplog_handler_key
from alembic.script import ScriptDirectory
from checkpoints import actions, checkpoint, made_store, outputs, store  # noqa: F401
from composing import compose, compose_once
from omegaconf import OmegaConf
from s3 import Server, s3_server
from sqlalchemy import MetaData
from statements import create_all_once, create_sharing_engine
from xdist.scheduler import LoadGroupScheduling

from rltune import probe
from rltune.config import versions
from rltune.driver import plan
from rltune.envs import inspection
from rltune.envs.validation import check_envs
from rltune.ledger import database

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Otherwise each of some hundred processes compiles rltune for itself, and pytest each test module.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# One terminal and no proxy, whatever the one in which this was typed has: commands inherit it, too.
for name in ("LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ |= {"TERM": "dumb", "COLUMNS": "80", "no_proxy": "127.0.0.1,localhost", "NO_PROXY": "127.0.0.1,localhost"}
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="rltune-tests-")  # not the key of who runs the tests
os.environ["RLTUNE_COPIES"] = f"{os.environ['XDG_STATE_HOME']}/copies"  # not among the copies of who runs the tests
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
# Torch, Ray and RLlib leave 700,000 objects behind, which Python would look through after each few tests.
gc.set_threshold(50_000, 20, 50)
# Temporary folders in memory, where there is room: SQLite waits for a disk at each transaction, up to 20 ms.
MEMORY, ROOM = Path("/dev/shm"), 6 * 2**30
if (
    os.access(MEMORY, os.W_OK)
    and not os.statvfs(MEMORY).f_flag & getattr(os, "ST_NOEXEC", 0)  # as in most containers; tests put programs there
    and min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available) > ROOM
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
# Ray's workers inherit the environment, not sys.path: they must find the toy too; and commands, `sweeps`.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parent / "support"), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))
)


_read_scripts, _scripts, _scripts_lock = ScriptDirectory.from_config, {}, threading.Lock()


def _read_scripts_once(config: Any) -> ScriptDirectory:
    """Read the migrations of Optuna and of MLflow once: each reads all of its own whenever it opens a database."""
    folder = config.get_main_option("script_location")
    with _scripts_lock:
        if folder not in _scripts:
            _scripts[folder] = _read_scripts(config)
            _scripts[folder].get_heads()  # It reads them.
        return _scripts[folder]


ScriptDirectory.from_config = _read_scripts_once  # type: ignore[method-assign,assignment]


_parse_yaml = OmegaConf.load


@functools.cache
def _parse_text(text: str) -> bytes:
    return pickle.dumps(_parse_yaml(io.StringIO(text)))


def _parse_yaml_once(file: Any) -> Any:
    """Parse each text once: Hydra parses the same thirty files of conf/ for each of some hundred compositions."""
    if not isinstance(file, io.TextIOBase):
        return _parse_yaml(file)
    try:
        return pickle.loads(_parse_text(file.read()))
    except yaml.YAMLError:
        file.seek(0)
        return _parse_yaml(file)  # Its error names the file.


OmegaConf.load = _parse_yaml_once  # type: ignore[method-assign,assignment]
omegaconf.base.parse = functools.cache(omegaconf.base.parse)  # Likewise each interpolation.

# In a process of its own, each of some hundred plans would import Gymnasium, and know no environment of a test's.
plan.examine_env = probe.examine_env = lambda spec, stall_s, meanwhile=None, corners=(): check_envs(spec, corners)


_list_limits = versions._list_limits
_list_limits_once = functools.cache(lambda requires: _list_limits())  # A test may put another function in its place.
versions._list_limits = lambda: _list_limits_once(metadata.requires)  # Half of a check, for the same packages each time
metadata.version = functools.cache(metadata.version)
inspection.VERSIONED += ("tests.",)  # Otherwise each check of an environment reads these hundreds of modules.

compose_once()
database.create_engine = create_sharing_engine
MetaData.create_all = create_all_once  # type: ignore[method-assign]

HERE = Path(__file__).parent
TIMEOUT_S = {"fast": 300, "ray": 1500, "slow": 1500}  # generous: on a busy machine; what takes longer hangs
# Costly fixtures that live as long as a worker of pytest-xdist. All tests of a group run in one worker, so that each
# fixture is made once; a test belongs to the first group of which it uses a fixture. Other tests go by their file.
GROUPS = {  # The longest first.
    "ray": {"ray_cluster", "toy_run", "checkpoint"},
    "finished_sweep": {"finished_sweep"},
    "servers": {"s3_instance", "server", "postgres_server"},
    "stores": {"empty_store"},
}


@pytest.hookimpl(wrapper=True, tryfirst=True)  # Before pytest looks at -m, and pytest-xdist at the groups.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Mark, limit and group every test, and begin with the groups that take longest."""
    weights: Counter[str] = Counter()
    groups: dict[pytest.Item, str] = {}
    for item in items:
        kind = choose_mark(item)
        if item.get_closest_marker(kind) is None:
            item.add_marker(kind)
        if item.get_closest_marker("replacement") and os.environ.get("RLTUNE_COMPAT") == "off":
            item.add_marker(pytest.mark.skip(reason="RLTUNE_COMPAT=off leaves out what it tests"))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S[kind]))
        groups[item] = choose_group(item)
        item.add_marker(pytest.mark.xdist_group(groups[item]))
        weights[groups[item]] += {"fast": 0, "ray": 1, "slow": 2}[kind]
    places = {group: place for place, group in enumerate(GROUPS)}
    items.sort(key=lambda item: (places.get(groups[item], len(GROUPS)), -weights[groups[item]]))  # Stable in a file.
    if file := getattr(config, "workerinput", {}).get("groups_file"):
        Path(file).write_text(json.dumps({item.nodeid: group for item, group in groups.items()}))
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let pytest keep the log of those tests alone that read it.

    For each it adds its handlers to all loggers that do not propagate, six times among the thousands of our libraries.
    """
    plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
    keep_log = plugin._runtest_for

    @contextlib.contextmanager
    def keep_log_if_read(item: pytest.Function, when: str) -> Iterator[None]:
        item.stash[caplog_handler_key] = plugin.caplog_handler  # which pytest deletes at the end
        with keep_log(item, when) if "caplog" in item.fixturenames else contextlib.nullcontext():
            yield

    plugin._runtest_for = keep_log_if_read


def pytest_collection_finish() -> None:
    """Leave the objects that all imports have made out of garbage collection."""
    gc.collect()
    gc.freeze()


def choose_mark(item: pytest.Item) -> str:
    """Return fast, ray or slow: the mark on the test, else by its folder and its fixtures."""
    for kind in TIMEOUT_S:
        if item.get_closest_marker(kind):
            return kind
    fixtures = set(getattr(item, "fixturenames", ()))
    folder = item.path.relative_to(HERE).parts[0]
    trains = folder == "conformance" and "ray_cluster" in fixtures
    started = GROUPS["finished_sweep"] | GROUPS["servers"] | GROUPS["stores"]
    if folder in ("whole", "pending") or trains or fixtures & started:
        return "slow"
    return "ray" if fixtures & GROUPS["ray"] else "fast"  # Stock RLlib starts a Ray for ``checkpoint``.


def choose_group(item: pytest.Item) -> str:
    """Return the group whose tests one worker runs: that of a costly fixture, else the test's file."""
    if marker := item.get_closest_marker("xdist_group"):
        return str(marker.args[0])
    fixtures = set(getattr(item, "fixturenames", ()))
    for group, costly in GROUPS.items():
        if fixtures & costly:
            return group
    return item.path.relative_to(HERE).as_posix()


# pytest-xdist 3.8 hands groups to its controller as suffixes of the tests' ids, which pytest 9.2 ignores
# (https://github.com/pytest-dev/pytest-xdist/issues/1386). The first worker writes them into a file instead.
GROUPS_FILE = Path(os.environ["XDG_STATE_HOME"]) / "groups.json"


class GroupScheduling(LoadGroupScheduling):
    """Distribute tests by group, as the first worker has written them down."""

    def _split_scope(self, nodeid: str) -> str:
        group = _read_groups().get(nodeid)
        return group or super()._split_scope(nodeid)


@functools.cache
def _read_groups() -> dict[str, str]:
    return dict(json.loads(GROUPS_FILE.read_text()))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell the first worker where to write the groups."""
    if node.workerinput["workerid"] == "gw0":
        node.workerinput["groups_file"] = str(GROUPS_FILE)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Make the scheduler of ``--dist loadgroup``."""
    return GroupScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture
def heeds_signals() -> Iterator[None]:
    """Let this process and those that it starts heed what ``nohup make test`` and a shell's ``make test &`` ignore.

    What a process ignores its children ignore, too. A handler they do not inherit. That of SIGHUP does nothing, so that
    a hang-up of the terminal does not end the tests.
    """
    handlers = {signal.SIGHUP: lambda *_: None, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def without_search_for_source() -> None:
    """Build RLlib's connectors as a worker does: each of them reads the whole stack, and that of pytest is deep."""
    if "ray.rllib.connectors.connector_v2" in sys.modules:
        from rltune.compat.rllib_build import skip_needless_work

        skip_needless_work(compiling=False)


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Let torch use one thread in this process: threads that wait for each other cost much on busy cores."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_stray_ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """End a Ray that a fast test has started by one of Ray's functions: its daemons would slow down all later tests."""
    ray = sys.modules.get("ray")
    was_started = ray is None or not hasattr(ray, "is_initialized") or ray.is_initialized()
    yield
    if not was_started and request.node.get_closest_marker("fast") and ray.is_initialized():
        ray.shutdown()
        warnings.warn(f"{request.node.name} is marked as fast and has started a Ray", stacklevel=1)


@pytest.fixture(autouse=True)
def search_path() -> Iterator[None]:
    """Restore the search path: a command, which a test may call in this process, moves the working folder on it."""
    before = [*sys.path]
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def no_hidden_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one test's logins spoil no other's texts."""
    monkeypatch.setattr("rltune.secrets._known", {})


@pytest.fixture(scope="session")
def s3_instance() -> Iterator[Server]:
    """One S3 server for all tests that need a bucket."""
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_instance: Server) -> str:
    """The address of a place in its bucket, as ``storage`` takes it."""
    return s3_instance.storage


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of one PostgreSQL server for all tests that need one; each makes a database of its own in it."""
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.server() as address:
        yield address


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One local Ray of four logical CPUs and two logical GPUs for all ray tests, with forked workers as in a sweep."""
    from rltune.cluster.fork_server import acquire_fork_server
    from rltune.cluster.ray_cluster import connect_ray, prepare_environment
    from rltune.cluster.resources import local_machine
    from rltune.config.schema import ClusterConfig
    from rltune.driver.background_imports import LOADED_BEFORE_FORK, worker_imports

    prepare_environment()
    cluster = ClusterConfig(num_cpus=4, num_gpus=2)
    can_fork = not local_machine().gpus  # A real GPU's libraries survive no fork.
    with acquire_fork_server(can_fork, LOADED_BEFORE_FORK) as server:
        modules = worker_imports("ray.rllib.algorithms.ppo:PPOConfig") if server else ()
        with connect_ray(cluster, modules, server):
            yield


@pytest.fixture(scope="session")
def finished_sweep(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A person's folder after ``python -m sweeps.run algo=ppo env=cartpole`` with a small budget."""
    from real import SMALL, Project

    project = Project(tmp_path_factory.mktemp("project"))
    slots = ("cluster.num_cpus=2", "resources.max_concurrent=2")  # however many CPUs there are
    project.ran = project.type("-m", "sweeps.run", "algo=ppo", "env=cartpole", *slots, *SMALL)
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
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


@pytest.fixture
def toy_run(stream: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a toy sweep in the test's folder."""
    from toy import run_toy

    monkeypatch.chdir(tmp_path)
    return functools.partial(run_toy, tmp_path, monkeypatch, stream)
