"""What the search tries next: unfinished trials, then warm starts, then the sampler, until the budget is spent."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ledger import SPACE, make_ledger

from rltune.driver.requests.inbox import Inbox
from rltune.driver.tune.proposals import SearchProposals
from rltune.ledger.ledger import Ledger
from rltune.ledger.optuna_study import OptunaStudy
from rltune.records import ENQUEUE, PORTFOLIO, SEARCHER
from rltune.search.sampler_view import tell_as_pruned
from rltune.search.samplers import build_sampler
from rltune.search.space import Space, parse_space


@dataclass
class Plan:
    """As much of a plan as proposals need."""

    trials: int = 4
    warm_starts: tuple[Any, ...] = ()
    space: Space = field(default_factory=lambda: SPACE)
    seed: int = 0

    @property
    def budget(self) -> Any:
        return SimpleNamespace(trials=self.trials)

    def fixed_values(self, number: int) -> tuple[dict[str, Any], str]:
        is_given = number < len(self.warm_starts)
        return (self.space.encode(self.warm_starts[number]), PORTFOLIO) if is_given else ({}, SEARCHER)

    def seeds(self, number: int) -> list[int]:
        return [1000 + number]

    def sampler(self, number: int) -> Any:
        return build_sampler("random", {}, 1000 * self.seed + number)


class Search:
    """Proposals over a real ledger and a real study, as a driver opens them."""

    def __init__(self, folder, *, ledger=None, **plan):
        self.is_spent = False
        self.plan = Plan(**plan)
        self.ledger = ledger or make_ledger(folder, "sweep")
        self.study = OptunaStudy(self.ledger.trials, tell_as_pruned, self.plan.space.distributions())
        self.inbox = Inbox(self.ledger, SimpleNamespace())
        self.notes = []
        self.stopper = SimpleNamespace(has_spent_steps=lambda: self.is_spent)
        self.console = SimpleNamespace(note=self.notes.append)
        self.proposals = SearchProposals(self)

    def end(self, record):
        self.study.tell(self.ledger.trials.end(record.number, "FAIL", "done"))

    def run(self):
        """All that is proposed, one trial after the other."""
        records = []
        while record := self.proposals.propose(False):
            records.append(record)
            self.end(record)
        return records

    def kill(self, folder, **plan):
        """The driver is gone; the next one opens what it left."""
        self.ledger.close()
        return Search(folder, ledger=Ledger(self.ledger.url, "sweep"), **plan)


def test_once_the_steps_are_spent_what_was_begun_goes_on_and_nothing_else(tmp_path):
    search = Search(tmp_path, trials=5)
    begun = [search.proposals.propose(False) for _ in range(2)]
    resumed = search.kill(tmp_path, trials=5)
    resumed.is_spent = True
    assert [resumed.proposals.propose(False).number for _ in begun] == [0, 1]
    assert resumed.proposals.propose(False) is None
    resumed.proposals.retry(begun[1])
    assert resumed.proposals.propose(False).number == 1
    assert resumed.proposals.propose(False) is None
    resumed.is_spent = False
    assert resumed.proposals.propose(False).number == 2


def test_as_many_trials_are_proposed_as_the_budget_says(tmp_path):
    records = Search(tmp_path, trials=5).run()
    assert [record.number for record in records] == [0, 1, 2, 3, 4]
    assert len({record.params["lr"] for record in records}) == 5
    assert all(1e-5 <= record.params["lr"] <= 1e-2 for record in records)


def test_what_is_proposed_is_in_the_ledger_before_it_runs(tmp_path):
    search = Search(tmp_path)
    record = search.proposals.propose(False)
    kept = Ledger(search.ledger.url, "sweep").trials.record(0)
    assert (kept.state, kept.params, kept.seeds) == ("RUNNING", record.params, (1000,))
    assert set(kept.drawn) == {"lr", "log2(batch)", "1-gamma"}


def test_warm_starts_come_first_and_in_order(tmp_path):
    warm = ({"lr": 3e-4, "batch": 128}, {"lr": 1e-3}, {"lr": 5.0, "batch": 64})
    first, second, third, *_ = (record.params for record in Search(tmp_path, trials=5, warm_starts=warm).run())
    assert (first["lr"], first["batch"], second["lr"], third["batch"]) == (3e-4, 128, 1e-3, 64)
    assert 1e-5 <= third["lr"] <= 1e-2, "what lies outside the space is drawn"


def test_a_resumed_search_first_goes_on_with_what_was_interrupted(tmp_path):
    before = Search(tmp_path, warm_starts=({"lr": 3e-4},))
    running = [before.proposals.propose(False) for _ in range(3)]
    before.end(running[1])
    after = before.kill(tmp_path, warm_starts=({"lr": 3e-4},)).run()
    assert [record.number for record in after] == [0, 2, 3]
    assert [record.params for record in after[:2]] == [running[0].params, running[2].params]


def test_an_extended_search_asks_only_for_the_rest(tmp_path):
    before = Search(tmp_path, trials=3)
    first = before.run()
    more = before.kill(tmp_path, trials=5, warm_starts=({"lr": 3e-4},)).run()
    assert [record.number for record in more] == [3, 4]
    assert not {r.params["lr"] for r in first} & {r.params["lr"] for r in more}
    assert all(record.params["lr"] != 3e-4 for record in more), "the warm starts are over"


def test_a_trial_that_went_wrong_comes_first_again(tmp_path):
    search = Search(tmp_path, trials=3)
    record = search.proposals.propose(False)
    search.proposals.retry(record)
    assert search.proposals.propose(False) is record
    assert search.proposals.propose(False).number == 1


def test_a_space_without_anything_to_search_runs_one_configuration(tmp_path):
    records = Search(tmp_path, trials=3, space=parse_space({"lr": 3e-4})).run()
    assert [(record.params, record.seeds) for record in records] == [({"lr": 3e-4}, (1000 + n,)) for n in range(3)]


def test_the_same_seed_proposes_the_same_and_another_does_not(tmp_path):
    runs = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        runs[name] = [record.params for record in Search(tmp_path / name, seed=seed).run()]
    assert runs["a"] == runs["b"] != runs["c"]


def test_what_was_enqueued_is_next_and_pushes_back_warm_starts(tmp_path):
    search = Search(tmp_path, trials=5, warm_starts=({"lr": 3e-4}, {"lr": 4e-4}))
    search.ledger.add_request(ENQUEUE, {"lr": 1e-3, "batch": 128}, "maria@host")
    first = search.proposals.propose(False)
    assert (first.params["lr"], first.params["batch"], first.enqueued_by) == (1e-3, 128, "maria@host")
    assert first.drawn["log2(batch)"] == 7
    assert set(first.drawn) == {"lr", "log2(batch)", "1-gamma"}, "what was left out is drawn"
    assert search.proposals.propose(False).params["lr"] == 3e-4
    search.ledger.add_request(ENQUEUE, {"lr": 2e-3}, "ben@host")
    after = search.kill(tmp_path, trials=5, warm_starts=({"lr": 3e-4}, {"lr": 4e-4}))
    again = [after.proposals.propose(False) for _ in range(5)]
    assert [record.number for record in again] == [0, 1, 2, 3, 4], "those of the killed driver first"
    assert [record.params["lr"] for record in again[2:4]] == [2e-3, 4e-4]
    assert again[4].params["lr"] not in (3e-4, 4e-4)
    assert [record.origin for record in again] == ["enqueued", "portfolio", "enqueued", "portfolio", "searcher"]
    assert [trial.params["lr"] for trial in after.study._study.trials] == [record.params["lr"] for record in again]


def test_what_was_enqueued_is_none_beyond_the_budget(tmp_path):
    search = Search(tmp_path, trials=1)
    search.proposals.propose(False)
    search.ledger.add_request(ENQUEUE, {"lr": 1e-3}, "maria@host")
    assert search.proposals.propose(False) is None
    assert len(search.ledger.read_requests()) == 1, "it waits for a larger one"
