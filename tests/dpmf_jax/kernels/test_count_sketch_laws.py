"""Laws of the count sketch over the draw of its hashes: pairwise independence, no bias, the
variance of paper 002.

Each statistical test stays silent on a correct sketch with probability at least 1 - 1e-4
(FALSE_ALARM), over the seed.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmf_jax.kernels import count_sketch
from dpmf_jax.kernels.count_sketch import ITEMS, PRIME, USERS

pytestmark = pytest.mark.usefixtures("quick_compilation")

FALSE_ALARM = 1e-4


@pytest.mark.one_case
@pytest.mark.parametrize("bits", [2, 3])
def test_values_are_pairwise_independent_over_all_functions_of_a_small_prime(bits):
    """Every function, every two different (id, component): each pair of values equally often, by
    the same code.
    """
    prime = 2**bits - 1
    words = np.array(list(itertools.product(range(prime), repeat=3)), np.uint32)
    values = count_sketch._values(
        jnp.asarray(words), jnp.arange(prime - 1, dtype=jnp.uint32)[:, None], prime, bits
    )
    values = np.asarray(values, np.int64).transpose(0, 2, 1).reshape((prime - 1) * prime, prime**3)
    for one, other in itertools.combinations(values, 2):
        assert np.all(np.bincount(one * prime + other, minlength=prime**2) == prime)


@pytest.mark.parametrize("bits", [2, 3, 5, 7])
def test_addresses_share_a_small_prime_as_evenly_as_whole_numbers_can(bits):
    prime = 2**bits - 1
    for width in range(1, prime + 1):
        found = np.asarray(count_sketch._address(jnp.arange(prime, dtype=jnp.uint32), width, bits))
        np.testing.assert_array_equal(found, np.arange(prime) * width // prime)
        sizes = np.bincount(found, minlength=width)
        assert len(sizes) == width
        assert set(sizes) <= {prime // width, -(-prime // width)}


@pytest.mark.seconds
def test_two_ids_that_meet_in_a_cell_meet_in_no_other_component_more_often_than_any_two(key):
    """Given that components 0 of two ids share their cell, components l do in one of `width` draws
    or so.
    """
    width, depth = 8, 20_000
    hashes = count_sketch.hashes(key, depth)
    one, other = np.asarray(
        count_sketch.cells(hashes, USERS, jnp.array([17, 123_456]), rank=6, width=width)[0]
    )
    meet = one == other
    for component in range(1, 6):
        again = int(meet[meet[:, 0], component].sum())
        assert (
            scipy.stats.binomtest(again, int(meet[:, 0].sum()), 1 / width).pvalue > FALSE_ALARM / 5
        )


def pvalue(one, other):
    """Of Pearson's test against independence and uniformity: the margins are known beforehand,
    nothing is fitted.
    """
    sizes = [6 if x.dtype == np.int32 else 2 for x in (one, other)]
    codes = [x if x.dtype == np.int32 else x > 0 for x in (one, other)]
    return scipy.stats.chisquare(
        np.bincount(codes[0] * sizes[1] + codes[1], minlength=sizes[0] * sizes[1])
    ).pvalue


@pytest.mark.seconds
def test_cells_are_pairwise_independent_over_draws():
    """Addresses (of 6) and signs of two coordinates over 20,000 draws of the hashes: of one id, of
    two, of one component, of two, users against items, row against row, address against sign;
    FALSE_ALARM for all together.
    """

    def drawn(key):
        hashes = count_sketch.hashes(key, 2)
        ids = jnp.array([0, 1, 2**16, PRIME - 2])
        return [
            count_sketch.cells(hashes, family, ids, rank=3, width=6) for family in (USERS, ITEMS)
        ]

    draws = jax.device_get(jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(5), 20_000)))
    addresses, signs = (
        np.stack([found[kind] for found in draws], 1).reshape(20_000, -1).T for kind in (0, 1)
    )
    pairs = [(addresses[at], signs[at]) for at in range(len(addresses))]
    for one, other in itertools.combinations(range(len(addresses)), 2):
        pairs += [
            (addresses[one], addresses[other]),
            (signs[one], signs[other]),
            (addresses[one], signs[other]),
        ]
    assert len(pairs) == 48 + 3 * 48 * 47 // 2
    assert min(pvalue(*pair) for pair in pairs) > FALSE_ALARM / len(pairs)


def bernstein(count, variance, bound, tests):
    """t so that a mean of `count` independent numbers with this variance, each within `bound` of
    its expectation, is off by more than t with probability at most FALSE_ALARM/tests (Bernstein's
    inequality).
    """
    log = math.log(2 * tests / FALSE_ALARM) / count
    return bound * log / 3 + math.sqrt((bound * log / 3) ** 2 + 2 * variance * log)


USER_VALUES = np.array([[1.0, -2.0], [2.0, 1.0], [1.0, 1.0]], np.float32)
ITEM_VALUES = np.array([[-1.0, 1.0], [1.0, 2.0]], np.float32)
NUM_DRAWS = 200_000


@pytest.mark.one_case
@pytest.mark.parametrize(("depth", "width"), [(1, 5), (2, 4), (4, 3)])
def test_the_mean_query_is_unbiased_with_the_papers_variance(depth, width):
    """Three users and two items of rank 2 in a table of a few cells: every coordinate is off by 0
    in the mean and by σ²/(width·depth) in the square, σ² over all other coordinates, not its own.
    """

    def errors(key):
        hashes = count_sketch.hashes(key, depth)
        table = jnp.zeros((depth, width))
        for family, values in ((USERS, USER_VALUES), (ITEMS, ITEM_VALUES)):
            table = count_sketch.update(table, hashes, family, jnp.arange(len(values)), values)
        found = [
            count_sketch.query(table, hashes, family, jnp.arange(len(values)), rank=2) - values
            for family, values in ((USERS, USER_VALUES), (ITEMS, ITEM_VALUES))
        ]
        return jnp.concatenate(found).ravel()

    found = np.asarray(
        jax.jit(jax.vmap(errors))(jax.random.split(jax.random.key(depth), NUM_DRAWS)), np.float64
    )
    values = np.concatenate([USER_VALUES, ITEM_VALUES]).ravel().astype(np.float64)
    variance = (np.sum(values**2) - values**2) / (width * depth)
    most = np.sum(np.abs(values)) - np.abs(values)  # of an error, when all share one cell
    for place in range(len(values)):
        off = bernstein(NUM_DRAWS, variance[place], most[place], 2 * 3 * len(values))
        assert abs(found[:, place].mean()) < off < 0.1 * variance[place] ** 0.5
        # a square lies in [0, most²], so its variance is at most most² times its expectation
        spread, bound = most[place] ** 2 * variance[place], most[place] ** 2
        off = bernstein(NUM_DRAWS, spread, bound, 2 * 3 * len(values))
        assert abs(np.mean(found[:, place] ** 2) - variance[place]) < off < 0.15 * variance[place]
