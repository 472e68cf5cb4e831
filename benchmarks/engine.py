"""The engine against stock RLlib and Stable-Baselines3: environment steps per second at equal settings.

    python -m benchmarks.engine [--quick] [--cases ppo_cartpole_32,...] [--kinds ours,sb3]
    python -m benchmarks.engine --kinds ours,compiled       ours with torch.compile

About 9 minutes on two quiet cores; 3 with --quick, which keeps no record. Each contender is a process that stays
alive; they take turns, so that a noisy machine is noisy for all of them, and a round's ratio is the statistic, not two
averages of different minutes. One torch thread each. Stable-Baselines3 lives in an environment of its own (peers.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.records import ROOT, compare_rounds, make_record, spread_of, write_record

KINDS = {
    "ours": "rltune", "rllib": "stock RLlib", "sb3": "SB3", "compiled": "rltune, torch.compile", "rltools": "RLtools",
    "rltools_gym": "RLtools on Gymnasium",
}  # fmt: skip
ROUNDS = 9


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        words: What is trained.
        seconds: Of a round, at least: an iteration that has begun is ended.
    """

    words: str
    seconds: float


CASES = {
    "ppo_cartpole_32": Case("PPO CartPole, 32 environments, batch 2048, minibatch 256, 10 epochs, 64x64", 1.5),
    "ppo_cartpole_32_native": Case("the same, as a native vector environment", 1.5),
    "ppo_cartpole_1": Case("PPO CartPole, 1 environment, batch 2048, minibatch 256", 1.5),
    "ppo_cartpole_1_64": Case("PPO CartPole, Stable-Baselines3's defaults: 1 environment, minibatch 64", 1.5),
    "ppo_cartpole_8_64": Case("PPO CartPole, 8 environments, batch 2048, minibatch 64, 10 epochs", 1.5),
    "ppo_cartpole_16_64": Case("PPO CartPole, 16 environments, batch 512, minibatch 64, 20 epochs", 1.5),
    "ppo_cartpole_16_128": Case("PPO CartPole, 16 environments, batch 1024, minibatch 128, 10 epochs", 1.5),
    "ppo_halfcheetah_norm": Case("PPO HalfCheetah, 4 environments, normalised observations", 2.0),
    "dqn_cartpole": Case("DQN CartPole, batch 64, an update per 4 steps, epsilon 0.05, 64x64", 1.5),
    "dqn_cartpole_4": Case("DQN CartPole, 4 environments", 1.5),
    "sac_pendulum": Case("SAC Pendulum, batch 256, an update per step, 256x256", 3.0),
    "sac_pendulum_64": Case("SAC Pendulum, batch 100, an update per step, 64x64", 3.0),
}
ELSEWHERE = {  # measured by benchmarks/gpu.py, as it takes hours on a processor, by rltools.py and by spaces.py
    "ppo_breakout": Case("PPO Breakout, 8 environments, batch 1024, 4 epochs, 512 units a head (SB3: for both)", 10.0),
    "ppo_pendulum_4": Case("PPO Pendulum, 4 environments, batch 1024, minibatch 256, 2 epochs, 64x64, ReLU", 1.5),
    "ppo_invalid_actions": Case("masks: sb3-contrib's InvalidActionEnv, 60 of 80 actions illegal, 1 environment", 4.0),
    "ppo_switches": Case("masks: MultiBinary(339), 16 environments, batch 1024, minibatch 512, 4 epochs", 4.0),
    "ppo_jobshop": Case("masks: jssenv, 15 jobs on 15 machines, 8 environments", 4.0),
    "ppo_jobshop_1": Case("the same with Stable-Baselines3's default of 1 environment", 4.0),
    "ppo_camera": Case("image of 64 x 64 and vector: 8 environments, batch 1024, minibatch 256, 4 epochs", 4.0),
    "ppo_frozenlake": Case("FrozenLake-v1, 8 environments", 4.0),
}


class Contender:
    """One process of ``engine_worker.py``.

    Args:
        kind: A key of `KINDS`.
        case: What it trains.
        device: Of the learner: ``cpu`` or ``cuda``.

    Attributes:
        environments: What it steps, as it said when it had built it: ``native``, ``single`` or ``C++``.
    """

    def __init__(self, kind: str, case: str, device: str = "cpu") -> None:
        is_peer = kind == "sb3" or kind.startswith("rltools")
        python, site = (str(peers.PYTHON), None) if is_peer else (sys.executable, peers.packages_folder())
        command = [python, "-m", "benchmarks.engine_worker", kind, case, "--device", device]
        command += ["--site", str(site)] if site else []
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
        }
        # A file, not a pipe: nobody reads while the others work, and a full pipe would stop the contender.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )
        self.environments: str = self._answer()["environments"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        self._errors.seek(0)
        raise RuntimeError(f"{self.process.args} ended:\n{self._errors.read()[-2000:]}")

    def round(self, seconds: float) -> tuple[int, float, float]:
        """Train for at least ``seconds``; return environment steps, seconds, and the process's own CPU seconds."""
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        answer = self._answer()
        return answer["steps"], answer["seconds"], answer["cpu_s"]

    def stop(self) -> None:
        """End the process."""
        self.process.communicate()


def measure(case: str, rounds: int, kinds: list[str], shorten: float = 1.0, device: str = "cpu") -> dict[str, Any]:
    """Let the contenders take turns; return for each its environments, and steps and seconds of each round."""
    contenders = {kind: Contender(kind, case, device) for kind in kinds}
    found: dict[str, Any] = {k: {"environments": c.environments, "rounds": []} for k, c in contenders.items()}
    try:
        for _ in range(rounds):
            for kind, contender in contenders.items():
                found[kind]["rounds"].append(contender.round((CASES | ELSEWHERE)[case].seconds * shorten))
    finally:
        for contender in contenders.values():
            contender.stop()
    return found


def speeds(contender: dict[str, Any], of_cpu: bool = False) -> list[float]:
    """Return environment steps per second of each round, or per CPU second, which other work changes less."""
    return [steps / (rest[0] if of_cpu else seconds) for steps, seconds, *rest in contender["rounds"]]


def head(kinds: list[str]) -> str:
    """Return the table's first lines."""
    names = [KINDS[kind] for kind in kinds] + [f"rltune / {KINDS[kind]}" for kind in kinds if kind != "ours"]
    names = ["environment steps/s (steps taken)", "environments", *names]
    return f"| {' | '.join(names)} |\n{'|---' * len(names)}|"


def row(case: str, found: dict[str, Any] | None, kinds: list[str]) -> str:
    """Return one line of the table: medians, and the rounds' ratios with least and greatest."""
    words = (CASES | ELSEWHERE)[case].words
    if not found:
        return f"| {words} | not measured |{' |' * (2 * len(kinds) - 1)}"
    by_kind = {kind: speeds(each) for kind, each in found.items()}
    cells = []
    for kind in kinds:
        steps = sum(steps for steps, *_ in found[kind]["rounds"]) if kind in found else 0
        cells.append(f"{spread_of(by_kind[kind]).median:,.0f} ({steps:,})" if steps else "")
    for kind in kinds:
        if kind != "ours":
            cells.append(str(compare_rounds(by_kind["ours"], by_kind[kind])) if kind in by_kind else "")
    return f"| {words} | {describe_environments(found)} | {' | '.join(cells)} |"


def describe_environments(found: dict[str, Any]) -> str:
    """Say who steps a native vector environment and who single environments, one after another."""
    kinds: dict[str, list[str]] = {}
    for kind, one in found.items():
        kinds.setdefault(one["environments"], []).append(KINDS[kind])
    return next(iter(kinds)) if len(kinds) == 1 else "; ".join(f"{how}: {', '.join(who)}" for how, who in kinds.items())


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    results = record["results"]
    kinds = list(next(iter(results.values())))
    return "\n".join([head(kinds), *(row(case, results.get(case), kinds) for case in CASES)])


def main() -> None:
    """Parse, run, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three short rounds, no record")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--kinds", default="ours,rllib,sb3", help=f"comma-separated, of {', '.join(KINDS)}")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/engine.json")
    arguments = parser.parse_args()
    kinds = ["ours", *(kind for kind in arguments.kinds.split(",") if kind != "ours")]
    if "sb3" in kinds:
        peers.make_venv()
    rounds, shorten = (3, 0.5) if arguments.quick else (ROUNDS, 1.0)
    results = {}
    print(head(kinds))
    for case in arguments.cases.split(","):
        results[case] = measure(case, rounds, kinds, shorten)
        print(row(case, results[case], kinds), flush=True)
    if arguments.json or not arguments.quick:
        write_record(make_record("engine", rounds, results, peers.versions()), arguments.json)


if __name__ == "__main__":
    main()
