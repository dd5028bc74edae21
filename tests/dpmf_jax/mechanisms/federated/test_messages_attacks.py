"""Attacks on paper 003's protocol: differences of gradients, a recommender that knows H, two roles
that collude.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from dpmf_jax.mechanisms.federated import roles
from dpmf_jax.mechanisms.federated.messages import Ask, Own, Request
from dpmf_jax.noise import ring, shares
from tests.cases import messages as cases
from tests.cases.messages import ITEMS, RANK, STEP, USERS

iterate = jax.jit(roles.iteration)
every = jnp.ones(USERS, bool)

# ------------------------------------------------------------------------------------------------ t
# Equation (11): one share of η is in all of a user's local gradients, so their differences are
# those of the true ones.

FINE = 2.0**-18
GAIN, WEIGHT = 2.0**-5, 0.001  # γ and λ
NUM, TIMES, VICTIMS = 3, 3, 20
EPSILON, WIDTH = 1.0, 4.0
SCALE = 2 * WIDTH * math.sqrt(RANK) / EPSILON


def next_factors(u, items, ratings):
    """Equation (2): how the user's own factors move, which everybody knows."""
    residual = ratings - items @ u
    return u + 2 * GAIN * items.T @ residual - 2 * GAIN * WEIGHT * u


def true_gradients(u, ratings, item_factors):
    """g(t) of all iterations, float64[times, items, d]."""
    gradients = []
    for items in item_factors:
        gradients.append(-2 * (ratings - items @ u)[:, None] * u)
        u = next_factors(u, items, ratings)
    return np.array(gradients)


def local_gradients(victim: int, rules):
    """(what the recommender is sent of one user, without a third party: eq. 11; the truth; V(t);
    the ratings).
    """
    random = np.random.default_rng(victim)
    u, ratings = random.normal(size=RANK), random.integers(1, 6, NUM).astype(float)
    item_factors = random.normal(size=(TIMES, NUM, RANK))
    keys = jax.random.split(jax.random.key(victim), TIMES + 2)
    factor = jax.random.exponential(keys[-1], (TIMES, NUM, RANK))
    eta = ring.encode(
        shares.published(keys[-2], jnp.ones((NUM, RANK)), SCALE, 1, (NUM, RANK)), FINE
    )
    sent, now = [], u
    for key, items, h in zip(keys[:TIMES], item_factors, factor, strict=True):
        own = Own(
            jnp.asarray(now, jnp.float32),
            jnp.asarray(ratings, jnp.float32),
            jnp.ones(NUM, bool),
            eta,
        )
        request = Request(
            jnp.zeros((NUM, RANK), jnp.uint32),  # no pad, or one that the reader knows
            jnp.asarray(items, jnp.float32),
            factor=h,
            num_shares=jnp.ones(NUM, jnp.int32),
        )
        sent.append(send(key, own, Ask(jnp.arange(NUM)), request, rules).masked)
        now = next_factors(now, items, ratings)
    return (
        np.asarray(jnp.stack(sent)),
        true_gradients(u, ratings, item_factors),
        item_factors,
        ratings,
    )


send = jax.jit(roles.upload)


def differences(sent):
    return np.asarray(ring.decode(jnp.asarray(sent[1:] - sent[:-1]), FINE), np.float64)


def guess(sent, item_factors):
    """The ratings, from differences and V(t) alone: least squares over them and the unknown factors
    at the start.
    """
    seen = differences(sent)

    def miss(unknown):
        with np.errstate(all="ignore"):
            made = np.diff(true_gradients(unknown[:RANK], unknown[RANK:], item_factors), axis=0)
        return np.nan_to_num((made - seen).ravel(), nan=1e6, posinf=1e6, neginf=-1e6)

    starts = np.random.default_rng(0).normal(size=(12, RANK))
    fits = []
    for start in starts:
        fits.append(
            scipy.optimize.least_squares(miss, np.append(start, np.full(NUM, 3.0)), max_nfev=60)
        )
        if fits[-1].cost < 1e-7:
            break
    return min(fits, key=lambda fit: fit.cost).x[RANK:]


def hits(rules) -> int:
    """The statistic: how many of 60 ratings, uniform on 1 to 5, the attack has right when
    rounded.
    """
    found = 0
    for victim in range(VICTIMS):
        sent, _truth, item_factors, ratings = local_gradients(victim, rules)
        found += int(np.sum(np.rint(guess(sent, item_factors)) == ratings))
    return found


@pytest.mark.seconds
def test_without_fresh_noise_the_difference_is_that_of_the_true_gradients():
    rules = roles.without_noise(step=FINE)
    for victim in range(3):
        sent, truth, _item_factors, _ratings = local_gradients(victim, rules)
        alone = np.asarray(ring.decode(jnp.asarray(sent), FINE)) - truth
        assert np.median(np.abs(alone)) > 1  # one gradient has the noise of η
        np.testing.assert_allclose(differences(sent), np.diff(truth, axis=0), atol=4 * FINE + 1e-5)


def test_without_fresh_noise_all_ratings_are_recovered():
    assert hits(roles.without_noise(step=FINE)) >= 0.9 * VICTIMS * NUM


@pytest.mark.seconds
def test_with_fresh_noise_the_differences_have_it_and_the_attack_guesses():
    """ρ(t) of (13) at ε = 1 in every local gradient: of 60 ratings as many are right as guesses at
    random have.
    """
    rules = roles.published(scale=SCALE, step=FINE)
    sent, truth, _item_factors, _ratings = local_gradients(0, rules)
    apart = differences(sent) - np.diff(truth, axis=0)
    assert np.median(np.abs(apart)) > SCALE / 2
    found = hits(rules)
    assert scipy.stats.binomtest(found, VICTIMS * NUM, 1 / 5, alternative="greater").pvalue > 1e-4
    assert found < 0.5 * VICTIMS * NUM


def test_the_third_party_does_not_help_whom_nobody_else_s_message_hides():
    """An item with one rater, S3, no ρ̃: the sums of two iterations have the difference of that
    user's gradients.
    """
    listed = Ask(jnp.full((USERS, 1), ITEMS).at[0, 0].set(2))
    alpha, eta = cases.elements(0, ITEMS, RANK), cases.elements(1, ITEMS, RANK)
    seen, true = [], []
    for time in range(2):
        own = jax.tree.map(
            lambda leaf: leaf[:, :1] if leaf.ndim > 1 else leaf, cases.owns(cases.asks(), seed=time)
        )
        own = own._replace(
            factors=cases.owns(cases.asks(), seed=time).factors, rated=listed.items < ITEMS
        )
        opened, _sent = iterate(
            jax.random.key(time),
            roles.without_noise(step=STEP),
            own,
            listed,
            cases.item_factors(time),
            alpha,
            every,
            every,
            jnp.int32(1),
            tau_hat=alpha + eta,
        )
        seen.append(opened.sums[2])
        true.append(cases.plain_sums(own, listed, cases.item_factors(time), every)[2])
    np.testing.assert_array_equal(ring.decode(seen[1] - seen[0], STEP), true[1] - true[0])


# --------------------------------------------------------------------------------------- a recommen


def raised(own: Own, user: int, by: float) -> Own:
    return own._replace(values=own.values.at[user, 0].add(by))


@pytest.mark.seconds
@pytest.mark.parametrize("chosen", [1e-4, 1e-3])
def test_given_h_what_is_opened_tells_two_worlds_apart_by_more_than_epsilon(chosen):
    """ε = 0.1, Δ = 4, d = 3, one rating of 1 or of 5: given H the opened sum is N(·, 2b²H) around
    either sum.

    Its log-likelihood ratio at what is opened is beyond ε in most of 50 iterations, in some beyond
    10ε, where a sum with Lemma 1's noise, H unknown, has at most ε.
    """
    epsilon, width = 0.1, 4.0
    scale = 2 * width * math.sqrt(RANK) / epsilon
    listed = cases.whole_catalogue()
    base = cases.owns(listed)
    own = base._replace(
        values=base.values.at[0, 0].set(1.0), factors=base.factors.at[0].set(jnp.array([1.0, 0, 0]))
    )
    factors, hidden = cases.item_factors(), jnp.zeros((ITEMS, RANK), jnp.uint32)
    here, there = (
        cases.plain_sums(world, listed, factors, every) for world in (own, raised(own, 0, width))
    )
    variance = 2 * scale**2 * chosen
    rules = roles.published(scale=scale, step=STEP)
    log_ratios, opened_here = [], []
    for seed in range(50):
        opened, _sent = iterate(
            jax.random.key(seed),
            rules,
            own,
            listed,
            factors,
            hidden,
            every,
            every,
            jnp.int32(1),
            factor=jnp.full((ITEMS, RANK), chosen),
        )
        x = np.asarray(ring.decode(opened.sums, STEP), np.float64)
        log_ratios.append(np.sum((x - there) ** 2 - (x - here) ** 2) / (2 * variance))
        opened_here.append((x - here).ravel())
    assert np.mean(np.array(log_ratios) > epsilon) > 0.5
    assert max(log_ratios) > 10 * epsilon
    # the density is the right one: what is opened has this variance
    standard = np.concatenate(opened_here) / math.sqrt(variance)
    assert scipy.stats.kstest(standard, scipy.stats.norm.cdf).pvalue > 1e-4
    assert np.sum(np.abs(here - there)) / scale <= epsilon + 1e-12


def test_with_h_zero_the_recommender_takes_all_noise_off():
    listed = cases.whole_catalogue()
    own, factors = cases.owns(listed), cases.item_factors()
    hidden = jnp.zeros((ITEMS, RANK), jnp.uint32)
    opened, _sent = iterate(
        jax.random.key(0),
        roles.published(scale=1e4, step=STEP),
        own,
        listed,
        factors,
        hidden,
        every,
        every,
        jnp.int32(1),
        factor=jnp.zeros((ITEMS, RANK)),
    )
    np.testing.assert_array_equal(
        ring.decode(opened.sums, STEP), cases.plain_sums(own, listed, factors, every)
    )


# ----------------------------------------------------------------------------------------------- wh


@pytest.mark.seconds
def test_recommender_and_third_party_together_open_everything():
    """φ − ψ − piece is one user's gradient and own share of noise; τ̂ − α is η."""
    listed = cases.asks()
    own, factors = cases.owns(listed), cases.item_factors()
    alpha, eta = cases.elements(0, ITEMS, RANK), cases.elements(1, ITEMS, RANK)
    _opened, sent = iterate(
        jax.random.key(0),
        roles.without_noise(step=STEP),
        own,
        listed,
        factors,
        alpha,
        every,
        every,
        jnp.int32(1),
        tau_hat=alpha + eta,
    )
    of_recommender, of_third_party = sent.requests, sent.uploads
    single = of_third_party.masked - of_recommender.pads - of_recommender.pieces
    rows = factors.at[listed.items].get(mode="fill", fill_value=0)
    true = jax.vmap(roles.contribution, (0, 0, None))(own, rows, roles.without_noise(step=STEP))
    np.testing.assert_array_equal(single, true)
    assert np.any(true)
    np.testing.assert_array_equal((alpha + eta) - alpha, eta)
    # with the sound shares each user is left with the own one, which is 0 in most coordinates
    sound = roles.per_user(clip_norm=jnp.inf, scale_in_steps=20.0, num_shares=50, step=STEP)
    _opened, sent = iterate(
        jax.random.key(0),
        sound,
        own,
        listed,
        factors,
        alpha,
        every,
        every,
        jnp.int32(1),
        tau_hat=alpha + eta,
    )
    single = sent.uploads.masked - sent.requests.pads - sent.requests.pieces
    assert np.mean(np.asarray(single == true)) > 0.8


def test_two_totals_of_one_iteration_would_open_a_single_message():
    """Why a third party sends one: a late upload alone is the difference, whose pad and piece the
    recommender knows.
    """
    listed = cases.asks()
    own, factors = cases.owns(listed), cases.item_factors()
    rules, late = roles.without_noise(step=STEP), 1
    alpha = cases.elements(0, ITEMS, RANK)
    _opened, sent = iterate(
        jax.random.key(0),
        rules,
        own,
        listed,
        factors,
        alpha,
        every,
        every,
        jnp.int32(1),
        tau_hat=alpha,
    )
    first, second = (
        roles.add_up(sent.uploads, here, alpha, 1) for here in (every.at[late].set(False), every)
    )
    items = np.asarray(listed.items)[late]
    both = np.asarray(first.opened & second.opened)[np.minimum(items, ITEMS - 1)] & (items < ITEMS)
    alone = np.asarray(second.sums - first.sums)[np.minimum(items, ITEMS - 1)]
    alone = alone - np.asarray(sent.requests.pads + sent.requests.pieces)[late]
    mine = jax.tree.map(lambda leaf: leaf[late], own)
    rows = factors.at[listed.items[late]].get(mode="fill", fill_value=0)
    assert np.any(both)
    np.testing.assert_array_equal(
        alone[both], np.asarray(roles.contribution(mine, rows, rules))[both]
    )
