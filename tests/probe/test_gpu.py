"""How many trials share a GPU, by what one was measured to take of it."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_cuda import GIB, FakeCuda

from rltune.cluster.resources import Machine
from rltune.config.changes import check_changes, keep_measured
from rltune.config.settings_file import read_settings, write_settings
from rltune.config.validation import parse_config
from rltune.driver import plan as planning
from rltune.driver.warm_starts import widen_ranges
from rltune.errors import ResourceError
from rltune.probe import gpu
from rltune.probe.gpu import GpuUse, choose_trials, find_largest, measure_on_gpu, measure_use
from rltune.search.space import parse_space
from rltune.trial.gpu_memory import cap_memory

USE = GpuUse(tensors=3 * GIB, context=GIB // 2, total=40 * GIB)


class Learning:
    """An algorithm that learns in its third iteration, and frees a part of what that took."""

    def __init__(self, cuda):
        self.cuda, self.steps, self.is_stopped = cuda, 0, False

    def train(self):
        self.steps += 100
        if self.steps == 300:
            self.cuda.allocate(3 * GIB)
            self.cuda.reserved -= GIB
        lifetime = {"num_env_steps_sampled_lifetime": self.steps}
        learner = {"default_policy": {"total_loss": 0.5}} if self.steps >= 300 else {}
        return {"env_runners": lifetime, "learners": learner} | lifetime

    def stop(self):
        self.is_stopped = True


def test_a_trial_is_measured_at_its_peak_with_cudas_own_memory():
    cuda = FakeCuda()
    algorithm = Learning(cuda)
    use = measure_use(lambda: algorithm, cuda)
    assert (use, algorithm.steps, algorithm.is_stopped) == (USE, 300, True)
    numbers = [float(number) for number in re.findall(r"[\d.]+", str(use))]
    assert numbers == [4.24, 42.9, 3.22, 0.537, 15]
    assert measure_use(lambda: Learning(FakeCuda()), FakeCuda(), seconds=0.01).steps_per_s > 0


@pytest.mark.parametrize(
    ("use", "cpus", "trials"),
    [
        (USE, 64, 10),  # 10 x 3.95 GiB
        (USE, 6.5, 6),
        (USE, 0.5, 1),
        (replace(USE, tensors=GIB // 64), 64, 16),
        (replace(USE, tensors=39 * GIB), 64, 1),
    ],
)
def test_memory_cpus_and_sixteen_limit_how_many_share_a_gpu(use, cpus, trials):
    assert choose_trials(use, cpus) == trials


@pytest.mark.parametrize("card", [4 * GIB, 8 * GIB, 40 * GIB])
@pytest.mark.parametrize("tensors", [GIB // 64, 0.3 * GIB, 0.8 * GIB, 3 * GIB])
@pytest.mark.parametrize("context", [0, GIB // 5, 0.9 * GIB])
def test_a_share_holds_what_was_measured_under_its_cap(card, tensors, context):
    use = GpuUse(int(tensors), int(context), card)
    cuda = FakeCuda(card)
    cap_memory(1 / choose_trials(use, 64), cuda)
    cuda.allocate(use.tensors)


def test_the_corner_with_the_widest_net_and_batch_is_measured():
    def config(layers, rows):
        return SimpleNamespace(model_config={"fcnet_hiddens": layers}, minibatch_size=rows)

    small, wide, long = config([64, 64], 64), config([512, 512], 64), config([64, 64], 4096)
    assert find_largest([small, wide, long]) is long
    assert find_largest([small, wide]) is wide


def test_a_trial_that_cannot_be_measured_says_why(monkeypatch):
    build, run = SimpleNamespace(replicates=1), gpu.subprocess.run
    for code, why in {
        "import sys; sys.exit('no kernel image is available')": "no kernel image is available",
        "import pickle, sys; sys.stdout.buffer.write(pickle.dumps('RuntimeError: no CUDA'))": "RuntimeError: no CUDA",
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(gpu.subprocess, "run", lambda command, code=code, **how: run([command[0], "-c", code], **how))
            with pytest.raises(ResourceError, match=why) as caught:
                measure_on_gpu(build, parse_space({}), "fast", 1)
        assert caught.value.fix == "resources.trials_per_gpu=1"


def test_the_measured_number_is_derived_and_said(request_of, monkeypatch):
    """16 CPUs beside two GPUs: eight trials on each, though its memory has room for ten."""
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *asked: USE)
    machine = ("cluster.num_cpus=16", "cluster.num_gpus=2", "budget.trials=40")
    plan = planning.make_plan(request_of("resources.trials_per_gpu=auto", *machine))
    assert plan.share_of(Machine(16, 2)).gpus == 1.0, "what it is measured with"
    measured = planning.measure_share(plan)
    assert (measured.request.gpus, measured.build.gpus, measured.share_of(Machine(16, 2)).gpus) == (0.125,) * 3
    assert measured.notes[-1].startswith("resources.trials_per_gpu=8")
    assert str(USE) in measured.notes[-1]
    fixed = planning.make_plan(request_of("resources.trials_per_gpu=4", *machine))
    assert planning.measure_share(fixed) is fixed


def test_no_gpu_is_cut_into_more_than_run_at_once(request_of, monkeypatch):
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *asked: USE)
    words = ("resources.trials_per_gpu=auto", "cluster.num_cpus=16", "cluster.num_gpus=2")
    plan = planning.make_plan(request_of(*words, "budget.trials=40", "resources.max_concurrent=3"))
    assert planning.measure_share(plan).request.gpus == 0.5, "two on one GPU, one on the other"


def test_nobody_looks_for_gpus_that_are_not_to_be_measured(request_of, monkeypatch):
    plan = planning.make_plan(request_of())
    monkeypatch.setattr(planning, "machine_of", lambda cluster: pytest.fail("nvidia-smi takes its time"))
    assert planning.measure_share(plan) is plan


def test_a_sweep_that_goes_on_is_not_measured_again(request_of, monkeypatch, tmp_path):
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *asked: USE)
    asked = request_of("resources.trials_per_gpu=auto", "cluster.num_cpus=16", "cluster.num_gpus=2", "budget.trials=40")
    write_settings(tmp_path, planning.measure_share(planning.make_plan(asked)).config)
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *asked: pytest.fail("it was measured when it began"))
    known = read_settings(tmp_path, whole=True)
    typed_again = keep_measured(known, asked)
    assert not check_changes("it", known, widen_ranges(typed_again))
    for config in (parse_config(known), typed_again):
        assert planning.measure_share(planning.make_plan(config, resumed=True)).request.gpus == 0.125
