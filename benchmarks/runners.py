"""How sampling scales over env runners: cheap and expensive environments, on the engine's arrays and in stock RLlib.

    python -m benchmarks.runners [--quick]

About 12 minutes on two quiet cores; 3 with --quick, which keeps no record. Environment steps per second, learning
included, of one trial that samples itself and of one with remote env runners beside it; and CPU microseconds a step, of
the trial's process and of all env runners, which other work on the machine hardly changes. The expensive environment
computes for a millisecond in every step. Updates per environment step are the same in a row: DQN's proportion is
adapted as ``python -m sweeps.probe`` does. A runner and the trial's process take a CPU each: where there are more of
them than cores, the learner's work and Ray's come out of the runners' time.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import gymnasium

from benchmarks.records import ROOT, compare_rounds, make_record, spread_of, write_record

COST_S = 1e-3
RUNNERS = (0, 1, 2)
# Algorithm, environments in each process that samples, engine.
CASES = (("ppo", 8, "fast"), ("ppo", 8, "rllib"), ("dqn", 4, "fast"), ("dqn", 4, "rllib"))
ENVS = {"cheap": [], "1 ms a step": [{"entry_point": "benchmarks.runners:Expensive", "kwargs": {}}]}


class Expensive(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Computes for a while in each step."""

    def step(self, action: Any) -> Any:
        """Step, and keep the core busy until the time is over."""
        until = time.thread_time() + COST_S  # CPU, as a computation has it: on a busy machine it takes longer
        answer = self.env.step(action)
        while time.thread_time() < until:
            pass
        return answer


def build(algo: str, envs: int, engine: str, kind: str, runners: int) -> Any:
    """Build a trial's algorithm in CartPole."""
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore

    from rltune.algorithms.build import build_config
    from rltune.compose.composing import conf_dir
    from rltune.config.validation import to_typed
    from rltune.engine import build_algorithm
    from rltune.probe import Combination, ProbeConfig, build_combination

    ConfigStore.instance().store("base_probe", ProbeConfig)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        settings = compose("probe", [f"algo={algo}", "env=cartpole"])
    settings.env.wrappers = ENVS[kind]
    settings.algo.env_runners.num_envs_per_env_runner = envs  # whose updates per step the others keep
    made, _ = build_combination(to_typed(ProbeConfig, settings), Combination(envs, runners, 1))
    config = build_config(made, {}, seed=0)
    config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=200)
    return build_algorithm(config, engine)


def measure(algorithm: Any, seconds: float) -> list[float]:
    """Measure for a while, after two iterations and an update.

    Returns:
        Environment steps per second, and CPU microseconds a step of the trial's process and of all env runners.
    """

    def train() -> tuple[int, bool]:
        result = algorithm.train()
        return int(result["num_env_steps_sampled_lifetime"]), bool(result.get("learners"))

    def read_cpu() -> tuple[float, float]:
        group = algorithm.env_runner_group
        return time.process_time(), sum(group.foreach_env_runner(lambda _: time.process_time(), local_env_runner=False))

    learned = [train()[1] for _ in range(2)]
    while not any(learned):  # off-policy algorithms fill their memory first
        learned.append(train()[1])
    (before, _), (own, beside), began = train(), read_cpu(), time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        after, _ = train()
    steps, (own_later, beside_later) = after - before, read_cpu()
    figures = (steps / spent, 1e6 * (own_later - own) / steps, 1e6 * (beside_later - beside) / steps)
    return [round(figure, 1) for figure in figures]


def run(rounds: int, seconds: float) -> dict[str, dict[str, list[list[float]]]]:
    """Measure all, in rounds: what `measure` returns, by row and by number of runners."""
    results: dict[str, dict[str, list[list[float]]]] = {}
    for _ in range(rounds):
        for algo, envs, engine in CASES:
            for kind in ENVS:
                row = results.setdefault(f"{algo}, {envs} envs, {kind}, {engine}", {})
                for runners in RUNNERS:
                    algorithm = build(algo, envs, engine, kind, runners)
                    row.setdefault(str(runners), []).append(measure(algorithm, seconds))
                    algorithm.stop()
                print(f"{algo}, {envs} envs, {kind}, {engine}: {row}", flush=True)
    return results


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    heads = " | ".join(f"{runners} env runner{'s' * (runners > 1)}" for runners in RUNNERS[1:])
    lines = [f"| environment steps/s: times its own; CPU µs a step | itself | {heads} |"]
    lines.append("|---" * (len(RUNNERS) + 1) + "|")
    for row, found in record["results"].items():
        rates = {number: [rate for rate, _, _ in rounds] for number, rounds in found.items()}
        cells = []
        for number, rounds in found.items():
            own, beside = (spread_of([one[place] for one in rounds]).median for place in (1, 2))
            ratio = f": {compare_rounds(rates[number], rates['0'])}" if number != "0" else ""
            cpu = f"{own:,.0f} + {beside:,.0f}" if number != "0" else f"{own:,.0f}"
            cells.append(f"{spread_of(rates[number]).median:,.0f}{ratio}; {cpu}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round, no record")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/runners.json")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    import torch

    from rltune.cluster.ray_cluster import connect_ray, prepare_environment
    from rltune.config.schema import ClusterConfig

    prepare_environment()
    torch.set_num_threads(1)
    rounds, seconds = (1, 1.5) if arguments.quick else (3, 4.0)
    with connect_ray(ClusterConfig(num_cpus=max(RUNNERS), num_gpus=0)):
        record = make_record("runners", rounds, run(rounds, seconds))
    print(table(record))
    if arguments.json or not arguments.quick:
        write_record(record, arguments.json)


if __name__ == "__main__":
    main()
