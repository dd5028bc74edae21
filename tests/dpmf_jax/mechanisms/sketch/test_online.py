"""Online factorisation as a mechanism: plain SGD in NumPy, thresholds, means, neighbours, and what
is promised.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import audits
import dpmf_jax
from dpmf_jax import layout, protocol
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import ordered
from dpmf_jax.mechanisms.sketch import means as preprocessing
from dpmf_jax.mechanisms.sketch import online
from dpmf_jax.mechanisms.sketch import published as sketch
from dpmf_jax.models import metrics
from dpmf_jax.noise import keys
from tests.cases.audits import STRUCTURAL
from tests.cases.online import (
    ITEMS,
    ORDER,
    RATINGS,
    USERS,
    begun,
    config,
    leaves_equal,
    means_oracle,
    schedule,
    sgd_oracle,
    split_data,
    trained,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


def factors_of(state):
    return np.asarray(state.public.users), np.asarray(state.public.items)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("settings", "largest"),
    [
        ({}, np.inf),
        ({"decay": 3.0, "preprocess": False, "center": 3.0}, np.inf),
        ({"threshold": 2.0, "regularization": 0.0}, 2.0),
        ({"threshold": 2.0, "convention": "3.2"}, 4.0),
    ],
)
def test_epochs_are_those_of_plain_sgd(settings, largest):
    """Batches of one, batches without conflicts, both layouts."""
    made = config(**settings)
    for kind, size in (("split", 1), ("split", 8), ("dense", 8)):
        mechanism = online.regular(made, schedule(size, kind))
        data = layout.make(RATINGS, kind=kind, num_devices=1)
        state, info = trained(mechanism, 4, data)
        users, items, losses, skipped = sgd_oracle(
            factors_of(begun(mechanism, data)), made, 4, largest=largest
        )
        np.testing.assert_allclose(state.public.users, users, atol=2e-5)
        np.testing.assert_allclose(state.public.items, items, atol=2e-5)
        np.testing.assert_allclose(info.loss, losses, rtol=1e-4)
        np.testing.assert_allclose(info.clipped_fraction, skipped, atol=1e-6)
        assert (skipped.max() > 0.1) == (largest < np.inf)


@pytest.mark.seconds
@pytest.mark.parametrize("size", [7, 1000])
def test_mini_batches_sum_their_updates_and_are_another_result(size):
    made = config(decay=1.0)
    mechanism = online.mini_batch(made, schedule(), size=size)
    state, info = trained(mechanism, 3)
    users, items, losses, _ = sgd_oracle(factors_of(begun(mechanism)), made, 3, size=size)
    np.testing.assert_allclose(state.public.users, users, atol=2e-5)
    np.testing.assert_allclose(state.public.items, items, atol=2e-5)
    np.testing.assert_allclose(info.loss, losses, rtol=1e-4)
    exact, _ = trained(online.regular(made, schedule()), 3)
    assert np.abs(exact.public.users - state.public.users).max() > 1e-3


@pytest.mark.seconds
def test_a_mini_batch_of_one_is_exact():
    one, exact = (
        trained(m, 2)[0]
        for m in (
            online.mini_batch(config(), schedule(8), size=1),
            online.regular(config(), schedule(8)),
        )
    )
    np.testing.assert_allclose(one.public.users, exact.public.users, atol=1e-6)


@pytest.mark.seconds
def test_a_threshold_of_zero_moves_nothing_and_an_infinite_one_is_none():
    for factory in (online.regular, online.mini_batch):
        frozen = factory(config(threshold=0.0), schedule())
        state, info = trained(frozen, 2)
        assert leaves_equal(factors_of(state), factors_of(begun(frozen)))
        np.testing.assert_array_equal(info.clipped_fraction, 1)
        without, infinite = (
            trained(factory(config(threshold=t), schedule()), 2)[0] for t in (None, np.inf)
        )
        assert leaves_equal(without, infinite)


def test_the_conventions_differ_by_a_factor_of_two():
    of_error, of_loss = (
        trained(online.regular(config(threshold=t, convention=c), schedule()), 2)[0]
        for t, c in ((3.0, "4.3"), (1.5, "3.2"))
    )
    assert leaves_equal(of_error, of_loss)


def test_chunks_equal_the_whole():
    mechanism = online.regular(config(decay=2.0), schedule())
    whole, _ = trained(mechanism, 3)
    first, _ = trained(mechanism, 1)
    assert leaves_equal(whole, trained(mechanism, 2, state=first)[0])


def test_neighbours_run_in_the_same_program_and_are_seen():
    """A removed rating, another value, a removed user: each as if the data had been so from the
    start.
    """
    made, data = config(), split_data()
    mechanism = online.regular(made, schedule())
    place = layout.locate(data, RATINGS.user[5], RATINGS.item[5])
    changed = dataclasses.replace(RATINGS, value=RATINGS.value.copy())
    changed.value[5] = 1.0 if RATINGS.value[5] > 3 else 5.0
    others = np.flatnonzero(RATINGS.user != RATINGS.user[5])
    worlds = (
        (layout.remove_rating(data, place), RATINGS, np.delete(np.arange(len(RATINGS)), 5)),
        (layout.replace_value(data, place, changed.value[5]), changed, np.arange(len(RATINGS))),
        (layout.remove_user(data, int(RATINGS.user[5])), RATINGS, others),
    )
    trained(mechanism, 2, data)
    programs = protocol.train._cache_size()
    for world, ratings, kept in worlds:
        state, info = trained(mechanism, 2, world)
        rest = ratings.take(kept)
        order = np.argsort(np.argsort(ORDER)[kept])
        users, items, losses, _ = sgd_oracle(
            factors_of(begun(mechanism)), made, 2, ratings=rest, order=order
        )
        np.testing.assert_allclose(state.public.users, users, atol=2e-5)
        np.testing.assert_allclose(state.public.items, items, atol=2e-5)
        np.testing.assert_allclose(info.loss, losses, rtol=1e-4)
    assert protocol.train._cache_size() == programs


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["split", "dense"])
@pytest.mark.parametrize("factory", [online.regular, sketch.mechanism])
def test_without_a_schedule_the_coins_of_an_epoch_draw_its_order(factory, kind):
    """The same epochs as with schedules in these orders; a neighbour, in the same program, has the
    same order.
    """
    made, data = config(decay=2.0), layout.make(RATINGS, kind=kind, num_devices=1)
    mechanism = factory(made)
    coins = [
        jax.random.split(jax.random.fold_in(keys.from_seed(1), epoch))[0] for epoch in range(2)
    ]
    orders = [ordered.shuffled(data, key) for key in coins]
    first, second = (np.asarray(order.slot).ravel() for order in orders)
    assert (first != second).any()
    np.testing.assert_array_equal(np.sort(first), np.sort(second))
    programs = None
    for world in (
        data,
        layout.remove_rating(data, layout.locate(data, RATINGS.user[5], RATINGS.item[5])),
    ):
        expected = begun(mechanism, world)
        for order in orders:
            expected, _ = trained(factory(made, order), 1, world, expected)
        found, info = trained(mechanism, 2, world)
        programs = programs or protocol.train._cache_size()
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
        assert float(info.loss[1]) < float(info.loss[0])
        assert leaves_equal(found, trained(mechanism, 2, world)[0])
    assert protocol.train._cache_size() == programs


def test_a_sweep_over_numbers_compiles_once():
    trained(online.regular(config(), schedule()), 1)
    programs = protocol.train._cache_size()
    numbers = {
        "learning_rate": 0.01,
        "decay": 1.0,
        "num_epochs": 9,
        "regularization": 0.0,
        "threshold": 4.0,
    }
    trained(online.regular(config(**numbers, initial_scale=1.0), schedule()), 1)
    assert protocol.train._cache_size() == programs


@pytest.mark.seconds
def test_means_are_those_of_numpy_and_see_neighbours():
    for kind in ("split", "dense"):
        data = layout.make(RATINGS, kind=kind, num_devices=1)
        gone = layout.remove_rating(data, layout.locate(data, RATINGS.user[0], RATINGS.item[0]))
        for world, ratings in ((data, RATINGS), (gone, RATINGS.take(np.arange(1, len(RATINGS))))):
            for found, expected in zip(
                jax.jit(preprocessing.means)(world), means_oracle(ratings), strict=True
            ):
                np.testing.assert_allclose(found, expected, atol=1e-6)
    assert float(jnp.abs(preprocessing.means(data).user[-1])) == 0


def test_factors_carry_the_means():
    """Predictions from the state's factors are means plus products; with a constant they have no
    further column.
    """
    for settings in ({"preprocess": True}, {"preprocess": False, "center": 2.5}):
        state, _ = trained(online.regular(config(**settings), schedule()), 2)
        overall, user, item = means_oracle(RATINGS)
        products = np.asarray(state.public.users) @ np.asarray(state.public.items).T
        expected = products + (overall + user[:, None] + item if settings["preprocess"] else 2.5)
        everyone, everything = (part.ravel() for part in np.indices((USERS, ITEMS)))
        found = metrics.predict(protocol.factors(state), everyone, everything)
        np.testing.assert_allclose(found, expected.ravel(), atol=1e-5)
        assert protocol.factors(state).user_factors.shape == (USERS, 3 + settings["preprocess"])


def test_the_guarantee_says_none_in_plain_words():
    for factory, name in (
        (online.regular, "online-regular"),
        (online.mini_batch, "online-mini-batch"),
    ):
        plain = factory(config(), schedule()).guarantee(4)
        assert (plain.status, plain.mechanism, plain.steps, plain.epsilon) == (
            "none",
            name,
            4,
            np.inf,
        )
        said = str(factory(config(threshold=4.0), schedule()).guarantee(4))
        assert "ε here is a threshold of the loss (here 4), not a privacy parameter" in " ".join(
            said.split()
        )
    state, _ = trained(online.regular(config(), schedule()), 1)
    assert all(part is None for part in online.regular(config(), schedule()).release(state))


@pytest.mark.seconds
@pytest.mark.parametrize("order", [schedule(), None])
def test_audits_of_it_behave(order):
    found = audits.audit(
        online.regular(config(threshold=4.0), order),
        RATINGS,
        key=keys.from_seed(0),
        num_steps=2,
        only=STRUCTURAL,
        quick=True,
        num_neighbours=4,
        layout_kind="split",
    )
    verdicts = {finding.audit: finding.verdict for finding in found}
    for name in ("init", "post-processing", "release", "density: log_ratio"):
        assert verdicts.pop(name) == "consistent"
    assert set(verdicts.values()) == {"not applicable"}


def test_it_is_fitted_as_any_mechanism():
    model = dpmf_jax.fit(
        RATINGS, online.regular(config(), schedule()), num_steps=4, seed=0, layout_kind="split"
    )
    assert model.guarantee.status == "none"
    assert model.metrics["rmse_train"] < np.std(RATINGS.value)


def test_what_makes_no_sense_is_refused():
    for settings, message in (
        ({"rank": 0}, "rank must be an integer of at least 1"),
        ({"num_epochs": 0}, "num_epochs must be an integer of at least 1"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive"),
        ({"gain": np.inf}, "gain must be positive"),
        ({"decay": -1.0}, "decay must be at least 0"),
        ({"regularization": -0.1}, "regularization must be at least 0"),
        ({"threshold": float("nan")}, "threshold must be at least 0"),
        ({"center": np.inf}, "center must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            config(**settings)
    with pytest.raises(UsageError, match="same user twice"):
        online.regular(config(), online.mini_batches(schedule(), 100))
    with pytest.raises(UsageError, match="batches of 0"):
        online.mini_batch(config(), schedule(), size=0)
    several = dataclasses.replace(split_data(), num_devices=2)
    with pytest.raises(UsageError, match="2 devices"):
        trained(
            online.regular(config(), schedule()),
            1,
            several,
            begun(online.regular(config(), schedule())),
        )


def test_schedules_with_conflicts_keep_order_and_padding_apart():
    cut = online.mini_batches(schedule(16), 50)
    assert cut.used.sum() == len(RATINGS)
    assert cut.used.shape == (3, 50)
    flat = schedule(16)
    for part, of_cut in zip(flat[:3], cut[:3], strict=True):
        np.testing.assert_array_equal(of_cut[cut.used], np.asarray(part)[flat.used])
    _, present = ordered.values_at(split_data(), *cut[:3])
    assert present[cut.used].all()
