"""Whether a winner becomes the champion: only where it is better on the same episodes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from real import Project

from rltune.certification.champion import (
    Candidate,
    _compare,
    _make_description,
    _make_tags,
    _open_model,
    _rank,
    _set_searched,
    register_champion,
)
from rltune.certification.finalists import EVALUATION_SEED, Finalist
from rltune.certification.result import Certification, CertifiedPolicy, Configuration, SeedResult, judge_configurations
from rltune.certification.selection import Player
from rltune.config.schema import EnvConfig, ObjectiveConfig, RewardsConfig
from rltune.envs.spec import EnvSpec, specify_env
from rltune.formatting import format_objective
from rltune.policies.evaluation import evaluate
from rltune.policies.policy import load_policy
from rltune.policies.result import Evaluation
from rltune.records import RunKey
from rltune.tracking.model_registry import ModelRegistry, RegisteredModel
from tests.support.own_encoders import write_untrained

ENV = EnvConfig("cartpole", "CartPole-v1")
NUM_EPISODES = 100
NO_REGISTRY = ModelRegistry("no://registry")


def candidate(score: float, certified: bool = True, folder: Path = Path(), run: RunKey | None = None) -> Candidate:
    certification = Certification((), NUM_EPISODES, 1000, (), "trial 1") if certified else None
    evaluation = Evaluation((score,), (1,), score, 0.0, score, None, None, score, score)
    winner = Finalist("trial 1", 1, {}, score, folder, run or RunKey(1), evaluation)
    return Candidate(
        winner, certification, "a-sweep", "cartpole", "ppo", specify_env(ENV, ObjectiveConfig()), NUM_EPISODES, ""
    )


def champion(score: float, **tags: str) -> RegisteredModel:
    challenger = candidate(0)
    known = {"rltune.score": repr(score), "rltune.episodes": challenger.episodes, "rltune.certified": "true"}
    known["rltune.env_digest"] = challenger.env.digest
    return RegisteredModel("cartpole-ppo", "4", "models:/cartpole-ppo/4", {**known, **tags})


@pytest.mark.parametrize(("ours", "theirs", "moved"), [(480.0, 450.0, True), (450.0, 480.0, False), (5.0, 5.0, False)])
def test_the_alias_moves_only_to_a_better_score_and_says_why(ours: float, theirs: float, moved: bool) -> None:
    better, why = _compare(candidate(ours), champion(theirs), NO_REGISTRY, Player())
    assert better is moved
    assert "version 4" in why
    assert "CartPole-v1" in why


def test_of_costs_the_lower_one_becomes_the_champion() -> None:
    challenger = replace(candidate(20.0), env=specify_env(ENV, ObjectiveConfig(direction="min")))
    tags = {"rltune.env_digest": challenger.env.digest}
    assert _compare(challenger, champion(30.0, **tags), NO_REGISTRY, Player())[0]
    assert not _compare(challenger, champion(10.0, **tags), NO_REGISTRY, Player())[0]
    assert _make_tags(replace(challenger, certification=None))["rltune.score"] == "20.0"
    versions = [champion(score, **tags) for score in (30.0, 10.0, 20.0)]
    best = max(versions, key=partial(_rank, challenger))
    assert best.tags["rltune.score"] == "10.0"


def test_a_champion_is_named_with_the_sweep_that_it_won() -> None:
    _, why = _compare(candidate(500.0), champion(450.0, **{"rltune.sweep": "first"}), NO_REGISTRY, Player())
    for part in ("500", "450", "version 4", "sweep first", "100 episodes"):
        assert part in why


def test_the_first_version_becomes_the_champion() -> None:
    assert _compare(candidate(1.0), None, NO_REGISTRY, Player())[0]


def test_a_score_of_the_search_is_compared_with_no_champion() -> None:
    challenger = candidate(500.0)
    challenger = replace(challenger, winner=replace(challenger.winner, evaluation=None))
    assert _compare(challenger, champion(10.0), NO_REGISTRY, Player())[0] is False
    assert _compare(challenger, None, NO_REGISTRY, Player())[0] is True
    assert not {"rltune.score", "rltune.episodes"} & set(_make_tags(challenger))


def test_what_was_not_certified_does_not_replace_what_was() -> None:
    better, why = _compare(candidate(500.0, certified=False), champion(10.0), NO_REGISTRY, Player())
    assert not better
    assert "version 4" in why
    assert "500" not in why, "scores do not decide here"


@pytest.mark.parametrize("changed", [{"kwargs": {"sutton_barto_reward": True}}, {"wrappers": [{"entry_point": "a:B"}]}])
def test_champions_of_other_environments_stay_and_are_told(changed: dict[str, Any]) -> None:
    challenger = candidate(500.0)
    other = replace(challenger, env=specify_env(replace(ENV, **changed), ObjectiveConfig()))
    known = champion(10.0, **{key: _make_tags(challenger)[key] for key in ("rltune.env", "rltune.env_digest")})
    assert _compare(challenger, known, NO_REGISTRY, Player())[0]
    better, why = _compare(other, known, NO_REGISTRY, Player())
    assert not better
    assert {"CartPole-v1", "env.id", "env.kwargs", "env.wrappers"} <= set(re.findall(r"[\w.-]+", why))
    assert "env.name=cartpole-2" in why


def test_champions_of_another_objective_are_not_beaten_by_it() -> None:
    challenger = candidate(500.0)
    known = champion(10.0, **{key: _make_tags(challenger)[key] for key in ("rltune.env", "rltune.env_digest")})
    other = replace(challenger, env=specify_env(ENV, ObjectiveConfig("info", "is_success")))
    better, why = _compare(other, known, NO_REGISTRY, Player())
    assert not better
    assert "env.name=cartpole-2" in why


def test_how_rewards_are_shaped_makes_no_other_environment() -> None:
    shaped = replace(ENV, rewards=RewardsConfig(scale=0.1))
    assert specify_env(shaped, ObjectiveConfig()).digest == candidate(1.0).env.digest


def test_a_version_tells_its_mean_on_episodes_of_its_own() -> None:
    score, own = (
        Evaluation((mean,) * 3, (1,) * 3, mean, 0.0, mean, 440.0, 490.0, mean, mean) for mean in (499.0, 470.0)
    )
    measured = replace(candidate(0.0), certification=None)
    measured = replace(measured, winner=replace(measured.winner, evaluation=score, measured=own))
    text = _make_description(measured, "it is the first")
    assert {"470", "440", "490"} <= set(re.findall(r"\d+", text))
    assert "499" not in text, "the score by which it was chosen"
    tags = _make_tags(measured)
    assert (tags["rltune.score"], tags["rltune.mean"]) == ("499.0", "470.0")
    assert tags["rltune.policy_interval"] == "440 to 490"


def test_a_score_of_an_unnamed_environment_is_not_compared() -> None:
    known = champion(10.0)
    unnamed = replace(known, tags={key: value for key, value in known.tags.items() if key != "rltune.env_digest"})
    better, why = _compare(candidate(500.0), unnamed, NO_REGISTRY, Player())
    assert not better
    assert "version 4" in why
    assert "500" not in why, "scores are not compared"


def test_a_score_on_other_episodes_is_not_compared() -> None:
    better, why = _compare(candidate(500.0), champion(10.0, **{"rltune.episodes": "7 others"}), NO_REGISTRY, Player())
    assert not better
    assert "version 4" in why
    assert "500" not in why, "scores are not compared"


def test_a_champion_measured_on_other_episodes_plays_those_of_its_challenger(finished_sweep: Project) -> None:
    registry = ModelRegistry(finished_sweep.store)
    known, _ = registry.look_up("cartpole-ppo", "champion")
    assert known is not None
    before = replace(known, tags={**known.tags, "rltune.episodes": "7 others", "rltune.score": "1e9"})
    policy = load_policy(str(finished_sweep.sweep / finished_sweep.summary["winner"]["checkpoint"]))
    score = evaluate(policy, NUM_EPISODES, EVALUATION_SEED).mean
    for ours, moved in ((score + 1.0, True), (score, False)):
        better, why = _compare(candidate(ours), before, registry, Player())
        assert better is moved
        assert f"the {format_objective(score)} of version {known.version}" in why


def test_a_version_tells_the_failed_seeds_of_its_certification() -> None:
    whole = tuple(SeedResult(seed, 320.0, (319.0,)) for seed in range(5))
    baseline = Configuration("baseline", 0, {}, None, whole)
    certification = judge_configurations(
        [baseline, Configuration("trial 1", 1, {"lr": 1.0}, None, whole[:1], (1, 2, 3, 4))], range(5), 1
    )
    assert certification is not None
    policy = CertifiedPolicy("baseline", 0, "certify/0/best-1", 100, 320.0, 310.0, 330.0)
    certified = replace(candidate(320.0), certification=replace(certification, policy=policy))
    text = _make_description(certified, "it is the first")
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "| trial" in line]
    assert [row[0] for row in table] == ["trial 0 = baseline", "trial 1"]
    assert [[row[1], *row[4:7]] for row in table] == [
        ["320", "-", "-", "0 of 5, up to 45%"],
        ["319", "0 of 5, 1 tie, 5 needed", "-0.8", "4 of 5, up to 99%"],
    ]
    assert _make_tags(certified)["rltune.failed_seeds"] == "0 of 5"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "has_graph"), [("Attention", True), ("Branching", False)])
def test_the_model_of_an_own_encoder_has_a_graph_if_it_can(tmp_path: Path, name: str, has_graph: bool) -> None:
    lines: list[str] = []
    write_untrained(tmp_path, name=name)
    before = sorted(tmp_path.iterdir())
    with _open_model(tmp_path, Player(notify=lines.append)) as files:
        assert ("network.onnx" in {path.name for path in files.iterdir()}) is has_graph
        assert (files / "weights.npz").read_bytes() == (tmp_path / "weights.npz").read_bytes()
    assert sorted(tmp_path.iterdir()) == before
    assert ["ONNX cannot express" in line for line in lines] == ([] if has_graph else [True])


def test_a_champion_that_a_resume_registers_again_is_still_called_one(tmp_path: Path, monkeypatch: Any) -> None:
    class Remembers(ModelRegistry):
        def look_up(self, name: str, alias: str) -> tuple[RegisteredModel, int]:
            return champion(450.0), 4

        def register(self, **given: Any) -> RegisteredModel:
            assert (given["run_id"], given["newest"]) == ("trial-001-seed-3", 4), "the run that trained it"
            return champion(450.0)

    (tmp_path / "policy").mkdir()
    monkeypatch.setattr("rltune.policies.mlflow_model.make_model_arguments", lambda *_: {})
    monkeypatch.setattr("rltune.certification.champion._describe_training", lambda _: {})
    winner = candidate(450.0, False, tmp_path, RunKey(1, 2))
    model = register_champion(winner, Remembers("no://registry"), lambda key: key.name, print, Player())
    assert model is not None
    assert (model["champion"], model["uri"]) == (True, champion(450.0).uri)
    assert model["why"] == "as before"


OURS = EnvSpec("knobs:Knobs-v0", {"repeat": 1, "split": "test"}, max_copies=3)


@pytest.mark.parametrize(
    "searched",
    [{"wrappers.TimeLimit.kwargs.x": 1}, {"kwargs.repeat": "${oc.env:SECRET}"}, {"id": "os:Knobs-v0"}, ["kwargs"], 3],
)
def test_a_champion_names_nothing_that_its_comparison_runs(searched: Any) -> None:
    env = _set_searched(OURS, searched)
    assert env is None or env == OURS


def test_a_champion_with_other_arguments_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of the same environment, as its tag says, but was scored on another number of episodes."""
    challenger = replace(candidate(6.0), env=OURS)
    tags = {"rltune.env_digest": OURS.digest, "rltune.episodes": "7 others"}

    class Files(ModelRegistry):
        def fetch(self, model: RegisteredModel, folder: Path) -> Path:
            return folder

    class Plays(Player):
        def start(self, function: str, **arguments: Any) -> Any:
            self.env = arguments["env"]

        def finish_evaluation(self, *_: Any) -> Evaluation:
            return Evaluation((5.0,), (1,), 5.0, 0.0, 5.0, None, None, 5.0, 5.0)

    trained = replace(OURS, kwargs={"repeat": 4, "split": "train"}).to_dict()
    info = {"env": trained, "searched": {"kwargs.repeat": 4}}
    monkeypatch.setattr("rltune.policies.policy.load_policy", lambda _: SimpleNamespace(info=info))
    player = Plays()
    assert _compare(challenger, champion(5.0, **tags), Files("no://registry"), player)[0]
    assert player.env["kwargs"] == {"repeat": 4, "split": "test"}
