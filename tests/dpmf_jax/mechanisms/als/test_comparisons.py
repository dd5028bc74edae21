"""What a fit per user is measured beside: no release, means for the same price, and no noise."""

import dataclasses

import jax
import numpy as np
import pytest

import accounting
from dpmf_jax import layout
from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms import table
from dpmf_jax.noise import keys
from dpmf_jax.training import fit as fitting
from dpmf_jax.training import measure
from experiments.fit import mechanisms as fit_mechanisms

pytestmark = pytest.mark.usefixtures("quick_compilation")

RATINGS = synthetic.generate(num_users=150, num_items=40, num_ratings=2_400, rank=2, seed=0)


def chosen(name, **flags):
    """(phases, what they are compared with)."""
    flags = fit_mechanisms.flags(name, **flags)
    phases, settings = fit_mechanisms.phases_and_settings(name, flags, RATINGS)
    return phases, table()[name].comparisons(settings, None)


def predictions(phases, of=RATINGS):
    model = measure.trained(
        phases, tuple(keys.from_seed(n) for n in (0, 1)), layout.make(of, num_devices=1), of
    )
    return model.user_factors @ model.item_factors.T + model.center


def test_where_nothing_is_released_a_users_predictions_are_made_of_that_users_ratings_alone():
    _, compared = chosen("means")
    phases, covered = compared["nothing_released"]
    assert covered
    mine = RATINGS.user < 10
    others = dataclasses.replace(RATINGS, value=np.where(mine, RATINGS.value, 1.0))
    before, after = predictions(phases), predictions(phases, others)
    np.testing.assert_array_equal(before[:10], after[:10])
    assert np.abs(before[10:] - after[10:]).max() > 0.1
    assert np.ptp(before, axis=1).max() == 0  # of items it knows nothing


def test_means_beside_factors_have_the_same_price():
    phases, compared = chosen("als", epsilon=2.0, rank=2, steps=2, change="replace")
    beside, covered = compared["means_same_price"]
    assert covered
    paid = [
        accounting.compose(*(made.guarantee(num) for made, num in one)) for one in (phases, beside)
    ]
    assert {one.relation for one in paid} == {paid[0].relation}
    exact = [one.accountants["exact"] for one in paid]
    assert exact == pytest.approx([2.0, 2.0], abs=1e-3)
    assert "item factors" in paid[0].released
    assert "item factors" not in paid[1].released


def test_what_means_are_compared_with_has_no_means_twice():
    assert list(chosen("means")[1]) == ["nothing_released", "als_without_noise"]
    for name in ("als", "als-federated"):
        compared = chosen(name, rank=2)[1]
        assert compared.keys() == {"nothing_released", "means_same_price", "als_without_noise"}
        quiet, _ = compared["als_without_noise"]
        clips = [float(made.query.args[0].message_clip) for made, _ in quiet]
        assert clips == pytest.approx([1.0, 3.2, 1.6, 3.2])  # counts are bounded as they are


@pytest.mark.seconds
def test_without_noise_the_same_program_fits_better():
    """ε = 0.3 for 150 users: noise hides the factors, and its own control finds them."""
    phases, compared = chosen("als", epsilon=0.3, rank=2, steps=4)
    quiet, covered = compared["als_without_noise"]
    assert not covered
    for (one, _), (other, _) in zip(phases, quiet, strict=True):
        assert jax.tree.structure(one) == jax.tree.structure(other)  # so it is compiled once
        assert [*map(np.shape, jax.tree.leaves(one))] == [*map(np.shape, jax.tree.leaves(other))]
    seen = predictions(phases), predictions(quiet)
    errors = [RATINGS.value - found[RATINGS.user, RATINGS.item] for found in seen]
    noisy, exact = (float(np.sqrt(np.mean(error**2))) for error in errors)
    assert exact < 0.85 * noisy
    again = predictions(quiet)
    np.testing.assert_array_equal(again, seen[1])


@pytest.mark.seconds
def test_a_fit_measures_them_and_keeps_none():
    phases, compared = chosen("means", epsilon=2.0)
    *earlier, (mechanism, steps) = phases
    with_them, alone = (
        fitting.fit(
            RATINGS,
            mechanism,
            num_steps=steps,
            earlier=earlier,
            seed=0,
            controls=("global_mean",),
            compare=more,
            num_devices=1,
        )
        for more in (compared, {})
    )
    assert list(with_them.metrics["controls"]) == ["global_mean", *compared]
    assert [one["private"] for one in with_them.metrics["controls"].values()] == [
        *(False, True, False)
    ]
    for one, other in zip(with_them.release, alone.release, strict=True):
        np.testing.assert_array_equal(one, other)
    assert with_them.guarantee == alone.guarantee
