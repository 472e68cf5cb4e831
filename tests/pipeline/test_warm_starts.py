"""What a search tries first, what is left out of it, and when ranges are widened."""

from __future__ import annotations

import pytest
from composing import compose

from rltune.config.validation import parse_config
from rltune.errors import ConfigError
from rltune.pipeline.plan import make_plan

SAFE = ("tracking=off",)


def test_a_persons_warm_starts_come_first_and_the_tuned_settings_after_them(make):
    (tuned,) = make().warm_starts
    assert (tuned["lr"], tuned["num_epochs"], tuned["train_batch_size_per_learner"]) == (1e-3, 20, 256)
    assert set(tuned) == {dimension.name for dimension in make().space.dimensions}
    given, after = make(warm_start=[{"lr": 2e-3}]).warm_starts
    assert given == {"lr": 2e-3}
    assert after == tuned


def test_without_anything_to_search_there_is_nothing_to_warm_start(make):
    assert make(space={"lr": 3e-4}, warm_start=[]).warm_starts == ()


def test_a_warm_start_of_what_is_not_searched_is_left_out_with_a_note(make):
    made = make(warm_start=[{"lr": 1e-3, "vf_loss_coeff": 0.7}])
    assert made.warm_starts[0] == {"lr": 1e-3}
    assert any("vf_loss_coeff" in note for note in made.notes)


def test_a_warm_start_outside_its_range_is_said_and_not_dropped_in_silence(make):
    made = make(warm_start=[{"lr": 5.0, "num_epochs": 10}])
    assert any("lr=5.0" in note for note in made.notes)
    assert not any("num_epochs" in note for note in made.notes)


def test_a_warm_start_at_the_end_of_a_range_is_within_it(make):
    made = make(warm_start=[{"gamma": 0.95, "lambda_": 0.99, "minibatch_size": 64}])
    assert made.notes == ()
    assert made.space.encode(made.warm_starts[0]).keys() == {"1-gamma", "lambda_", "log2(minibatch_size)"}


def test_tuned_settings_widen_our_ranges_and_none_of_ones_own(make, tmp_path_factory):
    assert make().config.space["entropy_coeff"] == ["loguniform", 1e-8, 0.02]
    own = tmp_path_factory.mktemp("conf")
    (own / "space").mkdir()
    (own / "space" / "mine.yaml").write_text("lr: [loguniform, 1e-4, 1e-2]\nentropy_coeff: [uniform, 0.001, 0.1]\n")
    settings = compose("run", *SAFE, "space=mine", f"hydra.searchpath=[{own}]")
    made = make_plan(parse_config(settings))
    assert made.config.space == {"lr": ["loguniform", 1e-4, 1e-2], "entropy_coeff": ["uniform", 0.001, 0.1]}
    assert made.notes == (
        "the algorithm's own values, which are tried early: "
        "entropy_coeff=1e-08 lies outside [uniform, 0.001, 0.1], so it is drawn instead",
    )
    typed = make(space={"entropy_coeff": ["loguniform", 1e-4, 1e-2]})
    assert typed.config.space == {"entropy_coeff": ["loguniform", 1e-4, 1e-2]}, "nor one of the command line"


def test_a_wider_range_that_names_no_range_to_widen_is_refused(make):
    with pytest.raises(ConfigError, match=r"^wider.lr=.* is no pair"):
        make(wider={"lr": ["loguniform", 1e-5, 0.1]})


def test_a_warm_start_of_an_unknown_name_is_refused_with_the_nearest(make):
    with pytest.raises(ConfigError) as refused:
        make(warm_start=[{"lr": 1e-3}, {"lrr": 1e-3}])
    assert refused.value.what.startswith("warm_start[1].lrr")
    assert "'lr'" in refused.value.allowed


def test_a_warm_start_that_is_no_mapping_is_refused(make):
    with pytest.raises(ConfigError, match=r"warm_start\[0\]=0.001 is no mapping"):
        make(warm_start=[1e-3])
