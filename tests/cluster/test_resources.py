"""What fits on a machine, and what is said when it does not."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rltune.cluster.resources import Machine, Request, available_cpus, count_gpu_slots, fit_share, local_machine
from rltune.errors import ResourceError


def ask(cpus=None, gpus=0.0, max_concurrent=None, env_runners=0, trials=100):
    return Request(cpus, gpus, max_concurrent, env_runners, trials)


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
        (ask(env_runners=1), Machine(8, 0), 4),
        (ask(cpus=2, env_runners=2), Machine(8, 0), 2),
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
    assert fit_share(request_, machine).slots == slots


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
        (1.0, 1, 1),
        (0.5, 4, 8),
    ],
)
def test_fractions_of_a_gpu_are_counted_as_ray_places_them(fraction, gpus, slots):
    assert count_gpu_slots(fraction, gpus) == slots


def test_a_fraction_never_spans_two_gpus():
    assert count_gpu_slots(0.6, 2) == 2
    assert count_gpu_slots(0.4, 2) == 4  # two on each, though 5 x 0.4 is no more than 2


def test_a_trial_gets_its_share_as_one_bundle_and_one_more_for_each_env_runner():
    fitted = fit_share(ask(cpus=2, gpus=0.5, env_runners=2), Machine(8, 1))
    assert fitted.bundles == [{"CPU": 2, "GPU": 0.5}, {"CPU": 1.0}, {"CPU": 1.0}]
    assert fit_share(ask(), Machine(8, 1)).bundles == [{"CPU": 1.0}], "a trial without a GPU asks for none"


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
    assert (wide.cpus, wide.slots) == (cpus, slots)
    assert fit_share(replace(ask(**wishes), widest_layer=64), machine).cpus == 1


REFUSED = [
    (ask(cpus=64), Machine(2, 0), "resources.cpus_per_trial=64", "at most 2", "resources.cpus_per_trial=2"),
    (ask(cpus=2.5), Machine(2, 0), "2.5 CPUs", "at most 2", "resources.cpus_per_trial=2"),
    (ask(cpus=2, env_runners=1), Machine(2, 0), "num_env_runners=1 needs 3", "at most 2", "cpus_per_trial=1"),
    (ask(env_runners=4), Machine(2, 0), "num_env_runners=4 needs 5", "at most 2", "num_env_runners=0"),
    (ask(gpus=0.25), Machine(8, 0), "resources.gpus_per_trial=0.25", "0 without a GPU", "resources=auto"),
    (ask(gpus=3), Machine(8, 2), "exceeds the 2 GPUs", "at most 2", "resources.gpus_per_trial=2"),
    (ask(gpus=1.5), Machine(8, 4), "1.5 cannot be placed", "whole GPUs", "resources.gpus_per_trial=2"),
]


@pytest.mark.parametrize(("request_", "machine", "what", "allowed", "fix"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_most_that_would(request_, machine, what, allowed, fix):
    with pytest.raises(ResourceError) as refused:
        fit_share(request_, machine)
    assert what in refused.value.what
    assert allowed in refused.value.allowed
    assert fix in refused.value.fix


@pytest.mark.parametrize(("request_", "machine"), [case[:2] for case in REFUSED[:4]])
def test_what_a_refusal_says_to_type_is_accepted(request_, machine):
    with pytest.raises(ResourceError) as refused:
        fit_share(request_, machine)
    key, _, value = refused.value.fix.partition("=")
    if key.endswith("cpus_per_trial"):
        fixed = ask(float(value), request_.gpus, None, request_.env_runners)
    else:
        fixed = ask(request_.cpus, request_.gpus, None, int(value))
    assert fit_share(fixed, machine).slots >= 1


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
