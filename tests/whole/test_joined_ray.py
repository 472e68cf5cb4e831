"""A real sweep on a Ray of two nodes that was there before it, looked at from outside."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from joined import SCRIPT, clean_environment, finish
from joining import JOIN
from machines import can_isolate
from nodes import Cluster, cluster
from toy import DEADLY
from whole_sweep import list_missing

from rltune.ledger.storage import open_ledger

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TOKEN = secrets.token_hex(32)
TRIALS = 4
WORDS = (
    "algo=ppo", "env=cartpole", "name=joined", "report=false", f"budget.trials={TRIALS}", "budget.env_steps=6000",
    "certify=on", "certify.top=1", "certify.seeds=2", "certify.episodes=20",
)  # fmt: skip


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head and a worker of one CPU each, which ask for a token."""
    folder = tmp_path_factory.mktemp("two")
    with cluster(folder, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as made:
        made.add("head", 1)
        made.add("worker", 1)
        yield made


@pytest.fixture(scope="module")
def sweep(two_nodes: Cluster) -> Path:
    """The sweep's folder, when it has ended."""
    join = ("cluster=address", f"cluster.address={two_nodes.address}")
    code, out = finish(two_nodes.type("head", "-m", "rltune", "run", *WORDS, *join))
    assert code == 0, out
    return two_nodes.folder / "outputs" / "joined"


def test_a_sweep_on_two_nodes_is_whole(sweep: Path, two_nodes: Cluster) -> None:
    assert list_missing(sweep, two_nodes.store, TRIALS) == []


@pytest.mark.skipif(not can_isolate(), reason="two nodes on one host have one name: machines need root (unshare)")
def test_both_nodes_trained(sweep: Path) -> None:
    ledger = open_ledger(sweep)
    nodes = {record.node for record in ledger.trials.records()}
    ledger.close()
    assert nodes == {"head", "worker"}


@pytest.mark.skipif(not can_isolate(), reason="two nodes on one host have one address: machines need root (unshare)")
def test_a_node_that_kills_its_trials_fails_none(tmp_path: Path) -> None:
    """The sweep is interrupted, and goes on when another node has taken its place."""
    settings = ("budget.trials=4", "+space.seconds=0.1", "scheduler=none", "failures.stop_after=3")
    with cluster(tmp_path, RAY_AUTH_MODE="disabled") as made:
        made.add("head", 0)
        made.add("bad", 1, **{DEADLY: "1"})
        words = ("-c", SCRIPT, "run", str(tmp_path / "outputs"), f"cluster.address={made.address}", *settings)
        code, out = finish(made.type("head", *words))
        assert code == 75, out
        assert "worker died" in out
        assert "resume sweep=toy" in out
        made.kill("bad")
        made.add("good", 1)
        code, out = finish(made.type("head", "-c", SCRIPT, "resume", str(tmp_path / "outputs")))
    assert code == 0, out
    with closing(open_ledger(tmp_path / "outputs" / "toy")) as ledger:
        records = ledger.trials.records()
    assert [(record.state, record.node) for record in records] == [("COMPLETE", "good")] * 4


@pytest.mark.replacement
@pytest.mark.skipif(not can_isolate(), reason="a machine outside of the cluster needs root (unshare)")
def test_a_machine_outside_of_the_cluster_is_refused(two_nodes: Cluster) -> None:
    path = clean_environment(two_nodes.folder)["PYTHONPATH"]
    code, out = finish(two_nodes.type("laptop", "-c", JOIN, two_nodes.address, PYTHONPATH=f"{path}:{ROOT}"))
    assert code == 2, out
    assert f"--address={two_nodes.address}" in out


def test_what_a_sweep_lacks_is_seen(sweep: Path, two_nodes: Cluster, tmp_path: Path) -> None:
    copy = shutil.copytree(sweep, tmp_path / sweep.name)
    (attempt,) = (copy / "trials" / "0").iterdir()
    (attempt / ".latest-9").mkdir()
    with closing(open_ledger(copy)) as ledger:
        kept = ledger.trials.record(1).checkpoint
    assert kept
    (copy / kept.path / "state.json").unlink()
    missing = [f"4 trials of {TRIALS + 1}", "trials/1's checkpoint", f"a draft: {attempt.relative_to(copy)}/.latest-9"]
    assert list_missing(copy, two_nodes.store, TRIALS + 1)[:3] == missing
