"""What is tried next: unfinished trials, then warm starts, then the sampler, until the budget is spent."""

from __future__ import annotations

import pickle

import ledger
import pytest
from ray.tune.search import Searcher

from rltune.search.samplers import build_sampler
from rltune.search.space import parse_space
from rltune.study.study import Study
from rltune.sweep.tune.searcher import SearchPlan, StudySearcher

SPACE = parse_space({"lr": ["loguniform", 1e-5, 1e-2], "batch": ["pow2", 64, 256], "clip": 0.2})


def seeds(number):
    return [1000 + number]


class Sweep:
    """A searcher over a real study, and what Tune would be told."""

    def __init__(self, path, budget=4, slots=2, warm=(), create=True, seed=0, space=SPACE):
        url = ledger.empty(path) if create else f"sqlite:///{path / 'study.db'}"
        self.study = Study(url, "s", create=create)
        unfinished = [entry for entry in self.study.trials() if entry.state == "RUNNING"]
        self.stopping = False
        plan = SearchPlan(
            budget, slots, warm, unfinished, seeds, lambda number: build_sampler("random", {}, 1000 * seed + number)
        )
        assign = lambda entry: {"number": entry.number, **entry.params}  # noqa: E731
        self.searcher = StudySearcher(self.study, space, plan, assign, lambda: self.stopping)
        self._ids = iter(range(1000))

    def suggest(self):
        """Tune's id of the new trial, and its config."""
        name = f"t{next(self._ids)}"
        return name, self.searcher.suggest(name)

    def end(self, name, config, state="COMPLETE"):
        self.study.finish(config["number"], state, 1.0, "done")
        self.searcher.on_trial_complete(name, {})

    def run(self):
        """All configs until the searcher is finished, one trial at a time."""
        configs = []
        while (suggested := self.suggest())[1] != Searcher.FINISHED:
            configs.append(suggested[1])
            self.end(*suggested)
        return configs


def test_as_many_trials_are_proposed_as_the_budget_says(tmp_path):
    configs = Sweep(tmp_path, budget=5).run()
    assert [config["number"] for config in configs] == [0, 1, 2, 3, 4]
    assert len({config["lr"] for config in configs}) == 5
    assert all(1e-5 <= c["lr"] <= 1e-2 and c["batch"] in (64, 128, 256) and c["clip"] == 0.2 for c in configs)


def test_what_is_proposed_is_in_the_ledger_before_it_runs(tmp_path):
    sweep = Sweep(tmp_path)
    _, config = sweep.suggest()
    entry = Study(f"sqlite:///{tmp_path / 'study.db'}", "s").trial(0)
    assert entry.state == "RUNNING"
    assert dict(entry.params) == {key: config[key] for key in ("lr", "batch", "clip")}
    assert entry.attributes["seeds"] == [1000]


def test_a_proposal_waits_for_a_free_slot_so_that_it_knows_all_that_is_known(tmp_path):
    sweep = Sweep(tmp_path, slots=2)
    first, second = sweep.suggest(), sweep.suggest()
    assert sweep.suggest()[1] is None
    assert sweep.study.num_trials == 2
    sweep.end(*first)
    assert sweep.suggest()[1]["number"] == 2
    assert sweep.suggest()[1] is None
    sweep.end(*second)


def test_the_search_ends_only_when_the_last_trial_has(tmp_path):
    sweep = Sweep(tmp_path, budget=2, slots=4)
    first, second = sweep.suggest(), sweep.suggest()
    assert sweep.suggest()[1] is None, "one of the two may have to be tried again"
    sweep.end(*first)
    assert sweep.suggest()[1] is None
    sweep.end(*second)
    assert sweep.suggest()[1] == Searcher.FINISHED


def test_warm_starts_come_first_and_in_order(tmp_path):
    warm = [{"lr": 3e-4, "batch": 128}, {"lr": 1e-3}, {"lr": 5.0, "batch": 64}]
    configs = Sweep(tmp_path, budget=5, warm=warm).run()
    assert (configs[0]["lr"], configs[0]["batch"]) == (3e-4, 128)
    assert configs[1]["lr"] == 1e-3
    assert configs[2]["batch"] == 64
    assert 1e-5 <= configs[2]["lr"] <= 1e-2, "what lies outside the space is drawn"
    assert [config["number"] for config in configs] == [0, 1, 2, 3, 4]


def test_a_resumed_sweep_first_goes_on_with_what_was_interrupted(tmp_path):
    before = Sweep(tmp_path, budget=4, slots=3, warm=[{"lr": 3e-4}])
    running = [before.suggest() for _ in range(3)]
    before.end(*running[1])
    before.study.close()
    after = Sweep(tmp_path, budget=4, slots=3, warm=[{"lr": 3e-4}], create=False)
    configs = after.run()
    assert [config["number"] for config in configs] == [0, 2, 3]
    assert configs[:2] == [running[0][1], running[2][1]], "the same values under the same numbers"
    assert after.study.num_trials == 4


def test_a_finished_sweep_that_is_extended_asks_only_for_the_rest(tmp_path):
    before = Sweep(tmp_path, budget=3)
    first = before.run()
    before.study.close()
    after = Sweep(tmp_path, budget=5, create=False, warm=[{"lr": 3e-4}])
    more = after.run()
    assert [config["number"] for config in more] == [3, 4]
    assert all(config["lr"] != 3e-4 for config in more), "the warm starts are over"
    assert not {config["lr"] for config in first} & {config["lr"] for config in more}
    assert Sweep(tmp_path, budget=5, create=False).suggest()[1] == Searcher.FINISHED


def test_a_trial_that_went_wrong_is_tried_again_before_anything_new(tmp_path):
    sweep = Sweep(tmp_path, budget=3, slots=1)
    name, config = sweep.suggest()
    sweep.searcher.retry(sweep.study.trial(config["number"]))
    sweep.searcher.on_trial_complete(name, {})
    again = sweep.suggest()
    assert again[1] == config
    sweep.end(*again)
    assert sweep.suggest()[1]["number"] == 1


def test_a_trial_that_lost_its_process_frees_its_slot(tmp_path):
    sweep = Sweep(tmp_path, slots=1)
    name, _ = sweep.suggest()
    sweep.searcher.on_trial_complete(name, None, error=True)
    assert sweep.suggest()[1]["number"] == 1


def test_nothing_more_is_proposed_once_an_end_was_asked_for(tmp_path):
    sweep = Sweep(tmp_path)
    sweep.suggest()
    sweep.stopping = True
    assert sweep.suggest()[1] == Searcher.FINISHED
    assert sweep.study.num_trials == 1


def waiting(study):
    study._study.enqueue_trial(SPACE.encode({"lr": 3e-4}))


def half_drawn(study):
    study._study.enqueue_trial(SPACE.encode({"lr": 3e-4}))
    study.ask(lambda suggest: {"lr": suggest("lr", SPACE.distributions()["lr"])}, {})


def drawn(study):
    study.ask(SPACE.draw, SPACE.encode({"lr": 3e-4}))


@pytest.mark.parametrize("killed", [waiting, half_drawn, drawn])
def test_a_trial_whose_driver_was_killed_while_it_was_proposed_gets_its_values_and_seeds(tmp_path, killed):
    before = Sweep(tmp_path, budget=2)
    killed(before.study)
    before.study.close()
    after = Sweep(tmp_path, budget=2, create=False)
    configs = after.run()
    assert [config["number"] for config in configs] == [0, 1]
    assert configs[0]["lr"] == 3e-4
    assert configs[0]["batch"] in (64, 128, 256)
    assert configs[0]["clip"] == 0.2
    assert after.study.trial(0).attributes["seeds"] == [1000]


def test_a_space_without_anything_to_search_runs_one_configuration_under_several_seeds(tmp_path):
    configs = Sweep(tmp_path, budget=3, space=parse_space({"lr": 3e-4})).run()
    assert configs == [{"number": number, "lr": 3e-4} for number in range(3)]


def test_the_same_seed_proposes_the_same_and_another_seed_does_not(tmp_path):
    runs = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        runs[name] = Sweep(tmp_path / name, seed=seed, budget=3).run()
    assert runs["a"] == runs["b"] != runs["c"]


def test_tune_can_pickle_the_searcher_though_it_holds_a_database(tmp_path):
    assert pickle.dumps(Sweep(tmp_path).searcher)
