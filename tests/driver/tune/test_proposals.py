"""What the search tries next: unfinished trials, then warm starts, then the sampler, until the budget is spent."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from opened import make_proposals

from rltune.driver.provenance import record_start
from rltune.driver.sweep import Sweep
from rltune.ledger.ledger import Ledger
from rltune.records import ENQUEUE
from rltune.records import SPACE as CHANGED_SPACE

SPACE = ("lr=[loguniform,1e-5,1e-2]", "minibatch_size=[pow2,64,256]", "gamma=[one_minus_loguniform,0.01,0.1]")
WARM = "warm_start=[{lr:3e-4},{lr:4e-4}]"


class Search:
    """Proposals of a sweep, and its trials, which end at once."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.ledger, self.proposals = sweep, sweep.ledger, make_proposals(sweep)
        self.propose = functools.partial(self.proposals.propose, False)

    def end(self, record: Any) -> None:
        self.sweep.search.study.tell(self.ledger.trials.end(record.number, "FAIL", "done"))

    def run(self) -> list[Any]:
        """All that is proposed, one trial after the other."""
        records = []
        while record := self.propose():
            records.append(record)
            self.end(record)
        return records


@pytest.fixture
def make_search(make_sweep: Callable[..., Sweep]) -> Callable[..., Search]:
    """Begin a random search of so many trials; once more, its driver was killed and the next one goes on."""

    def make(trials: int = 4, *words: str, space: tuple[str, ...] = SPACE, **options: Any) -> Search:
        searched = ("~space", *(f"+space.{dimension}" for dimension in space))
        plain = ("searcher=random", "portfolio=off", "certify=off", "~tuned", f"budget.trials={trials}")
        return Search(make_sweep(*plain, *searched, *words, **options))

    return make


def test_once_the_steps_are_spent_what_was_begun_goes_on_and_nothing_else(make_search):
    budget = ("budget.env_steps=1000", "budget.total_env_steps=1000")
    search = make_search(5, *budget)
    begun = [search.propose() for _ in range(2)]
    resumed = make_search(5, *budget)
    resumed.sweep.stopper.env_steps = 1000
    assert [resumed.propose().number for _ in begun] == [0, 1]
    assert resumed.propose() is None
    resumed.proposals.retry(begun[1])
    assert resumed.propose().number == 1
    assert resumed.propose() is None
    assert len(resumed.sweep.console.notes) == 1
    resumed.sweep.stopper.env_steps = 0
    assert resumed.propose().number == 2


def test_as_many_trials_are_proposed_as_the_budget_says(make_search):
    records = make_search(5).run()
    assert [record.number for record in records] == [0, 1, 2, 3, 4]
    assert len({record.params["lr"] for record in records}) == 5
    assert all(1e-5 <= record.params["lr"] <= 1e-2 for record in records)


def test_what_is_proposed_is_in_the_ledger_before_it_runs(make_search):
    search = make_search()
    record = search.propose()
    kept = Ledger(search.ledger.url, "mine").trials.record(0)
    assert (kept.state, kept.params, list(kept.seeds)) == ("RUNNING", record.params, search.sweep.plan.seeds(0))
    assert set(kept.drawn) == {"lr", "log2(minibatch_size)", "1-gamma"}


def test_warm_starts_come_first_and_in_order(make_search):
    warm = "warm_start=[{lr:3e-4,minibatch_size:128},{lr:1e-3},{lr:5.0,minibatch_size:64}]"
    first, second, third, *_ = (record.params for record in make_search(5, warm).run())
    assert (first["lr"], first["minibatch_size"], second["lr"], third["minibatch_size"]) == (3e-4, 128, 1e-3, 64)
    assert 1e-5 <= third["lr"] <= 1e-2, "what lies outside the space is drawn"


def test_a_resumed_search_first_goes_on_with_what_was_interrupted(make_search):
    before = make_search(4, WARM)
    running = [before.propose() for _ in range(3)]
    before.end(running[1])
    after = make_search(4, WARM).run()
    assert [record.number for record in after] == [0, 2, 3]
    assert [record.params for record in after[:2]] == [running[0].params, running[2].params]


def test_an_extended_search_asks_only_for_the_rest(make_search):
    first = make_search(3).run()
    more = make_search(5, WARM).run()
    assert [record.number for record in more] == [3, 4]
    assert not {record.params["lr"] for record in first} & {record.params["lr"] for record in more}
    assert all(record.params["lr"] not in (3e-4, 4e-4) for record in more), "the warm starts are over"


def test_a_trial_that_went_wrong_comes_first_again(make_search):
    search = make_search(3)
    record = search.propose()
    search.proposals.retry(record)
    assert search.propose() is record
    assert search.propose().number == 1


def test_a_space_without_anything_to_search_runs_one_configuration(make_search):
    search = make_search(3, space=("lr=3e-4",))
    expected = [({"lr": 3e-4}, tuple(search.sweep.plan.seeds(number))) for number in range(3)]
    assert [(record.params, record.seeds) for record in search.run()] == expected


def test_the_same_seed_proposes_the_same_and_another_does_not(make_search):
    runs = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        runs[name] = [record.params for record in make_search(4, f"seed={seed}", name=name).run()]
    assert runs["a"] == runs["b"] != runs["c"]


def test_what_was_enqueued_is_next_and_pushes_back_warm_starts(make_search):
    search = make_search(5, WARM)
    search.ledger.add_request(ENQUEUE, {"lr": 1e-3, "minibatch_size": 128}, "maria@host")
    first = search.propose()
    assert (first.params["lr"], first.params["minibatch_size"], first.enqueued_by) == (1e-3, 128, "maria@host")
    assert first.drawn["log2(minibatch_size)"] == 7
    assert set(first.drawn) == {"lr", "log2(minibatch_size)", "1-gamma"}, "what was left out is drawn"
    assert search.propose().params["lr"] == 3e-4
    search.ledger.add_request(ENQUEUE, {"lr": 2e-3}, "ben@host")
    after = make_search(5, WARM)
    again = [after.propose() for _ in range(5)]
    assert [record.number for record in again] == [0, 1, 2, 3, 4], "those of the killed driver first"
    assert [record.params["lr"] for record in again[2:4]] == [2e-3, 4e-4]
    assert [record.origin for record in again] == ["enqueued", "warm_start", "enqueued", "warm_start", "baseline"]
    study = after.sweep.search.study._study
    assert [trial.params["lr"] for trial in study.trials] == [record.params["lr"] for record in again]


def test_what_was_enqueued_is_none_beyond_the_budget(make_search):
    search = make_search(1)
    search.propose()
    search.ledger.add_request(ENQUEUE, {"lr": 1e-3}, "maria@host")
    assert search.propose() is None
    assert len(search.ledger.read_requests()) == 1, "it waits for a larger one"


def begin(search: Search, count: int) -> list[Any]:
    """Record the settings of a sweep as its driver does, and let so many trials end with a score."""
    plan = search.sweep.plan
    record_start(search.ledger, plan.folder, plan.settings, None)
    records = []
    for _ in range(count):
        records.append(search.propose())
        search.sweep.search.study.tell(search.ledger.trials.end(records[-1].number, "COMPLETE", "done"))
    return records


@pytest.mark.parametrize("kind", ["random", "rf", "tpe", "qmc"])
def test_a_resume_with_other_ranges_goes_on_from_their_next_trial(
    make_search: Callable[..., Search], kind: str
) -> None:
    """The ledger has from which trial on, and the searcher sees the trials that are still in the space."""
    choice = "num_epochs=[choice,5,10,20]"
    first = make_search(12, f"searcher={kind}", space=("lr=[loguniform,1e-5,1e-2]", choice))
    before = begin(first, 6)
    first.ledger.close()
    for _ in range(2):  # A resume after it has the same ranges, and changes nothing.
        search = make_search(
            12, f"searcher={kind}", space=("lr=[loguniform,1e-4,1e-2]", "num_epochs=[choice,10,20,40]")
        )
        begin(search, 0)
        search.ledger.close()
    search = make_search(12, f"searcher={kind}", space=("lr=[loguniform,1e-4,1e-2]", "num_epochs=[choice,10,20,40]"))
    (change,) = search.ledger.read_requests(CHANGED_SPACE, waiting=False)
    assert (change.trial, sorted(change.payload)) == (6, ["lr", "num_epochs"])
    assert any("from trial 6 on" in note for note in search.sweep.plan.notes)
    inside = {each.number for each in before if each.params["lr"] >= 1e-4 and each.params["num_epochs"] != 5}
    seen = search.sweep.search.study._study.get_trials()
    assert {trial.number for trial in seen if trial.params} == inside
    after = search.run()
    assert [each.number for each in after] == [6, 7, 8, 9, 10, 11]
    assert all(1e-4 <= each.params["lr"] <= 1e-2 and each.params["num_epochs"] in (10, 20, 40) for each in after)
    assert [each.params for each in search.ledger.trials.records()[:6]] == [each.params for each in before]


def test_a_resume_tries_first_what_only_now_is_in_the_space(make_search: Callable[..., Search]) -> None:
    """Nothing is tried twice: the baseline was tried before, the warm start lies in the space only now."""
    warm = "warm_start=[{lr:3e-4,num_epochs:20}]"
    first = make_search(6, warm, space=("lr=[loguniform,1e-5,1e-2]", "num_epochs=[choice,5,10]"))
    begin(first, 3)
    first.ledger.close()
    second = make_search(6, warm, space=("lr=[loguniform,1e-5,1e-2]", "num_epochs=[choice,5,10,20]"))
    assert [each.origin for each in second.run()] == ["warm_start", "searcher", "searcher"]
    assert second.ledger.trials.record(3).params == {"lr": 3e-4, "num_epochs": 20}


def test_a_trial_after_other_ranges_is_not_an_enqueued_one(make_search: Callable[..., Search]) -> None:
    first = make_search(3, space=("lr=[loguniform,1e-5,1e-2]",))
    begin(first, 2)
    first.ledger.close()
    second = make_search(3, space=("lr=[loguniform,1e-4,1e-2]",))
    second.run()
    assert second.ledger.trials.record(2).enqueued_by is None
