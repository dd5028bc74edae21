"""What is made of noisy sums, held to ridges that are solved in NumPy."""

import jax.numpy as jnp
import numpy as np

from dpmf_jax.mechanisms.als import estimates

NOISE_VARIANCE, REGULARIZATION = 0.8, 0.7
USERS, ITEMS, OWN, RANK = 4_000, 60, 30, 2


def answers(factors, known, rng):
    """Users of true factors who answer to what is known: (sums of messages, counts, Gram)."""
    sums, count, gram = np.zeros((ITEMS, RANK)), np.zeros(ITEMS), np.zeros((RANK, RANK))
    for _ in range(USERS):
        mine = rng.choice(ITEMS, OWN, replace=False)
        user = rng.standard_normal(RANK) / REGULARIZATION**0.5
        rated = factors[mine] @ user + NOISE_VARIANCE**0.25 * rng.standard_normal(OWN)
        inverse = np.linalg.inv(
            known[mine].T @ known[mine] + NOISE_VARIANCE * REGULARIZATION * np.eye(RANK)
        )
        answer = inverse @ known[mine].T @ rated
        sums[mine] += np.outer(rated - known[mine] @ answer, answer) / OWN**0.5
        count[mine] += OWN**-0.5
        gram += np.outer(answer, answer)
    return tuple(jnp.asarray(part, jnp.float32) for part in (sums, count, gram))


def test_means_and_popularity_are_two_axes_of_all_ratings():
    """Each 0 on average and 1 in squares, and neither says anything of the other."""
    rng = np.random.default_rng(3)
    count = np.exp(rng.normal(3, 1.5, ITEMS)).astype(np.float32)
    center = (0.3 * np.log(count) + rng.standard_normal(ITEMS)).astype(np.float32)
    found = np.asarray(estimates.mean_and_popularity(jnp.asarray(center), jnp.asarray(count)))
    share = count / count.sum()
    np.testing.assert_allclose(share @ found, 0, atol=1e-5)
    np.testing.assert_allclose(found.T @ (share[:, None] * found), np.eye(2), atol=1e-5)
    known = np.stack([np.ones(ITEMS), center, np.log(count)], axis=1)
    np.testing.assert_allclose(np.linalg.lstsq(known, found, rcond=None)[1], 0, atol=1e-4)
    assert np.corrcoef(found[:, 0], center)[0, 1] > 0.999
    # of items that are all alike there is nothing to say
    alike = estimates.mean_and_popularity(jnp.full(ITEMS, 0.1), jnp.full(ITEMS, 7.0))
    assert not np.asarray(alike).any()


def test_right_factors_leave_what_answers_owe_to_their_own_ratings():
    """Residuals agree with the answers by so much, so that much is no error of the factors."""
    rng = np.random.default_rng(0)
    factors = 0.25 * rng.standard_normal((ITEMS, RANK))
    sums, count, gram = answers(factors, factors, rng)
    agreed = estimates._agreed(
        (jnp.asarray(factors, jnp.float32), jnp.zeros((ITEMS, RANK), jnp.float32)),
        gram / USERS,
        count,
        USERS,
        jnp.float32(NOISE_VARIANCE),
        jnp.float32(REGULARIZATION),
    )
    slope = float(jnp.sum(sums * agreed) / jnp.sum(agreed**2))
    assert 0.85 < slope < 1.15
    assert float(jnp.sum((sums - agreed) ** 2)) < 0.2 * float(jnp.sum(sums**2))


def test_a_pass_keeps_nothing_of_the_errors_before_it():
    """What it finds is a mix of the true factors' columns, and of no column of their errors."""
    rng = np.random.default_rng(1)
    factors, errors = 0.25 * rng.standard_normal((2, ITEMS, RANK))
    sums, count, gram = answers(factors, factors + 0.3 * errors, rng)
    before = jnp.asarray(factors + 0.3 * errors, jnp.float32)
    settings = (NOISE_VARIANCE, REGULARIZATION, 0.25, 0.0)
    found, _ = estimates.factors(
        (before, jnp.zeros_like(before)),
        jnp.asarray(True),
        sums,
        gram,
        count,
        USERS,
        jnp.float32(1e-3),
        tuple(jnp.float32(value) for value in settings),
        jnp.int32(RANK),
    )
    parts = np.linalg.lstsq(np.hstack([factors, errors]), np.asarray(found), rcond=None)[0]
    assert np.linalg.norm(parts[RANK:]) < 0.05 * np.linalg.norm(parts[:RANK])


def test_variances_are_those_of_the_errors_that_are_left():
    """Of factors that moved as far as their variance said, with noise as large as is known."""
    rng, items, rank = np.random.default_rng(2), 4_000, 2
    old_variance, deviation = 0.02, 20.0
    before = 0.3 * rng.standard_normal((items, rank)) * (1.0, 0.7)
    truth = before + old_variance**0.5 * rng.standard_normal((items, rank))
    count = np.exp(rng.normal(4, 1, items))
    count[:200] = 1e-3  # nothing is learned of these
    gram = np.diag([1.1, 0.6])
    settings = (NOISE_VARIANCE, REGULARIZATION, 0.25, 0.0)
    shared = tuple(jnp.float32(value) for value in settings)
    as_known = (
        jnp.asarray(before, jnp.float32),
        jnp.full((items, rank), old_variance, jnp.float32),
    )
    count = jnp.asarray(count, jnp.float32)
    agreed = estimates._agreed(as_known, jnp.asarray(gram, jnp.float32), count, USERS, *shared[:2])
    weight = float(estimates.mean_weight(count, USERS))
    told = NOISE_VARIANCE * weight * np.clip(np.trace(gram) * REGULARIZATION / rank, 0.05, 1.0)
    seen = np.asarray(count)[:, None] * np.diag(gram)
    noise = np.sqrt(deviation**2 + told * seen) * rng.standard_normal((items, rank))
    sums = np.asarray(agreed) + seen * (truth - before) + noise
    found, variance = estimates.factors(
        as_known,
        jnp.asarray(False),
        jnp.asarray(sums, jnp.float32),
        jnp.asarray(USERS * gram, jnp.float32),
        count,
        USERS,
        jnp.float32(deviation),
        shared,
        jnp.int32(rank),
    )
    # they come on axes and on a scale of their own, which the first items show
    found = np.asarray(found, np.float64)
    turn = np.linalg.lstsq(before[:200], found[:200], rcond=None)[0]
    np.testing.assert_allclose(before[:200] @ turn, found[:200], atol=1e-3)
    errors = np.sum((found - truth @ turn) ** 2, axis=1)[200:]
    known = np.sum(np.asarray(variance), axis=1)[200:]
    for part in np.array_split(np.argsort(known), 4):
        assert 0.85 < errors[part].mean() / known[part].mean() < 1.15
    assert known.max() > 2 * known.min()
