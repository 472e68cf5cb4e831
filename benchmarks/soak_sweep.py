"""One driver of a toy sweep, as ``benchmarks/soak.py`` starts and kills it: ``run`` or ``resume``, then overrides.

Everything is real but the training, whose objective is ``quality * env_steps / 1000``. Each iteration appends a line to
``trained/<number>``, so that repeated work can be counted.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent), str(HERE.parent / "tests" / "support")]

from toy import ToyRunner  # noqa: E402

from rltune.trial.metrics import Progress  # noqa: E402
from rltune.trial.trainable import Trial  # noqa: E402

TOY = (
    "+algo.training.learner_config_dict={ballast: 4096, quality: 1.0, fault: null, seconds: 0.0, saving: 0.0}",
    "~tuned", "~space", "+space.quality=[uniform,0,1]",
    "searcher=random", "scheduler=none", "budget.env_steps=2000", "certify=off", "certify.top=0",
    "tracking.register=false", "report=false", "resources.max_concurrent=2", "cluster.num_cpus=2",
)  # fmt: skip


class SoakRunner(ToyRunner):
    """A toy that can write checkpoints slowly, and appends each iteration to a file."""

    def __init__(self, params: Mapping[str, Any], seed: int, diary: Path) -> None:
        self.diary = diary
        self.grown: list[bytes] = []
        super().__init__(params, seed, float(params.get("seconds", 0.0)))

    def train(self) -> Progress:
        """One iteration of 100 environment steps."""
        made = super().train()
        with self.diary.open("a") as file:
            file.write(f"{self.env_steps}\n")
        if self.params.get("fault") == "grow":
            self.grown.append(b"x" * 200_000_000)
        return made

    def save(self, folder: Path, info: Mapping[str, Any]) -> None:
        """Write, as slowly as a large network, so that kills fall inside."""
        (folder / "half.bin").write_bytes(os.urandom(int(self.params.get("ballast") or 4096)))
        time.sleep(float(self.params.get("saving") or 0.0))
        super().save(folder, info)


class SoakTrial(Trial):
    """A trial over `SoakRunner`."""

    def build_runner(self, seed: int) -> SoakRunner:
        """From the sample; the diary lies beside the sweeps."""
        diary = Path(self.task.sweep).parents[1] / "trained" / str(self.task.number)
        diary.parent.mkdir(exist_ok=True)
        return SoakRunner(self.task.params, seed, diary)


def timed() -> None:
    """Let every event that the driver records leave its seconds in ``steps.txt``."""
    from rltune.driver.tune.recorder import Recorder

    def wrap(name: str) -> None:
        plain = getattr(Recorder, name)

        def measured(*args: Any, **kwargs: Any) -> None:
            began = time.perf_counter()
            plain(*args, **kwargs)
            with Path("steps.txt").open("a") as file:
                file.write(f"{time.perf_counter() - began:.6f}\n")

        setattr(Recorder, name, measured)

    for name in ("on_trial_result", "on_trial_start", "on_trial_complete", "on_trial_error"):
        wrap(name)


def main() -> None:
    """Run one driver in this folder."""
    from benchmarks.driver import request
    from rltune.cli.application.command import exit_on_signals
    from rltune.driver import plan
    from rltune.driver.run import resume_sweep, run_sweep
    from rltune.errors import RltuneError
    from rltune.ledger.sweep_ref import SweepRef

    timed()
    plan.preflight = lambda *_: ()  # RLlib's check has nothing to say about a quality
    # Named from the module, not from __main__, so that workers import it.
    from benchmarks.soak_sweep import SoakTrial as Trainable

    try:
        with exit_on_signals():
            if sys.argv[1] == "run":
                ended = run_sweep(request(*TOY, *sys.argv[2:]), trainable=Trainable)
            else:
                changes: dict[str, Any] = {}
                for word in sys.argv[3:]:
                    key, value = word.split("=", 1)
                    changes.setdefault(key.split(".")[0], {})[key.split(".")[1]] = value
                ended = resume_sweep(SweepRef(sys.argv[2]), changes=changes, trainable=Trainable)
    except RltuneError as error:
        print(error.pretty(), file=sys.stderr)
        sys.exit(2)
    sys.exit(ended.exit_code)


if __name__ == "__main__":
    main()
