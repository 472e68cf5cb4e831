"""All seeds of a sweep follow from its own, for as long as sweeps are resumed."""

from __future__ import annotations

from rltune.search.seeds import derive_certification_seeds, derive_sampler_seed, derive_trial_seeds


def test_seeds_stay_what_they_were():
    """A resumed sweep goes on with the seeds that it began with, whatever the version."""
    assert derive_trial_seeds(3, 5, 3) == [1598521061, 132332190, 826849902]
    assert derive_sampler_seed(3, 5) == 3759185310
    assert derive_certification_seeds(3, 3, set()) == [783495042, 1898429784, 1624346082]


def test_more_replicates_keep_the_seeds_of_fewer():
    assert derive_trial_seeds(0, 4, 3)[:1] == derive_trial_seeds(0, 4, 1)


def test_seeds_fit_into_every_library():
    seeds = [seed for number in range(200) for seed in derive_trial_seeds(2**32 - 1, number, 2)]
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) == 400


def test_certification_trains_with_no_seed_twice(monkeypatch):
    monkeypatch.setattr("rltune.search.seeds._draw", lambda entropy, count: [7, 7, 8, 9][:count])
    assert derive_certification_seeds(1, 2, {5, 6}) == [7, 8]


def test_certification_draws_no_seed_of_a_trial():
    plain = derive_certification_seeds(1, 5, set())
    assert derive_certification_seeds(1, 3, set()) == plain[:3], "more seeds keep the first"
    assert derive_certification_seeds(1, 3, {plain[0], plain[2]}) == [plain[1], plain[3], plain[4]]
    assert derive_certification_seeds(1, 0, {1, 2}) == []
