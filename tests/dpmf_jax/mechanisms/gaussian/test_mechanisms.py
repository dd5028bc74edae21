"""Laws of the Gaussian mechanisms: textbook steps, what changes nothing, and what is priced."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpmf_jax import layout, protocol
from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels import whole_descent
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Release
from tests.cases.gaussian import CONFIG, FACTORIES, ITEMS, RANK, RATINGS, SWEEP, USERS, same, start

pytestmark = pytest.mark.usefixtures("quick_compilation")  # most of the time goes into compiling


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, kind="dense")


# --- the textbook step, dense, in NumPy, from paper 001's equations (4) and (5)


def textbook(users, items, center, config, dense, mask, num_steps, *, move_items=True):
    """`num_steps` of gradient descent without noise, float64; returns the factors and the loss
    before each step.
    """
    users, items, losses = users.astype(np.float64), items.astype(np.float64), []
    bound = math.inf if config.residual_clip is None else config.residual_clip
    for _ in range(num_steps):
        residual = mask * (dense - center - users @ items.T)
        losses.append(np.sum(residual**2) / mask.sum())
        entering = np.clip(residual, -bound, bound)
        clipped = [
            f / np.maximum(1, np.linalg.norm(f, axis=1, keepdims=True) / config.clip_norm)
            for f in (users, items)
        ]
        user_gradient = -entering @ clipped[1] + config.regularization * users
        item_gradient = -entering.T @ clipped[0] + config.regularization * items
        users = users - config.learning_rate * user_gradient
        items = items - config.learning_rate * item_gradient if move_items else items
    return users, items, np.array(losses)


def matrices():
    dense, mask = np.zeros((USERS, ITEMS)), np.zeros((USERS, ITEMS))
    dense[RATINGS.user, RATINGS.item] = RATINGS.value
    mask[RATINGS.user, RATINGS.item] = 1
    return dense, mask


def center_of(name, dense, mask):
    overall = dense.sum() / mask.sum()
    count = mask.sum(axis=0)
    by_item = np.where(count > 0, dense.sum(axis=0) / np.maximum(count, 1), overall)
    return {"item": by_item, "global": overall}.get(name, name)


@pytest.mark.parametrize("clip_norm", [0.4, 2.0], ids=["clip active", "clip inactive"])
@pytest.mark.parametrize(
    ("name", "center", "residual_clip"),
    [
        ("published", "item", None),
        ("published", "global", None),
        ("published", 2.5, None),
        ("joint", 3.0, None),
        ("joint", 2.5, 0.7),
        ("public items", 3.0, None),
        ("public items", 3.0, 0.7),
    ],
)
def test_zero_noise_equals_the_textbook_step(name, center, residual_clip, clip_norm, data, key):
    config = dataclasses.replace(
        CONFIG, center=center, residual_clip=residual_clip, clip_norm=clip_norm
    )
    mechanism = FACTORIES[name](config)._replace(noise=noise.none())
    state = start(mechanism, data, key)
    initial = protocol.factors(state)
    after, info = protocol.train(mechanism, key, state, data, 3)
    found = protocol.factors(after)
    dense, mask = matrices()
    users, items, losses = textbook(
        np.asarray(initial.user_factors),
        np.asarray(initial.item_factors),
        center_of(center, dense, mask),
        config,
        dense,
        mask,
        3,
        move_items=name != "public items",
    )
    # In whole units factors are rounded to C/2048, residuals to 1/32 or less.
    near = 1e-5 if name == "published" else 1e-3
    np.testing.assert_allclose(found.user_factors, users, rtol=1e-5, atol=near)
    np.testing.assert_allclose(found.item_factors, items, rtol=1e-5, atol=near)
    np.testing.assert_allclose(found.center, np.float32(center_of(center, dense, mask)), rtol=1e-6)
    np.testing.assert_allclose(info.loss, losses, rtol=near)
    assert float(info.clipped_fraction[0]) == (1.0 if clip_norm < 1 else 0.0)


def test_the_control_is_the_published_descent_without_noise(data, key):
    config = dataclasses.replace(CONFIG, noise_multiplier=None, center=2.5)
    control = gaussian.non_private(config)
    silent = gaussian.mechanism(dataclasses.replace(CONFIG, center=2.5))._replace(
        noise=noise.none()
    )
    runs = [protocol.train(m, key, start(m, data, key), data, 3)[0] for m in (control, silent)]
    assert same(*runs)
    assert control.release(runs[0]) == Release()


def test_initial_factors_and_public_items(data, key):
    published = start(gaussian.mechanism(CONFIG), data, key)
    for rows in (published.public.user_factors, published.private.item_factors):  # the paper's
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)
    mechanism = gaussian.public_items(CONFIG)
    state = start(mechanism, data, key)
    after, _ = protocol.train(mechanism, key, state, data, 3)
    assert same(after.public.item_factors, state.public.item_factors)
    assert not same(after.public.user_factors, state.public.user_factors)
    given = np.random.default_rng(0).normal(size=(ITEMS, RANK)).astype(np.float32)
    assert same(start(gaussian.public_items(CONFIG, given), data, key).public.item_factors, given)
    for wrong in (given[:, :2], given * np.nan):
        with pytest.raises(ValueError, match="finite matrix with 3 columns"):
            gaussian.public_items(CONFIG, wrong)


# --- what changes nothing


def permuted(ratings, users, order):
    """The same ratings with users renumbered (row u becomes users[u]) and columns in another
    order.
    """
    return dataclasses.replace(
        ratings,
        user=users[ratings.user][order].astype(np.int32),
        item=ratings.item[order],
        value=ratings.value[order],
    )


@pytest.mark.parametrize("kind", ["dense", "split"])
def test_permuting_users_and_ratings_changes_nothing_but_order(kind, key):
    random = np.random.default_rng(3)
    users, order = random.permutation(USERS), random.permutation(RATINGS.num_ratings)
    config = dataclasses.replace(CONFIG, center="item")
    mechanism = gaussian.mechanism(config)._replace(noise=noise.none())
    first, second = (layout.make(r, kind=kind) for r in (RATINGS, permuted(RATINGS, users, order)))
    state, other = start(mechanism, first, key), start(mechanism, second, key)
    moved = state.public.user_factors[
        np.argsort(users)
    ]  # row users[u] of the second is row u of the first
    other = other._replace(public=other.public._replace(user_factors=moved))
    a, b = (
        protocol.train(mechanism, key, s, d, 3)[0] for s, d in ((state, first), (other, second))
    )
    np.testing.assert_allclose(
        b.public.user_factors[users], a.public.user_factors, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(b.private.item_factors, a.private.item_factors, rtol=1e-5, atol=1e-6)


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["published", "joint"])
def test_padding_and_layout_change_nothing_beyond_float32(name, data, key):
    """The same noise too: it is drawn per logical entry, whatever the layout."""
    mechanism = FACTORIES[name](CONFIG)
    split = layout.make(RATINGS, kind="split")
    (a, info), (b, other) = (
        protocol.train(mechanism, key, start(mechanism, d, key), d, 3) for d in (data, split)
    )
    for x, y in zip(jax.tree.leaves((a, info)), jax.tree.leaves((b, other)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


# --- mechanisms as arrays


def stack(mechanisms):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *mechanisms)


@pytest.mark.seconds
def test_stacked_mechanisms_equal_separate_runs(data, key):
    mechanisms = [gaussian.joint_noise(config) for config in SWEEP]

    def run(mechanism):
        return protocol.train(mechanism, key, start(mechanism, data, key), data, 3)

    together = jax.vmap(run)(stack(mechanisms))
    for i, mechanism in enumerate(mechanisms):
        for x, y in zip(jax.tree.leaves(together), jax.tree.leaves(run(mechanism)), strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-4, atol=1e-4)


@pytest.mark.seconds
def test_another_optimizer_is_post_processing(data, key):
    optimizer = optax.adam(0.05)
    mechanism = gaussian.joint_noise(CONFIG, optimizer)
    plain = gaussian.joint_noise(CONFIG)
    state = start(mechanism, data, key)
    after, _ = protocol.train(mechanism, key, state, data, 1)
    moved = np.abs(np.asarray(after.public.user_factors - state.public.user_factors))
    np.testing.assert_allclose(
        moved, 0.05, rtol=1e-3
    )  # Adam's first step is the learning rate in every entry
    assert mechanism.guarantee(10) == plain.guarantee(10)
    chunked, _ = protocol.train(mechanism, key, after, data, 1)
    assert same(chunked, protocol.train(mechanism, key, state, data, 2)[0])


# --- what is priced is what is done


RELATIONS = {
    "value": ({}, 4.0),
    "wide tau": ({"tau": 5.0}, 5.0),
    "value, residual clip": ({"residual_clip": 1.5}, 3.0),
    "value, wide residual clip": ({"residual_clip": 9.0}, 4.0),
    "presence": ({"relation": "rating presence", "residual_clip": 1.5}, 1.5),
}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("clip_norm", [1.0, 0.25])
def test_sensitivities(relation, clip_norm):
    change, entry = RELATIONS[relation]
    config = dataclasses.replace(CONFIG, clip_norm=clip_norm, **change)
    joint, public = gaussian.joint_noise(config), gaussian.public_items(config)
    found, alone = (
        made.guarantee(1).sensitivity * float(whole_descent.unit(made.query.args[0].grid))
        for made in (joint, public)
    )
    # Steps of a residual are whole, and sums are rounded: no less than that, and 1% more at most.
    assert entry * clip_norm <= alone * (1 + 1e-6) <= 1.01 * entry * clip_norm
    assert found == pytest.approx(math.sqrt(2) * alone, rel=1e-6)
    if config.residual_clip is None:
        assert gaussian.mechanism(config).guarantee(1).sensitivity == pytest.approx(
            entry * clip_norm, rel=1e-6
        )
    assert joint.guarantee(1).unit == config.relation


@pytest.mark.parametrize("name", FACTORIES)
def test_the_guarantee_reads_the_noise(name):
    mechanism = FACTORIES[name](dataclasses.replace(CONFIG, noise_multiplier=1.7))
    guarantee = mechanism.guarantee(9)
    sigma = jax.tree.leaves(mechanism.noise.sample)[0]
    assert guarantee.noise_multiplier * guarantee.sensitivity == pytest.approx(
        float(sigma), rel=1e-12
    )
    assert guarantee.noise_multiplier >= 1.7  # rounded to the safe side
    assert guarantee.noise_multiplier == pytest.approx(1.7, rel=1e-6)
    assert guarantee.rho == pytest.approx(9 / (2 * 1.7**2), rel=1e-6)
    assert guarantee.steps == 9
    assert guarantee.status == ("claimed" if name == "published" else "proved")


def test_what_is_released(data, key):
    released = {
        name: make(CONFIG).release(start(make(CONFIG), data, key))
        for name, make in FACTORIES.items()
    }
    assert released["published"].item_factors is None
    assert released["published"].center is None
    assert all(part is not None for part in released["joint"][:3])
    assert set(released["joint"][3:]) == {None}
    assert (
        gaussian.non_private(dataclasses.replace(CONFIG, noise_multiplier=None))
        .guarantee(5)
        .epsilon
        == math.inf
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rating_range", (5.0, 1.0)),
        ("rating_range", (1.0, math.inf)),
        ("rating_range", (math.nan, 5.0)),
        ("rank", 0),
        ("learning_rate", math.nan),
        ("learning_rate", 0.0),
        ("regularization", -1e-9),
        ("regularization", math.nan),
        ("clip_norm", math.nan),
        ("clip_norm", math.inf),
        ("clip_norm", 0.0),
        ("noise_multiplier", math.nan),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", math.inf),
        ("center", "median"),
        ("center", math.nan),
        ("relation", "user"),
        ("residual_clip", math.nan),
        ("residual_clip", 0.0),
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", math.nan),
    ],
)
def test_a_setting_that_means_nothing_is_refused(field, value):
    with pytest.raises(
        (ValueError, TypeError), match=field
    ):  # TypeError: the types that are checked in tests
        dataclasses.replace(CONFIG, **{field: value})


@pytest.mark.parametrize("tau", [3.999, 0.0, -1.0, math.nan])
def test_tau_below_the_range_is_refused(tau):
    with pytest.raises(PrivacyError, match="tau") as caught:
        dataclasses.replace(CONFIG, tau=tau)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("make", "change"),
    [
        *(
            (make, {"center": center})
            for make in (gaussian.joint_noise, gaussian.public_items)
            for center in ("item", "global")
        ),
        (gaussian.joint_noise, {"relation": "rating presence"}),
        (gaussian.public_items, {"relation": "rating presence"}),
        (gaussian.mechanism, {"relation": "rating presence", "residual_clip": 1.0}),
        (gaussian.mechanism, {"residual_clip": 1.0}),
        *((make, {"noise_multiplier": None}) for make in FACTORIES.values()),
        (gaussian.non_private, {}),
    ],
)
def test_what_a_guarantee_does_not_allow_is_refused(make, change):
    with pytest.raises(PrivacyError) as caught:
        make(dataclasses.replace(CONFIG, **change))
    assert caught.value.exit_code == 4
    assert caught.value.fix
