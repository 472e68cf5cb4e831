"""Search in a folder without training: a ledger, Optuna's study in memory, and trials that end as a test says."""

from __future__ import annotations

import math

from ledger import add_reports, make_ledger

from rltune.config.criteria import NO_CRITERIA
from rltune.ledger.ledger import Ledger
from rltune.ledger.optuna_study import OptunaStudy
from rltune.search.sampler_view import choose_view
from rltune.search.samplers import build_sampler, get_traits
from rltune.search.space import parse_space

PLAIN = parse_space({"lr": ["loguniform", 1e-5, 1e-1], "batch": ["pow2", 64, 1024], "gamma": ["uniform", 0.8, 1.0]})


class Driver:
    """What a driver does with the ledger and the study, one trial after the other; nothing trains.

    A trial's objective is the better the nearer its learning rate is to 1e-3; it is negative if higher ones are better.
    """

    def __init__(
        self, folder, space=PLAIN, kind="tpe", args=None, view=None, new=True, earlier=(), criteria=NO_CRITERIA
    ):
        self.folder, self.space, self.kind = folder, space, kind
        self.args = {"n_startup_trials": 4} if args is None and kind == "tpe" else args or {}
        self.view, self.earlier = view or choose_view(get_traits(kind)), earlier
        folder.mkdir(exist_ok=True)
        self.ledger = make_ledger(folder) if new else Ledger(f"sqlite:///{folder / 'ledger.db'}", "sweep")
        self.ledger.judge_by(criteria)
        self.study = OptunaStudy(self.ledger.trials, self.view, self.read_drawn, earlier)

    def read_drawn(self, record):
        return self.space.place(record.params, record.drawn or {})

    def restart(self):
        """As a resumed sweep does."""
        self.close()
        criteria = self.ledger.criteria
        return Driver(self.folder, self.space, self.kind, self.args, self.view, False, self.earlier, criteria)

    def close(self):
        self.ledger.close()

    def draw(self, given=None):
        number = self.ledger.trials.num_trials
        sampler = build_sampler(self.kind, self.args, 1000 + number, self.space.is_conditional)
        return self.study.propose(self.space.encode(given or {}), sampler, self.space.draw)

    def propose(self, given=None):
        made = self.draw(given)
        return self.ledger.trials.add(
            self.space.decode(made.drawn), [7], None, made.trial_state, made.study_state, drawn=made.drawn
        )

    def report(self, number, curve):
        return add_reports(self.ledger, number, curve)

    def end(self, number, state="COMPLETE", tell=True, **facts):
        record = self.ledger.trials.end(number, state, "why", **facts)
        if tell:
            self.study.tell(record)
        return record

    def run(self, state="COMPLETE", curve=None, given=None, **facts):
        record = self.propose(given)
        distance, sign = abs(math.log10(record.params["lr"]) + 3), self.ledger.criteria.direction.sign
        self.report(record.number, {10: -sign * (distance + 1), 20: -sign * distance} if curve is None else curve)
        return self.end(record.number, state, **facts)

    def read(self):
        """The study's trials of this sweep."""
        return self.study._study.get_trials()[len(self.earlier) :]


def run_some(driver, count=6):
    """Trials that end in every way."""
    ends = [{}, {"state": "PRUNED"}, {"state": "PRUNED", "diverged": True}, {"state": "FAIL"}]
    for number in range(count):
        driver.run(**ends[number % 4])
    return driver
