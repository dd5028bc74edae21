"""Messages of paper 003: what each role may see, what is opened, what a message weighs."""

import inspect
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmf_jax.mechanisms.federated import messages, roles
from dpmf_jax.mechanisms.federated.messages import Ask, Opened, Own, Request, Total, Upload
from dpmf_jax.noise import ring
from tests.cases import messages as cases
from tests.cases.messages import (
    ITEMS,
    NOBODY_HIDES,
    RANK,
    RULES,
    STEP,
    USERS,
    WIDTH,
    bitwise,
    every,
    iterate,
    run,
)

# ----------------------------------------------------------------------------------------------- wh

SEES = {
    "user": {
        "contribution": {"own", "item_factors", "rules"},
        "upload": {"key", "own", "ask", "request", "rules"},
        "keep_share": {"key", "request", "rules"},
        "introduce": {"key", "ask", "request", "rules"},
    },
    "third party": {
        "draw_alpha": {"key", "num_items", "rank"},
        "add_up": {"uploads", "arrived", "alpha", "at_least"},
    },
    "recommender": {
        "draw_factor": {"key", "num_items", "rank"},
        "request": {
            "key",
            "asks",
            "asked",
            "num_items",
            "rank",
            "item_factors",
            "tau_hat",
            "factor",
        },
        "cut": {"key", "tau_hat", "asks", "asked"},
        "split": {"key", "tau_hat", "num_pieces"},
        "open_sum": {"total", "asks", "asked", "requests"},
    },
}
HIDDEN = {
    "user": {
        Upload,
        Total,
        Opened,
        messages.Messages,
    },  # of others; own uploads are what a user returns
    "third party": {Own, Ask, Request, Opened, messages.Messages},
    "recommender": {Own, Upload, messages.Messages},
}
WHOLE_RUNS = {"initialise", "iteration"}
COUNTING = {"num_bytes", "traffic"}
SETTINGS = {"published", "per_user", "without_noise"}


@pytest.mark.parametrize("role", SEES)
def test_a_role_takes_what_it_may_see_and_nothing_else(role):
    for name, seen in SEES[role].items():
        function = getattr(roles, name)
        assert set(inspect.signature(function).parameters) == seen, name
        hints = typing.get_type_hints(function)
        del hints["return"]
        assert not HIDDEN[role] & set(hints.values()), name
        assert inspect.unwrap(function).__closure__ is None, name


def test_every_public_function_is_a_role_s_or_plays_all():
    found = {
        name
        for module in (messages, roles)
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
    assert found == set().union(*SEES.values(), WHOLE_RUNS, COUNTING, SETTINGS)


def test_a_message_has_only_the_fields_that_its_reader_may_see():
    """The third party never gets a pad, a piece, V or a rating; the recommender no single φ."""
    assert set(Upload._fields) == {"items", "masked"}
    assert set(Ask._fields) == {"items"}
    assert set(Total._fields) == {"sums", "opened", "arrived"}
    assert set(Request._fields) == {"pads", "item_factors", "pieces", "factor", "num_shares"}
    assert not set(Own._fields) & set(Request._fields) | set(Own._fields) & set(Upload._fields)


@pytest.mark.seconds
@pytest.mark.parametrize("user", range(USERS))
def test_a_user_s_upload_depends_on_the_own_data_alone(user):
    """Every other user's factors and ratings are replaced: the upload stays, to the bit; all other
    uploads change.
    """
    listed = cases.asks()
    own, other = cases.owns(listed), cases.owns(listed, seed=1)
    mixed = jax.tree.map(lambda a, b: b.at[user].set(a[user]), own, other)
    uploads, changed = (run(world, listed)[1].uploads for world in (own, mixed))
    assert bitwise(
        jax.tree.map(lambda leaf: leaf[user], uploads),
        jax.tree.map(lambda leaf: leaf[user], changed),
    )
    others = np.arange(USERS) != user
    assert np.all(np.any(np.asarray(uploads.masked != changed.masked), axis=(1, 2))[others])


@pytest.mark.seconds
def test_one_user_alone_and_among_others_sends_the_same():
    listed = cases.asks()
    own = cases.owns(listed)
    _opened, sent = run(own, listed)
    key = jax.random.split(jax.random.split(jax.random.key(0))[1], USERS)[2]
    mine = jax.tree.map(lambda leaf: leaf[2], (own, listed, sent.requests))
    assert bitwise(
        roles.upload(key, *mine, RULES), jax.tree.map(lambda leaf: leaf[2], sent.uploads)
    )


def test_what_the_recommender_sends_does_not_depend_on_ratings():
    listed = cases.asks()
    first, second = (run(cases.owns(listed, seed), listed)[1].requests for seed in (0, 1))
    assert bitwise(first, second)


# --------------------------------------------------------------------------------------------------


@pytest.mark.seconds
@given(seed=st.integers(0, 2**20), alpha=st.booleans())
def test_without_noise_the_opened_sum_is_the_plain_gradient_exactly(seed, alpha):
    """On numbers that the grid holds, with pads and, in S3's manner, with α and pieces of τ̂ =
    α.
    """
    listed = cases.asks(seed)
    own, factors = cases.owns(listed, seed), cases.item_factors(seed)
    secret = cases.elements(seed, ITEMS, RANK) if alpha else NOBODY_HIDES
    opened, _sent = run(own, listed, seed=seed, factors=factors, alpha=secret, tau_hat=secret)
    counts = cases.contributors(listed, every)
    np.testing.assert_array_equal(opened.counts, counts)
    np.testing.assert_array_equal(opened.opened, counts > 0)
    expected = cases.plain_sums(own, listed, factors, every, center=3.0)
    np.testing.assert_array_equal(ring.decode(opened.sums, STEP), expected)


def test_on_other_numbers_it_is_within_one_step_for_each_contribution():
    listed = cases.asks()
    own = cases.owns(listed)
    own = own._replace(factors=own.factors / 3, values=own.values + 0.123)
    opened, _sent = run(own, listed)
    expected = cases.plain_sums(own, listed, cases.item_factors(), every, center=3.0)
    apart = np.abs(ring.decode(opened.sums, STEP) - expected)
    assert np.all(apart <= STEP * np.asarray(opened.counts)[:, None] + 1e-5)
    assert np.max(apart) > STEP / 10


def test_padding_and_the_order_of_a_list_change_nothing():
    listed = cases.asks()
    own = cases.owns(listed)
    order = np.argsort(np.random.default_rng(5).random((USERS, WIDTH)), axis=1)
    turned = Ask(jnp.take_along_axis(listed.items, order, 1))
    own_turned = own._replace(
        values=jnp.take_along_axis(own.values, order, 1),
        rated=jnp.take_along_axis(own.rated, order, 1),
    )
    # what stands in the padding is nothing: a rating there would be one of no item
    filled = own_turned._replace(
        values=jnp.where(own_turned.rated, own_turned.values, 77.0),
        rated=jnp.ones_like(own_turned.rated),
    )
    results = [run(*world)[0] for world in ((own, listed), (own_turned, turned), (filled, turned))]
    assert bitwise(results[0], results[1])
    assert bitwise(results[0], results[2])


def test_the_sum_wraps_around_and_comes_back():
    """α and τ̂ far apart: the total passes 2^32 many times, what is opened does not move."""
    listed = cases.asks()
    own = cases.owns(listed)
    high = jnp.full((ITEMS, RANK), 2**32 - 1, jnp.uint32)
    results = [
        run(own, listed, alpha=alpha, tau_hat=alpha)[0] for alpha in (NOBODY_HIDES, high, high // 2)
    ]
    assert bitwise(results[0], results[1])
    assert bitwise(results[0], results[2])


def test_rows_without_a_sum_are_zero_and_say_so():
    listed = cases.asks()
    opened, sent = run(cases.owns(listed), listed, at_least=3)
    enough = cases.contributors(listed, every) >= 3
    assert 0 < enough.sum() < ITEMS
    np.testing.assert_array_equal(opened.opened, enough)
    np.testing.assert_array_equal(sent.total.opened, enough)
    for sums in (opened.sums, sent.total.sums):
        assert not np.any(np.asarray(sums)[~enough])
        assert np.all(np.any(np.asarray(sums)[enough], axis=1))
    assert not np.any(np.asarray(opened.counts)[~enough])


def test_a_scan_over_iterations_is_the_loop_over_them():
    listed = cases.asks()
    own = cases.owns(listed)

    def step(factors, key):
        opened, _sent = roles.iteration(
            key, RULES, own, listed, factors, NOBODY_HIDES, every, every, 1
        )
        return factors - ring.decode(opened.sums, STEP) / 64, opened.sums

    keys = jax.random.split(jax.random.key(3), 4)
    scanned, sums = jax.jit(lambda factors: jax.lax.scan(step, factors, keys))(cases.item_factors())
    factors = cases.item_factors()
    for key, seen in zip(keys, sums, strict=True):
        opened, _sent = iterate(
            key, RULES, own, listed, factors, NOBODY_HIDES, every, every, jnp.int32(1)
        )
        np.testing.assert_array_equal(opened.sums, seen)
        factors = factors - ring.decode(opened.sums, STEP) / 64
    np.testing.assert_array_equal(factors, scanned)


def test_rules_of_one_kind_do_not_recompile():
    listed = cases.asks()
    own = cases.owns(listed)
    run(own, listed)
    before = iterate._cache_size()
    run(
        own,
        listed,
        rules=roles.without_noise(step=2.0**-4, center=1.0, clip_norm=2.0),
        at_least=2,
    )
    assert iterate._cache_size() == before


# --------------------------------------------------------------------------------------------------


def in_steps(contribution) -> int:
    """The L1 norm, as a whole number of steps."""
    return int(np.sum(np.abs(np.asarray(ring.signed(contribution)).astype(np.int64))))


contribute = jax.jit(roles.contribution)
wild = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, 1e-30, 3e38, -3e38, math.inf, -math.inf, math.nan, 1.0, 5.0]),
)


@given(
    numbers=st.lists(wild, min_size=RANK + WIDTH, max_size=RANK + WIDTH),
    clip_norm=st.floats(STEP, 2.0**20, width=32),
    seed=st.integers(0, 100),
)
def test_no_data_make_a_message_longer_than_the_clip(numbers, clip_norm, seed):
    own = Own(
        jnp.asarray(numbers[:RANK], jnp.float32),
        jnp.asarray(numbers[RANK:], jnp.float32),
        jnp.ones(WIDTH, bool),
    )
    factors = jnp.asarray(np.random.default_rng(seed).normal(size=(WIDTH, RANK)), jnp.float32)
    rules = roles.without_noise(step=STEP, clip_norm=clip_norm)
    assert in_steps(contribute(own, factors, rules)) <= clip_norm / STEP


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_makes_a_message_of_nothing(bad):
    own = Own(jnp.array([1.0, bad, 1.0]), jnp.full(WIDTH, 3.0), jnp.ones(WIDTH, bool))
    rules = roles.without_noise(step=STEP, clip_norm=1.0)
    assert in_steps(contribute(own, jnp.ones((WIDTH, RANK)), rules)) == 0


def test_the_clip_scales_and_leaves_short_messages_alone():
    """Whole messages: one factor for all items. Of a clipped one 1% or less is given away, rounding
    aside.
    """
    own = jax.tree.map(lambda leaf: leaf[0], cases.owns(cases.whole_catalogue()))
    free = roles.contribution(own, cases.item_factors(), RULES)
    length = in_steps(free) * STEP
    fine = 2.0**-20
    for clip, kept in ((2 * length, 1.0), (length / 5, 0.2)):
        rules = roles.without_noise(step=fine, center=3.0, clip_norm=clip)
        clipped = roles.contribution(own, cases.item_factors(), rules)
        np.testing.assert_allclose(
            ring.decode(clipped, fine), kept * ring.decode(free, STEP), rtol=1e-4, atol=2 * fine
        )
        assert in_steps(clipped) * fine == pytest.approx(kept * length, rel=1e-3)


@pytest.mark.seconds
def test_a_message_cannot_exceed_the_clip_by_computing_in_floats():
    """C of 2^29 steps: numbers are whole steps already, nothing is lost by rounding, and a factor
    that is a float too large would be seen. 500 users of 8 items, and one of 20,000.
    """
    rules = roles.without_noise(step=2.0**-29, clip_norm=1.0)
    random = np.random.default_rng(0)
    for users, num in ((500, 8), (1, 20_000)):
        factors, rows = random.normal(size=(users, RANK)), random.normal(size=(num, RANK))
        values = random.uniform(1, 5, (users, num))
        own = Own(jnp.float32(factors), jnp.float32(values), jnp.ones((users, num), bool))
        made = jax.vmap(roles.contribution, (0, None, None))(own, jnp.float32(rows), rules)
        lengths = np.array([in_steps(one) for one in made])
        assert np.all(lengths <= 2**29)
        assert np.all(lengths > 0.98 * 2**29)
