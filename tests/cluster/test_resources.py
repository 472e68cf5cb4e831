"""What fits on a machine, and what is said when it does not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from ray.util.placement_group import placement_group, remove_placement_group

from rltune.cluster.resources import (
    Machine,
    Request,
    Share,
    available_cpus,
    count_slots,
    describe_idle_gpu,
    fit_share,
    local_machine,
)
from rltune.errors import ResourceError


def ask(cpus=None, gpus=0.0, max_concurrent=None, env_runners=0, trials=100, learners=0):
    return Request(cpus, gpus, max_concurrent, env_runners, trials, learners=learners)


def slots_of(request, *nodes):
    return count_slots(fit_share(request, *nodes).bundles, nodes, request.limit)


@pytest.mark.parametrize(
    ("request_", "machine", "slots"),
    [
        (ask(), Machine(8, 0), 8),
        (ask(cpus=2), Machine(8, 0), 4),
        (ask(cpus=3), Machine(8, 0), 2),
        (ask(cpus=0.5), Machine(2, 0), 4),
        (ask(cpus=0.3333), Machine(1, 0), 3),
        (ask(cpus=1 / 3), Machine(1, 0), 3),
        (ask(cpus=0.1), Machine(1, 0), 10),
        (ask(cpus=8), Machine(8, 0), 1),
        (ask(cpus=0.1), Machine(0.3, 0), 3),  # 0.3 / 0.1 is a little less than 3
        (ask(env_runners=1), Machine(8, 0), 4),
        (ask(cpus=2, env_runners=2), Machine(8, 0), 2),
        (ask(env_runners=1, learners=2), Machine(8, 0), 2),
        (ask(gpus=2, learners=2), Machine(16, 5), 2),
        (ask(max_concurrent=3), Machine(8, 0), 3),
        (ask(max_concurrent=50), Machine(8, 0), 8),
        (ask(trials=5), Machine(8, 0), 5),
        (ask(gpus=0.25), Machine(16, 1), 4),
        (ask(gpus=0.25), Machine(2, 1), 2),
        (ask(gpus=1), Machine(16, 3), 3),
        (ask(gpus=2), Machine(16, 3), 1),
    ],
)
def test_as_many_trials_run_at_once_as_fit(request_, machine, slots):
    assert slots_of(request_, machine) == slots


@pytest.mark.parametrize(
    ("fraction", "gpus", "slots"),
    [
        (0.3333, 1, 3),
        (1 / 3, 1, 3),
        (0.34, 1, 2),
        (0.25, 1, 4),
        (0.2, 1, 5),
        (0.1, 1, 10),
        (0.6, 1, 1),
        (1 / 6, 1, 6),  # for Ray it is 0.1666
        (0.1667, 1, 6),  # 1,666.999... ten thousandths as a float: 0.1666 for Ray, too
        (0.1668, 1, 5),
        (1.0, 1, 1),
        (0.5, 4, 8),
    ],
)
def test_fractions_of_a_gpu_are_counted_as_ray_places_them(fraction, gpus, slots):
    assert count_slots([{"CPU": 1, "GPU": fraction}], [Machine(64, gpus)], 64) == slots


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(  # Ray is waited for, for a second each.
    "fraction",
    [
        1 / 3,
        0.1667,
        0.4,
        *(pytest.param(each, marks=pytest.mark.nightly) for each in (0.5, 0.34, 1 / 6, 0.1668, 1 / 7, 0.6)),
    ],
)
def test_ray_places_as_many_fractions_as_are_counted(fraction):
    """On two logical GPUs; places are asked for without the processes that would take them."""
    counted = count_slots([{"GPU": fraction}], [Machine(64, 2)], 99)
    groups = [placement_group([{"GPU": fraction}]) for _ in range(counted)]
    try:
        assert all(group.wait(20) for group in groups)
        groups.append(placement_group([{"GPU": fraction}]))
        assert not groups[-1].wait(1)  # whole seconds: of half a one, Ray waits none
    finally:
        for group in groups:
            remove_placement_group(group)


@pytest.mark.parametrize("gpus", [1, 3])
def test_as_many_trials_share_each_gpu_as_are_asked_for(gpus):
    counted = [count_slots([{"GPU": 1 / trials}], [Machine(64, gpus)], 999) for trials in range(1, 101)]
    assert counted == [gpus * trials for trials in range(1, 101)]


@pytest.mark.parametrize(
    ("fraction", "note"),
    [
        (0.3, "3 trials on each GPU, and 10% of it idle; resources.trials_per_gpu=3 uses all of it"),
        (0.6, "1 trial on each GPU, and 40% of it idle; resources.trials_per_gpu=1 uses all of it"),
        (0.17, "5 trials on each GPU, and 15% of it idle; resources.trials_per_gpu=5 uses all of it"),
        (1e-5, "10000 trials on each GPU, and 90% of it idle; resources.trials_per_gpu=100 uses all of it"),
        *[(whole, "") for whole in (0, 1 / 6, 0.25, 0.3333, 0.5, 1, 2)],
    ],
)
def test_what_a_fraction_wastes_of_each_gpu_is_said(fraction, note):
    said = describe_idle_gpu(fraction)
    assert said == (note and f"resources.gpus_per_trial={fraction:g}: {note}")


@pytest.mark.parametrize(
    ("gpus", "larger"), [(0.0, None), (0.1, 0.2), (0.25, 0.5), (0.6, 1.0), (1.0, None), (2.0, None)]
)
def test_a_larger_share_is_twice_the_gpu_up_to_a_whole_one(gpus, larger):
    share = Share(2.0, gpus, 1)
    assert share.larger == (None if larger is None else replace(share, gpus=larger))


def test_a_fraction_never_spans_two_gpus():
    assert slots_of(ask(gpus=0.6), Machine(64, 2)) == 2
    assert slots_of(ask(gpus=0.4), Machine(64, 2)) == 4  # two on each, though 5 x 0.4 is no more than 2


NODES = [
    (ask(), [Machine(0, 0), Machine(2, 0), Machine(2, 0)], 4),  # a head without CPUs runs none
    (ask(cpus=2), [Machine(3, 0), Machine(3, 0)], 2),  # not three, though there are six CPUs
    (ask(cpus=2, env_runners=1), [Machine(2, 0), Machine(1, 0)], 1),  # an env runner may be on another node
    (ask(gpus=0.5), [Machine(1, 0), Machine(2, 1)], 2),
    (ask(gpus=2), [Machine(8, 1), Machine(8, 1), Machine(8, 2)], 1),
    (ask(max_concurrent=3), [Machine(2, 0), Machine(2, 0)], 3),
]


@pytest.mark.parametrize(("request_", "nodes", "slots"), NODES)
def test_a_clusters_nodes_are_counted_one_by_one(request_, nodes, slots):
    assert slots_of(request_, *nodes) == slots


def test_a_cluster_without_cpus_refuses_nothing():
    assert fit_share(ask(cpus=4, gpus=1), Machine(0, 0)).bundles == [{"CPU": 4, "GPU": 1}]
    assert fit_share(ask()).bundles == [{"CPU": 1.0}], "nor does one without nodes"


def test_no_trial_gets_two_cpus_where_no_node_has_them():
    wide = replace(ask(trials=1), widest_layer=512)
    assert fit_share(wide, Machine(1, 0), Machine(1, 0)).cpus == 1
    assert fit_share(wide, Machine(1, 0), Machine(2, 0)).cpus == 2


def test_a_trial_gets_its_share_as_one_bundle_and_one_more_for_each_env_runner():
    fitted = fit_share(ask(cpus=2, gpus=0.5, env_runners=2), Machine(8, 1))
    assert fitted.bundles == [{"CPU": 2, "GPU": 0.5}, {"CPU": 1.0}, {"CPU": 1.0}]
    assert fit_share(ask(), Machine(8, 1)).bundles == [{"CPU": 1.0}], "a trial without a GPU asks for none"


def test_remote_learners_get_bundles_of_their_own_and_the_trials_gpus():
    fitted = fit_share(ask(gpus=4, env_runners=1, learners=2), Machine(8, 4))
    assert fitted.bundles == [{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 1.0, "GPU": 2.0}, {"CPU": 1.0, "GPU": 2.0}]
    assert fit_share(ask(gpus=0.5, learners=1), Machine(8, 1)).bundles == [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 0.5}]


@pytest.mark.parametrize(("cpus", "threads"), [(0.25, 1), (1, 1), (1.5, 1), (2, 2), (4, 4)])
def test_torch_gets_as_many_threads_as_the_trial_has_cpus(cpus, threads):
    assert fit_share(ask(cpus=cpus), Machine(8, 0)).threads == threads


@pytest.mark.parametrize(
    ("wishes", "machine", "cpus", "slots"),
    [
        ({"trials": 24}, Machine(8, 0), 1, 8),
        ({"trials": 8}, Machine(8, 0), 1, 8),
        ({"trials": 5}, Machine(8, 0), 1, 5),
        ({"trials": 4}, Machine(8, 0), 2, 4),
        ({"trials": 1}, Machine(64, 0), 2, 1),
        ({"trials": 1}, Machine(1, 0), 1, 1),
        ({"trials": 100, "max_concurrent": 2}, Machine(8, 0), 2, 2),
        ({"trials": 2, "env_runners": 2}, Machine(8, 0), 2, 2),
        ({"trials": 2, "env_runners": 3}, Machine(8, 0), 1, 2),
        ({"trials": 2, "gpus": 0.5}, Machine(8, 1), 1, 2),
        ({"trials": 1, "cpus": 1}, Machine(8, 0), 1, 1),
    ],
)
def test_only_cpus_that_would_idle_become_a_second_thread_of_a_wide_network(wishes, machine, cpus, slots):
    wide = fit_share(replace(ask(**wishes), widest_layer=512), machine)
    assert (wide.cpus, count_slots(wide.bundles, [machine], ask(**wishes).limit)) == (cpus, slots)
    assert fit_share(replace(ask(**wishes), widest_layer=64), machine).cpus == 1


REFUSED = [
    (ask(cpus=64), Machine(2, 0), "resources.cpus_per_trial=64", "at most 2", "resources.cpus_per_trial=2"),
    (ask(cpus=2.5), Machine(2, 0), "2.5 CPUs", "at most 2", "resources.cpus_per_trial=2"),
    (ask(cpus=2, env_runners=1), Machine(2, 0), "num_env_runners=1 needs 3", "at most 2", "cpus_per_trial=1"),
    (ask(env_runners=4), Machine(2, 0), "num_env_runners=4", "2", "num_env_runners=0"),
    (ask(gpus=0.25), Machine(8, 0), "resources.gpus_per_trial=0.25", "0", "resources=auto"),
    (
        replace(ask(gpus=0.25), trials_per_gpu=4),
        Machine(8, 0),
        "resources.trials_per_gpu=4",
        "null",
        "resources.trials_per_gpu=null",
    ),
    (ask(gpus=3), Machine(8, 2), "resources.gpus_per_trial=3", "2", "resources.gpus_per_trial=2"),
    (ask(gpus=1.5), Machine(8, 4), "resources.gpus_per_trial=1.5", "whole GPUs", "resources.gpus_per_trial=2"),
    (ask(learners=2), Machine(2, 0), "num_learners=2", "2", "num_learners=0"),
    (ask(gpus=1, learners=2), Machine(8, 4), "num_learners=2", "whole GPUs", "resources.gpus_per_trial=2"),
    (ask(gpus=3, learners=2), Machine(8, 4), "num_learners=2", "whole GPUs", "resources.gpus_per_trial=2"),
]


@pytest.mark.parametrize(("request_", "machine", "what", "allowed", "fix"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_most_that_would(request_, machine, what, allowed, fix):
    with pytest.raises(ResourceError) as refused:
        fit_share(request_, machine)
    assert what in refused.value.what
    assert allowed in refused.value.allowed
    assert fix in refused.value.fix


def test_a_process_that_fits_no_single_node_is_refused():
    with pytest.raises(ResourceError) as refused:
        fit_share(ask(cpus=2), Machine(1, 0), Machine(1, 0))
    assert refused.value.key == "resources.cpus_per_trial"
    assert refused.value.fix == "resources.cpus_per_trial=1"
    with pytest.raises(ResourceError, match=r"resources\.gpus_per_trial=1"):
        fit_share(ask(cpus=2, gpus=1), Machine(8, 0), Machine(1, 1))


@pytest.mark.parametrize(("request_", "machine"), [case[:2] for case in REFUSED[:4]])
def test_what_a_refusal_says_to_type_is_accepted(request_, machine):
    with pytest.raises(ResourceError) as refused:
        fit_share(request_, machine)
    key, _, value = refused.value.fix.partition("=")
    if key.endswith("cpus_per_trial"):
        fixed = ask(float(value), request_.gpus, None, request_.env_runners)
    else:
        fixed = ask(request_.cpus, request_.gpus, None, int(value))
    assert slots_of(fixed, machine) >= 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux binds a process to CPUs")
def test_only_cpus_that_this_process_may_use_are_counted():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= available_cpus() <= len(before)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_do_not_count(hidden, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert local_machine().gpus == 0


SERVICE = "0::/system.slice/rltune.service\n"  # A systemd unit on the machine itself.


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/\n", {"cpu.max": "150000 100000"}, 2),
        ("0::/\n", {"cpu.max": "max 100000"}, 64),
        (SERVICE, {"system.slice/rltune.service/cpu.max": "300000 100000"}, 3),
        (SERVICE, {"system.slice/rltune.service/cpu.max": "max 100000", "system.slice/cpu.max": "400000 100000"}, 4),
        (SERVICE, {"system.slice/other.service/cpu.max": "100000 100000"}, 64),
        ("0::/../../job\n", {"cpu.max": "200000 100000"}, 2),
        (
            "4:memory:/job\n3:cpu,cpuacct:/slurm/job\n0::/\n",
            {"cpu,cpuacct/slurm/cpu.cfs_quota_us": "500000", "cpu,cpuacct/slurm/cpu.cfs_period_us": "100000"},
            5,
        ),
        (
            "1:cpu:/docker/1f\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000", "memory/cpu.max": "1 1"},
            64,
        ),
    ],
)
def test_each_quota_around_this_process_counts(own, files, cpus, monkeypatch, tmp_path):
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(f"{content}\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr("rltune.cluster.resources.CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr("rltune.cluster.resources.CGROUPS_OF_PROCESS", tmp_path / "own")
    assert available_cpus() == cpus


def test_the_cpus_of_a_slurm_job_are_the_most(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr("rltune.cluster.resources.CGROUPS_OF_PROCESS", Path("/missing"))
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "6")
    assert available_cpus() == 6


@pytest.mark.parametrize(("visible", "count"), [("0,1", 2), ("MIG-7fd5,MIG-91ac", 2), ("", 0), ("-1", 0)])
def test_visible_gpus_are_counted_without_asking_the_driver(visible, count, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local_machine().gpus == count


def test_without_the_variable_nvidia_smi_counts_the_cards(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A100 (UUID: GPU-1)'\necho '  MIG 3g.20gb (UUID: MIG-7)'\n")
    tool.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert local_machine().gpus == 1, "a card that is cut counts once unless the variable names its slices"
