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
