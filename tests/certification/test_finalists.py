"""Who wins without certification: the best finalist on the same episodes, each played once, some of them early."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from saved import write_checkpoint

from rltune.certification.finalists import (
    EVALUATION_SEED,
    Finalist,
    derive_own_seed,
    describe_winner,
    rank_finalists,
)
from rltune.certification.result import Certification, Configuration, SeedResult, judge_configurations
from rltune.certification.selection import FinalEvaluation, Player, measure_policies
from rltune.checkpoints.store import open_store
from rltune.config.early_end import EarlyEnd
from rltune.envs.child import CallGivenUpError, Child
from rltune.envs.guest import call_guest
from rltune.envs.objective import Objective
from rltune.errors import Cause, GuestError, RltuneError
from rltune.policies.result import Evaluation
from rltune.records import TARGET_HELD, Direction, RunKey, TrialRecord
from rltune.statistics import mean_interval

# What each trial's policy plays, and what its search believed.
WORTH = {0: 10.0, 1: 30.0, 2: 20.0, 3: 99.0}
BELIEVED = {0: 3.0, 1: 2.0, 2: 4.0, 3: 1.0}


def entry(sweep: Path, number: int, state: str = "COMPLETE") -> TrialRecord:
    def fill(folder: Path) -> None:
        (folder / "policy").mkdir()

    state_then = {"env_steps": 100, "objective": BELIEVED[number]}
    record = write_checkpoint(sweep, f"trials/{number}", "best", state_then, fill)
    return TrialRecord(number, state, {"n": number}, {100: BELIEVED[number]}, checkpoint=record)


Play = Callable[..., Any]


@dataclass
class Process:
    """Stands in for a process: calls a function of the test in this one, and may do so several times."""

    play: Play

    def call(self, function: str, arguments: Any, *, limit_s: float, progress: Any, is_given_up: Any) -> Any:
        folder = Path(arguments["folder"])
        if function.endswith(":choose_acting"):
            return self.play(folder, arguments["training_scores"])
        answer = self.play(folder, arguments["episodes"], arguments["seed"], progress)
        return json.loads(json.dumps(answer.to_dict()))


def make_player(play: Play, slots: int = 1, **named: Any) -> Player:
    return Player(slots, lambda: Process(play), **named)  # type: ignore[arg-type, return-value]


def evaluation_of(worth: float, episodes: int) -> Evaluation:
    return Evaluation((worth,) * episodes, (1,) * episodes, worth, 0.0, worth, worth, worth, worth, worth)


class Aside:
    """Another process, that is asked what a checkpoint's policy plays."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._both = threading.Barrier(2, timeout=60)

    def __call__(self, folder: Path, episodes: int, seed: int, progress: Callable[[int, int], None]) -> Evaluation:
        number = int(folder.parent.parent.name)
        progress(episodes, episodes)
        self.numbers.append(number)
        if number != 1 and seed == EVALUATION_SEED:
            self._both.wait()  # the search's first two meet here, or it breaks
        return evaluation_of(WORTH[number], episodes)


@pytest.fixture
def aside() -> Aside:
    return Aside()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def finals(tmp_path: Path, aside: Aside) -> FinalEvaluation:
    return FinalEvaluation(open_store(tmp_path), top=3, episodes=2, player=make_player(aside, 2))


def test_the_best_of_the_finalists_wins_and_they_play_beside_each_other(
    tmp_path: Path, finals: FinalEvaluation, aside: Aside, lines: list[str]
) -> None:
    winner = finals.select([entry(tmp_path, number) for number in WORTH], lines.append)
    assert winner is not None
    assert winner.run == RunKey(1)
    assert (winner.trial, winner.score) == (1, 30.0)  # trial 3 would be better, and the search did not find out
    assert sorted(aside.numbers) == [0, 1, 1, 2], "the winner once more"
    assert [re.findall(r"trial (\d)", line) for line in lines] == [["2"], ["0"], ["1"]]


def test_of_finalists_with_costs_the_lowest_wins(tmp_path: Path, aside: Aside, lines: list[str]) -> None:
    """The search believes in trials 3, 1 and 0, and the fresh episodes say that trial 0 costs least."""

    def call(folder: Path, episodes: int, seed: int, progress: Any) -> Evaluation:
        return evaluation_of(WORTH[int(folder.parent.parent.name)], episodes)

    cost = Objective("energy", Direction.MIN)
    entries = [entry(tmp_path, number) for number in WORTH]
    assert [finalist.trial for finalist in rank_finalists(open_store(tmp_path), entries, Direction.MIN)] == [3, 1, 0, 2]
    winner = FinalEvaluation(open_store(tmp_path), 3, 20, make_player(call), cost).select(entries, lines.append)
    assert winner is not None
    assert (winner.trial, winner.objective) == (0, 3.0)


@pytest.mark.parametrize("error", [GuestError("its process died"), ConnectionResetError("gone")])
def test_a_finalist_that_cannot_play_costs_the_others_nothing(
    tmp_path: Path, finals: FinalEvaluation, aside: Aside, lines: list[str], error: Exception
) -> None:
    def call(folder: Path, *more: Any) -> Evaluation:
        if folder.parent.parent.name == "1":
            raise error
        return aside(folder, *more)

    player = make_player(call, 2, notify=lines.append)
    finals = FinalEvaluation(open_store(tmp_path), top=3, episodes=2, player=player)
    winner = finals.select([entry(tmp_path, number) for number in WORTH], lines.append)
    assert winner is not None
    assert winner.trial != 1
    assert sum("trial 1" in line for line in lines) == 1


def test_how_far_those_are_that_play_is_shown_meanwhile(tmp_path: Path, lines: list[str]) -> None:
    """Nothing else happens then, for as long as their episodes take."""
    shown: list[tuple[str, int, int]] = []
    seen = threading.Event()

    def call(folder: Path, episodes: int, seed: int, progress: Callable[[int, int], None]) -> Evaluation:
        progress(10, episodes)
        assert seen.wait(60)
        return play_by_seed(folder, episodes, seed, progress)

    def show(who: str, done: int, total: int) -> None:
        shown.append((who, done, total))
        if done == 20:
            seen.set()

    finals = FinalEvaluation(open_store(tmp_path), top=2, episodes=40, player=make_player(call, 2, show=show))
    finals.select([entry(tmp_path, number) for number in (0, 1)], lines.append)
    assert (20, 120) in {(done, total) for _, done, total in shown}, "both of them, beside each other"


def test_no_evaluation_trusts_the_search_and_no_trial_has_no_winner(tmp_path: Path, lines: list[str]) -> None:
    finals = FinalEvaluation(open_store(tmp_path), top=0, episodes=1, player=Player())
    winner = finals.select([entry(tmp_path, number) for number in WORTH], lines.append)
    assert winner is not None
    assert (winner.trial, winner.evaluation, lines) == (2, None, [])
    assert finals.select([], lines.append) is None


def test_trials_that_ran_their_whole_budget_come_first_and_damaged_or_failed_ones_do_not_count(tmp_path: Path) -> None:
    entries = [entry(tmp_path, 0), entry(tmp_path, 1), entry(tmp_path, 2, "PRUNED"), entry(tmp_path, 3, "FAIL")]
    assert [one.trial for one in rank_finalists(open_store(tmp_path), entries, Direction.MAX)] == [0, 1, 2]
    assert entries[0].checkpoint is not None
    (tmp_path / entries[0].checkpoint.path / "state.json").write_text("{}")
    assert [one.trial for one in rank_finalists(open_store(tmp_path), entries, Direction.MAX)] == [1, 2]


def play_by_seed(folder: Path, episodes: int, seed: int, progress: Callable[[int, int], None]) -> Evaluation:
    """What chooses is lucky: 100 on the episodes of all sweeps, 60 and once 40 on those of one's own."""
    progress(episodes // 2, episodes)
    worth = 100.0 if seed == EVALUATION_SEED else 60.0
    returns = (worth if seed == EVALUATION_SEED else 40.0, *[worth] * (episodes - 1))
    mean = sum(returns) / episodes
    low, high = mean_interval(returns) or (None, None)
    return Evaluation(returns, (1,) * episodes, mean, 0.0, worth, low, high, min(returns), worth)


def test_the_winner_is_shown_by_episodes_that_did_not_choose_it(tmp_path: Path, lines: list[str]) -> None:
    finals = FinalEvaluation(open_store(tmp_path), top=3, episodes=20, player=make_player(play_by_seed))
    winner = finals.select([entry(tmp_path, number) for number in WORTH], lines.append)
    shown = describe_winner(winner, tmp_path, [])
    assert winner is not None
    assert shown is not None
    assert winner.score == 100, "champions are compared on the same episodes"
    assert shown["evaluation"]["mean"] == 59
    assert shown["evaluation"]["low"] < 59 < shown["evaluation"]["high"] <= 60


def test_a_policys_interval_knows_nothing_of_its_sisters(tmp_path: Path) -> None:
    saved = entry(tmp_path, 0).checkpoint
    assert saved is not None
    runs = [SeedResult(seed, 100.0 - seed, (50.0, 100.0), saved.path) for seed in range(4)]
    diverged = SeedResult(4, -1000.0, (-1000.0,), saved.path)
    judged = judge_configurations([Configuration("trial 0", 0, {}, 9.0, (*runs, diverged))], range(5), 1)
    assert judged is not None
    measured, winner = measure_policies(judged, open_store(tmp_path), 20, Direction.MAX, make_player(play_by_seed))
    assert measured.policy is not None
    assert (winner.score, measured.policy.mean) == (100, 59)
    assert winner.measured is not None
    assert (measured.policy.low, measured.policy.high) == mean_interval(winner.measured.returns), "as evaluate says"


def test_the_policy_of_the_run_with_the_lowest_cost_is_measured(tmp_path: Path) -> None:
    saved = entry(tmp_path, 0).checkpoint
    assert saved is not None
    runs = [SeedResult(seed, 100.0 - seed, (90.0, 200.0), saved.path) for seed in range(4)]
    diverged = SeedResult(4, 9000.0, (9000.0,), saved.path)
    configurations = [Configuration("trial 0", 0, {}, 9.0, (*runs, diverged))]
    judged = judge_configurations(configurations, range(5), 1, Direction.MIN)
    assert judged is not None
    measured, _ = measure_policies(judged, open_store(tmp_path), 20, Direction.MIN, make_player(play_by_seed))
    assert measured.policy is not None
    assert (measured.policy.seed, measured.policy.mean) == (3, 59)


def test_a_certified_winner_stays_it_if_its_process_dies(tmp_path: Path, lines: list[str]) -> None:
    def call(*_: Any, **__: Any) -> Any:
        raise RltuneError("the process ended without an answer")

    saved = entry(tmp_path, 0).checkpoint
    assert saved is not None
    runs = tuple(SeedResult(seed, 100.0 - seed, (90.0,), saved.path) for seed in range(5))
    judged = judge_configurations([Configuration("trial 0", 0, {}, 9.0, runs)], range(5), 1)
    assert judged is not None
    player = make_player(call, notify=lines.append)
    certification, winner = measure_policies(judged, open_store(tmp_path), 20, Direction.MAX, player)
    assert (certification.policy, winner.measured, winner.trial) == (None, None, 0)
    assert any("without an answer" in line for line in lines)


def test_each_sweep_has_episodes_of_its_own() -> None:
    first, again, other = (derive_own_seed(name) for name in ("cartpole-1", "cartpole-1", "cartpole-2"))
    assert first == again != other
    assert EVALUATION_SEED + 1_000_000 < min(first, other) <= max(first, other) < 2**31 - 1_000_000


def test_of_several_seeds_the_first_is_judged_and_it_is_told(tmp_path: Path, lines: list[str], aside: Aside) -> None:
    def fill(folder: Path) -> None:
        for part in ("policy", "seed-1/policy"):
            (folder / part).mkdir(parents=True)

    saved = write_checkpoint(tmp_path, "trials/1", "best", {"env_steps": 100, "objective": 2.0}, fill)
    finals = FinalEvaluation(open_store(tmp_path), top=1, episodes=2, player=make_player(aside))
    finals.select([TrialRecord(1, "COMPLETE", {}, {100: 2.0}, checkpoint=saved)], lines.append)
    assert sum("replicates" in line for line in lines) == 1


def hang(**_: Any) -> None:
    with call_guest("reset of copy 0"):
        time.sleep(600)


def give_up(**_: Any) -> None:
    raise KeyboardInterrupt


def start(player: Player, function: Any) -> Any:
    return player.start(f"{__name__}:{function.__name__}")


def test_an_urgent_end_ends_the_processes() -> None:
    urgent, children = threading.Event(), []

    def start_child() -> Child:
        children.append(Child())
        return children[-1]

    player = Player(1, start_child, is_urgent=urgent.is_set)
    with player.open(1):
        future = start(player, hang)
        threading.Timer(1.0, urgent.set).start()
        with pytest.raises(CallGivenUpError):
            player.finish(future, "playing", "trial 1")
    assert wait([future], 60).done
    assert not psutil.pid_exists(children[0].pid)


@pytest.mark.parametrize(("function", "words"), [(hang, "reset of copy 0"), (give_up, "KeyboardInterrupt")])
def test_whatever_an_evaluation_does_its_end_is_a_note(lines: list[str], function: Any, words: str) -> None:
    player = Player(1, Child, stall_s=2.0, notify=lines.append)
    with player.open(1):
        assert player.finish(start(player, function), "playing", "trial 1") is None
    assert len(lines) == 1
    assert words in lines[0]


@pytest.mark.fast
@pytest.mark.parametrize(("deaths", "worth"), [(1, 5.0), (2, None)])
def test_an_evaluation_whose_process_died_is_tried_again(
    tmp_path: Path, lines: list[str], deaths: int, worth: float | None
) -> None:
    def call(folder: Path, episodes: int, *_: Any) -> Any:
        calls.append(folder)
        if len(calls) <= deaths:
            raise GuestError("the environment's process was killed by SIGSEGV", cause=Cause.LOST_PROCESS)
        return evaluation_of(5.0, episodes)

    calls: list[Path] = []
    player = make_player(call, notify=lines.append, max_retries=1)
    with player.open(2):
        evaluation = player.finish_evaluation(player.start_evaluation(tmp_path, 2), "playing", "trial 1", tmp_path)
    assert (evaluation and evaluation.mean, len(calls)) == (worth, 2)
    assert len(lines) == 1
    assert "SIGSEGV" in lines[0]
    assert (f"policy={tmp_path}" in lines[0]) == (worth is None), "a command that tries again"


@pytest.mark.fast
def test_an_environment_that_raises_is_not_evaluated_again(tmp_path: Path, lines: list[str]) -> None:
    def call(*_: Any) -> Any:
        calls.append(1)
        raise GuestError("step 3 fails")

    calls: list[int] = []
    player = make_player(call, notify=lines.append, max_retries=1)
    with player.open(2):
        assert player.finish_evaluation(player.start_evaluation(tmp_path, 2), "playing", "trial 1") is None
    assert (len(calls), len(lines)) == (1, 1)


def test_finalists_act_by_sampling_where_that_is_better(tmp_path: Path, lines: list[str], aside: Aside) -> None:
    """What is decided is kept before the episodes that choose the winner, which play the policy as it was kept."""
    decision = {"deterministic": False, "episodes": 20, "deterministic_mean": -200.0, "sampled_mean": -12.0, "cut": 0}

    def fill(folder: Path) -> None:
        (folder / "policy").mkdir()
        (folder / "episodes.json").write_text('{"evaluated": 0, "recent": [[90, -9.0, 9, -9.0], [99, -7.0, 7, -7.0]]}')

    def call(folder: Path, *more: Any) -> Any:
        if len(more) == 1:
            assert more == ([-9.0, -7.0],)
            return decision if folder.parent.parent.name == "1" else None
        played.append(folder)
        return play_by_seed(folder, *more)

    def keep(finalist: Finalist, acting: Any) -> Finalist:
        assert acting == decision
        return replace(finalist, folder=tmp_path / "kept")

    played: list[Path] = []
    (tmp_path / "kept" / "policy").mkdir(parents=True)
    (tmp_path / "kept" / "policy" / "policy.json").write_text(json.dumps({"acting": decision}))
    state = {"env_steps": 100, "objective": 2.0}
    saved = write_checkpoint(tmp_path, "trials/1", "best", state, fill)
    trials = [TrialRecord(1, "COMPLETE", {}, {100: 9.0}, checkpoint=saved), entry(tmp_path, 0)]
    winner = FinalEvaluation(open_store(tmp_path), 1, 20, make_player(call), keep=keep).select(trials, lines.append)
    assert winner is not None
    assert played == [tmp_path / "kept"] * 2, "to choose, and to measure"
    assert (describe_winner(winner, tmp_path, []) or {})["acting"] == decision
    assert any("-12" in line and "-200" in line for line in lines)


VALIDATION, TEST = {"kwargs": {"split": "validation"}}, {"kwargs": {"split": "test"}}


class Split:
    """Another process, in which each trial is worth something else on each part of the data."""

    WORTH: ClassVar = {0: (1.0, 30.0), 1: (3.0, 10.0), 2: (2.0, 20.0)}

    def __init__(self) -> None:
        self.played: list[tuple[int, str, int]] = []
        self.acting_envs: list[Any] = []

    def call(self, function: str, arguments: Any, **_: Any) -> Any:
        number = int(re.findall(r"trials/(\d+)", arguments["folder"])[0])
        if function.endswith(":choose_acting"):
            self.acting_envs.append(arguments["env"])
            return None
        part = arguments["env"]["kwargs"]["split"]
        self.played.append((number, part, arguments["seed"]))
        return evaluation_of(self.WORTH[number][part == "test"], arguments["episodes"]).to_dict()


def test_validation_chooses_and_the_test_measures(tmp_path: Path, lines: list[str]) -> None:
    """The champion is compared by the test, too, on the episodes that are the same in every sweep."""
    split = Split()
    player = Player(1, lambda: split)  # type: ignore[arg-type, return-value]
    finals = FinalEvaluation(
        open_store(tmp_path), 3, 20, player, None, choice_env=VALIDATION, reported_env=TEST, scores_are_played=True
    )
    winner = finals.select([entry(tmp_path, number) for number in Split.WORTH], lines.append)
    assert winner is not None
    assert (winner.trial, winner.score, winner.measured and winner.measured.mean) == (1, 10.0, 10.0)
    own = derive_own_seed(tmp_path.name)
    assert sorted(split.played) == [
        (0, "validation", EVALUATION_SEED),
        (1, "test", EVALUATION_SEED),
        (1, "test", own),
        (1, "validation", EVALUATION_SEED),
        (2, "validation", EVALUATION_SEED),
    ]


def test_the_run_that_is_registered_is_chosen_by_validation(tmp_path: Path) -> None:
    split, runs = Split(), []
    for number, choice in ((0, (5.0,)), (1, (8.0,))):
        checkpoint = entry(tmp_path, number).checkpoint
        assert checkpoint
        run = SeedResult(number, 100.0 - number, (), checkpoint.path, RunKey(number), choice_returns=choice)
        runs.append(run)
    best = Configuration("trial 1", 1, {}, None, tuple(runs))
    certification = Certification((0, 1), 1, 100, (best,), "trial 1")
    player = Player(1, lambda: split)  # type: ignore[arg-type, return-value]
    measured, winner = measure_policies(certification, open_store(tmp_path), 5, Direction.MAX, player, TEST)
    assert (winner.run, winner.score) == (RunKey(1), 10.0)
    assert measured.policy
    assert measured.policy.mean == 10.0
    assert {part for _, part, _ in split.played} == {"test"}


def test_of_finalists_at_the_target_the_quickest_wins(tmp_path: Path, lines: list[str]) -> None:
    """One whose reports were lucky, and which is no longer there on fresh episodes, does not."""
    worth = {0: 15.0, 1: 30.0, 2: 20.0}

    def call(folder: Path, episodes: int, seed: int, progress: Any) -> Evaluation:
        return evaluation_of(worth[int(folder.parent.parent.name)], episodes)

    entries = [
        replace(entry(tmp_path, number), reports={steps: 20.0}, stop_reason=TARGET_HELD)
        for number, steps in ((0, 50), (1, 400), (2, 300))
    ]
    finals = FinalEvaluation(open_store(tmp_path), 3, 20, make_player(call), early_end=EarlyEnd(20.0))
    winner = finals.select(entries, lines.append)
    assert winner is not None
    assert (winner.trial, winner.target_steps) == (2, 300)
    assert describe_winner(winner, tmp_path, entries)["target_steps"] == 300  # type: ignore[index]


def test_a_configuration_is_a_finalist_once(tmp_path):
    """field/environments 43: a small space has several trials of one configuration."""
    entries = [replace(entry(tmp_path, number), params={"n": number % 2}) for number in range(4)]
    assert [each.trial for each in rank_finalists(open_store(tmp_path), entries, Direction.MAX)] == [2, 1]
