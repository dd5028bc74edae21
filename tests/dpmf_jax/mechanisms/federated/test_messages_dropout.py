"""Users who drop out, at every point of paper 003's protocol: the sum of those who arrived and all
of η, or nothing.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dpmf_jax.mechanisms.federated import messages, roles
from dpmf_jax.noise import ring
from tests.cases import messages as cases
from tests.cases.messages import ITEMS, RANK, STEP, USERS

pytestmark = pytest.mark.usefixtures("quick_compilation")

RULES = roles.without_noise(step=STEP)
ALPHA = cases.elements(0, ITEMS, RANK)
ETA = jnp.asarray(
    np.random.default_rng(1).integers(-2000, 2000, (ITEMS, RANK)).astype(np.int32)
).view(jnp.uint32)
NO_ALPHA = jnp.zeros((ITEMS, RANK), jnp.uint32)
iterate, initialise = jax.jit(roles.iteration), jax.jit(roles.initialise)

BEFORE_THE_REQUEST, BEFORE_THE_UPLOAD, AFTER_THE_UPLOAD = range(3)
STAGES = (BEFORE_THE_REQUEST, BEFORE_THE_UPLOAD, AFTER_THE_UPLOAD)


def run(stages, listed, own, *, at_least=1, rules=RULES, seed=0, factor=None, dynamic=True):
    """One iteration in which each user drops out at a stage; who leaves after the upload has taken
    part.
    """
    stages = jnp.asarray(stages)
    return iterate(
        jax.random.key(seed),
        rules,
        own,
        listed,
        cases.item_factors(),
        ALPHA if dynamic else NO_ALPHA,
        stages > BEFORE_THE_REQUEST,
        stages > BEFORE_THE_UPLOAD,
        jnp.int32(at_least),
        tau_hat=ALPHA + ETA if dynamic else None,
        factor=factor,
    )


def expected_sums(own, listed, arrived, at_least=1):
    """Of those who arrived, and η, in whole steps; 0 where there are too few."""
    counts = cases.contributors(listed, arrived)
    sums = cases.plain_sums(own, listed, cases.item_factors(), arrived) / STEP + np.asarray(
        ring.signed(ETA)
    )
    return np.where((counts >= max(at_least, 1))[:, None], sums, 0), counts


def check(stages, listed, own, at_least=1, **settings):
    opened, sent = run(stages, listed, own, at_least=at_least, **settings)
    arrived = np.asarray(stages) == AFTER_THE_UPLOAD
    sums, counts = expected_sums(own, listed, arrived, at_least)
    np.testing.assert_array_equal(ring.signed(opened.sums), sums)
    np.testing.assert_array_equal(opened.opened, counts >= max(at_least, 1))
    np.testing.assert_array_equal(opened.counts, np.where(opened.opened, counts, 0))
    np.testing.assert_array_equal(sent.total.arrived, arrived)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("user", range(USERS))
def test_one_user_drops_out_at_any_point(user, stage):
    listed = cases.asks()
    stages = np.full(USERS, AFTER_THE_UPLOAD)
    stages[user] = stage
    check(stages, listed, cases.owns(listed))


@given(
    stages=st.lists(st.sampled_from(STAGES), min_size=USERS, max_size=USERS),
    at_least=st.integers(-1, 4),
    seed=st.integers(0, 2**20),
)
def test_any_users_drop_out_at_any_points(stages, at_least, seed):
    listed = cases.asks(seed)
    check(stages, listed, cases.owns(listed, seed), at_least, seed=seed)


def test_every_pattern_of_one_item_s_users_gives_the_sum_of_those_who_arrived():
    """Three users and three stages each, all 27 patterns; the others are not there at all."""
    listed = cases.asks()
    own = cases.owns(listed)
    for pattern in itertools.product(STAGES, repeat=3):
        check([*pattern, *[BEFORE_THE_REQUEST] * (USERS - 3)], listed, own)


def test_if_nobody_s_upload_arrives_eta_is_not_opened_on_its_own():
    """The pieces that the recommender would add are all of τ̂, and α is off: that is η, without any
    other noise.
    """
    listed = cases.asks()
    for at_least in (0, 1):
        opened, sent = run(
            [BEFORE_THE_UPLOAD] * USERS, listed, cases.owns(listed), at_least=at_least
        )
        for leaf in (opened.sums, opened.opened, opened.counts, sent.total.sums, sent.total.opened):
            assert not np.any(leaf)
    # what it would be, had the third party sent what it has
    bare = messages.Total(-ALPHA, jnp.ones(ITEMS, bool), jnp.zeros(USERS, bool))
    every = jnp.ones(USERS, bool)
    some = cases.contributors(listed, every) > 0
    would = roles.open_sum(bare, listed, every, sent.requests)
    np.testing.assert_array_equal(np.asarray(would.sums)[some], np.asarray(ETA)[some])


def test_a_sum_is_never_half_unmasked():
    """Whoever drops out: an opened sum is a small number of steps; with a pad left in it, or out,
    it is any number.
    """
    listed, bound = cases.asks(), 30_000
    own = cases.owns(listed)
    for seed in range(40):
        stages = np.random.default_rng(seed).integers(0, 3, USERS)
        opened, sent = run(stages, listed, own, seed=seed)
        assert np.max(np.abs(ring.signed(opened.sums))) < bound
        half = sent.total._replace(arrived=jnp.ones(USERS, bool))
        wrong = roles.open_sum(
            half, listed, jnp.asarray(stages) > BEFORE_THE_REQUEST, sent.requests
        )
        missing = cases.contributors(listed, stages != AFTER_THE_UPLOAD) > 0
        told = np.asarray(opened.opened) & missing
        assert np.all(
            np.max(np.abs(np.asarray(ring.signed(wrong.sums)).astype(float)), axis=1)[told] > bound
        )


def test_a_missing_upload_is_not_looked_at():
    """What stands in the row of a user whose upload did not arrive changes nothing, at the third
    party and after.
    """
    listed = cases.asks()
    own = cases.owns(listed)
    arrived = jnp.arange(USERS) != 2
    _opened, sent = run([AFTER_THE_UPLOAD] * USERS, listed, own)
    other = sent.uploads._replace(masked=sent.uploads.masked.at[2].set(jnp.uint32(12345)))
    totals = [roles.add_up(uploads, arrived, ALPHA, 1) for uploads in (sent.uploads, other)]
    for one, two in zip(*totals, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.seconds
def test_noise_shares_of_those_who_arrived_are_in_the_sum_and_no_others():
    """Integer shares: the opened sum is Σ (φ − ψ − piece) over the arrived, and η, in integers."""
    rules = roles.per_user(clip_norm=50.0, scale_in_steps=30.0, num_shares=3, step=STEP)
    listed = cases.asks()
    stages = np.array([2, 1, 2, 0, 2, 2])
    opened, sent = run(stages, listed, cases.owns(listed), rules=rules)
    mine = sent.uploads.masked - sent.requests.pads - sent.requests.pieces
    sums = np.zeros((ITEMS + 1, RANK), np.uint32)
    np.add.at(sums, np.asarray(listed.items)[stages == 2], np.asarray(mine)[stages == 2])
    there = np.asarray(opened.opened)
    np.testing.assert_array_equal(
        np.asarray(opened.sums)[there], (sums[:ITEMS] + np.asarray(ETA))[there]
    )
    assert np.max(np.abs(ring.signed(opened.sums))) < 30_000


# --------------------------------------------------------------------------------------------- S2:


@pytest.mark.parametrize("user", range(USERS))
def test_in_s2_a_missing_user_leaves_his_items_closed_and_the_others_whole(user):
    listed = cases.asks()
    kept = jnp.asarray(
        np.random.default_rng(2).integers(-900, 900, (*listed.items.shape, RANK)).astype(np.int32)
    )
    own = cases.owns(listed, share=kept.view(jnp.uint32))
    every = np.ones(USERS, bool)
    group = cases.contributors(listed, every)
    eta = np.zeros((ITEMS + 1, RANK), np.int64)
    np.add.at(eta, np.asarray(listed.items), np.asarray(kept))
    for stage in STAGES:
        stages = np.full(USERS, AFTER_THE_UPLOAD)
        stages[user] = stage
        opened, _sent = run(stages, listed, own, at_least=group, dynamic=False)
        arrived = stages == AFTER_THE_UPLOAD
        whole = (cases.contributors(listed, arrived) == group) & (group > 0)
        np.testing.assert_array_equal(opened.opened, whole)
        assert whole.sum() < ITEMS - 1 or stage == AFTER_THE_UPLOAD
        sums = cases.plain_sums(own, listed, cases.item_factors(), arrived) / STEP + eta[:ITEMS]
        np.testing.assert_array_equal(ring.signed(opened.sums), np.where(whole[:, None], sums, 0))


def test_in_s2_every_iteration_has_the_shares_that_users_kept():
    """Shares (12) of the first request's H, one for each listed item: their sum is the η of all
    iterations.
    """
    listed, every = cases.asks(), jnp.ones(USERS, bool)
    rules = roles.published(scale=2.0, step=STEP)
    first = roles.request(
        jax.random.key(1),
        listed,
        every,
        ITEMS,
        RANK,
        factor=roles.draw_factor(jax.random.key(2), ITEMS, RANK),
    )
    keys = jax.random.split(jax.random.key(3), USERS)
    kept = jax.vmap(roles.keep_share, (0, 0, None))(keys, first, rules)
    introduced = jax.vmap(roles.introduce, (0, 0, 0, None))(keys, listed, first, rules)
    np.testing.assert_array_equal(introduced.masked - first.pads, kept)
    eta = np.zeros((ITEMS + 1, RANK), np.uint32)
    np.add.at(eta, np.asarray(listed.items), np.asarray(kept))
    group = cases.contributors(listed, np.asarray(every))
    assert np.all(np.any(eta[:ITEMS] != 0, axis=1) == (group > 0))
    for seed in range(3):
        own = cases.owns(listed, seed, share=kept)
        opened, _sent = run(
            [AFTER_THE_UPLOAD] * USERS, listed, own, at_least=group, dynamic=False, seed=seed
        )
        plain = cases.plain_sums(own, listed, cases.item_factors(), every) / STEP
        there = group > 0
        np.testing.assert_array_equal(
            (np.asarray(ring.signed(opened.sums)) - plain)[there], eta.view(np.int32)[:ITEMS][there]
        )


# --------------------------------------------------------------------------------------------------

GROUP = 5
INTEGERS = roles.per_user(clip_norm=1.0, scale_in_steps=40.0, num_shares=GROUP, step=STEP)


def first_shares(sent):
    """η of each invited user, uint32[users, items, d]: the upload without β."""
    return np.asarray(sent.uploads.masked - sent.requests.pads)


@pytest.mark.seconds
@given(
    arrived=st.lists(st.booleans(), min_size=GROUP, max_size=GROUP),
    at_least=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_the_initialisation_opens_alpha_and_the_shares_of_those_who_arrived_or_nothing(
    arrived, at_least, seed
):
    arrived = np.array(arrived)
    opened, sent = initialise(
        jax.random.key(seed), INTEGERS, ALPHA, jnp.asarray(arrived), jnp.int32(at_least)
    )
    enough = arrived.sum() >= max(at_least, 1)
    assert np.all(opened.opened == enough)
    eta = first_shares(sent)[arrived].sum(axis=0, dtype=np.uint32)
    np.testing.assert_array_equal(
        opened.sums, (np.asarray(ALPHA) + eta) if enough else np.zeros_like(eta)
    )
    assert np.max(np.abs(first_shares(sent).view(np.int32))) < 5000
    assert sent.requests.item_factors is None
    assert sent.requests.pieces is None


@pytest.mark.seconds
def test_tau_hat_says_nothing_about_eta_without_alpha():
    """τ̂(η, α) = τ̂(η', α + η − η'): and over keys its bytes are uniform, as is what the third
    party adds up.
    """
    here = jnp.ones(GROUP, bool)
    opened, sent = initialise(jax.random.key(0), INTEGERS, ALPHA, here, jnp.int32(GROUP))
    eta = first_shares(sent).sum(axis=0, dtype=np.uint32)
    moved, _sent = initialise(jax.random.key(0), INTEGERS, ALPHA + eta, here, jnp.int32(GROUP))
    np.testing.assert_array_equal(moved.sums - eta, opened.sums)
    alphas = jax.vmap(lambda key: roles.draw_alpha(key, ITEMS, RANK))(
        jax.random.split(jax.random.key(1), 500)
    )
    tau_hats = np.asarray(alphas + eta)
    of_bytes = np.bincount(np.frombuffer(tau_hats.tobytes(), np.uint8), minlength=256)
    assert scipy.stats.chisquare(of_bytes).pvalue > 1e-4
    at_third = np.asarray(sent.uploads.masked)
    assert len(np.unique(at_third)) == at_third.size


def test_from_the_initialisation_on_every_iteration_has_the_same_whole_eta():
    """Different groups, dropouts in each, no other noise: what is opened beside the gradients never
    changes.
    """
    group = jnp.array([True, False, True, True, True])
    started, sent = initialise(jax.random.key(5), INTEGERS, ALPHA, group, jnp.int32(4))
    eta = first_shares(sent)[np.asarray(group)].sum(axis=0, dtype=np.uint32)
    listed = cases.asks()
    own, factors = cases.owns(listed), cases.item_factors()
    for seed in range(12):
        random = np.random.default_rng(seed)
        asked, arrives = random.random((2, USERS)) < 0.7
        opened, _sent = iterate(
            jax.random.key(seed),
            RULES,
            own,
            listed,
            factors,
            ALPHA,
            jnp.asarray(asked),
            jnp.asarray(arrives),
            jnp.int32(1),
            tau_hat=started.sums,
        )
        plain = cases.plain_sums(own, listed, factors, asked & arrives) / STEP
        told = np.asarray(opened.opened)
        rest = np.asarray(ring.signed(opened.sums)) - plain
        np.testing.assert_array_equal(rest[told], eta.view(np.int32)[told])
