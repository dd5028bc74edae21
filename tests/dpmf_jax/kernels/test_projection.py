"""Φ: known answers of its generator, the law of its entries, and blocks and devices that change
nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpmf_jax.kernels import projection
from dpmf_jax.noise import bits
from tests.cases.processes import python

Q, ITEMS, RANK = 7, 25, 3
LAWS = ("gaussian", "sign")


def whole(words, law, rows=Q, items=ITEMS):
    return np.asarray(
        projection.entries(words, law, np.arange(rows)[:, None], np.arange(items)[None], rows),
        np.float64,
    )


@pytest.mark.parametrize(
    ("key", "counter", "both"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_generator_gives_the_known_answers_of_threefry(key, counter, both):
    words = bits.Words(*map(jnp.uint32, key))
    assert tuple(map(int, bits.threefry(words, *map(jnp.uint32, counter)))) == both


@pytest.mark.parametrize("bound", [2**31 - 1, 1, 2, 15, 2_700, 26_744, 65_537])
def test_places_are_the_upper_half_of_64_bits_times_the_bound(bound):
    words, count = bits.public_words(jax.random.key(2)), 5_000
    upper, lower = bits.threefry(words, jnp.arange(count, dtype=jnp.uint32), jnp.uint32(0))
    expected = [((int(u) << 32) + int(w)) * bound >> 64 for u, w in zip(upper, lower, strict=True)]
    np.testing.assert_array_equal(bits.places(words, count, bound), expected)


@pytest.mark.parametrize("bound", [1, 3, 65_536, 0x9E3779B9, 2**32 - 1])
def test_the_upper_half_of_a_product_is_exact(bound):
    random = np.random.default_rng(0).integers(0, 2**32, 2_000, dtype=np.uint32)
    words = np.r_[np.uint32([0, 1, 0xFFFF, 0x10000, 0xFFFF0000, 0xFFFFFFFF]), random]
    found = bits._upper_half(jnp.asarray(words), bound)
    np.testing.assert_array_equal(found, [int(word) * bound >> 32 for word in words])


def test_places_are_uniform():
    drawn = bits.places(bits.public_words(jax.random.key(8)), 200_000, 15)
    assert scipy.stats.chisquare(np.bincount(drawn, minlength=15)).pvalue > 1e-4
    assert drawn.dtype == jnp.int32


def test_the_quantile_is_that_of_the_normal_law_up_to_the_ends():
    """At both ends and in the middle every one of the 2^23 intervals, elsewhere one in a
    thousand.
    """
    number = np.unique(
        np.r_[:30_000, 2**22 - 30_000 : 2**22 + 30_000, 2**23 - 30_000 : 2**23, : 2**23 : 997]
    )
    exact = (number + 0.5) * 2.0**-22 - 1
    uniform = (jnp.asarray(number, jnp.float32) + 0.5) * jnp.float32(2**-22) - 1
    expected = -np.sign(exact) * scipy.special.ndtri((1 - np.abs(exact)) / 2)
    np.testing.assert_allclose(projection._normal_quantile(uniform), expected, rtol=5e-5)


@pytest.mark.parametrize("rows", [3, 512])
def test_signs_are_one_over_the_root_of_the_number_of_rows(rows):
    signs = whole(bits.public_words(jax.random.key(3)), "sign", rows)
    np.testing.assert_allclose(np.abs(signs), rows**-0.5, rtol=1e-6)
    assert len(np.unique(signs)) == 2


@pytest.mark.seconds
def test_entries_have_mean_0_variance_1_over_q_and_their_law():
    rows, items = 512, 2048
    words = bits.public_words(jax.random.key(11))
    normal = whole(words, "gaussian", rows, items) * rows**0.5
    assert scipy.stats.kstest(normal.ravel(), "norm").pvalue > 1e-4
    signs = whole(words, "sign", rows, items) * rows**0.5
    np.testing.assert_allclose(np.abs(signs), 1, rtol=1e-6)
    for phi in (normal, signs):
        assert abs(phi.mean()) < 4 / phi.size**0.5
        # neighbours in a column, and in a row
        assert abs((phi[1:] * phi[:-1]).mean()) < 4 / phi.size**0.5
        assert abs((phi[:, 1:] * phi[:, :-1]).mean()) < 4 / phi.size**0.5


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_products_in_blocks_are_those_with_all_of_phi(law, monkeypatch):
    words = bits.public_words(jax.random.key(3))
    phi = whole(words, law)
    compressed = jax.random.normal(jax.random.key(4), (Q, RANK))
    items = jax.random.normal(jax.random.key(5), (ITEMS, RANK))
    for entries in (1, 4 * Q, 1 << 17):  # blocks of one, a last one that stands over, all in one
        monkeypatch.setattr(projection, "LIFT_ENTRIES", entries)
        monkeypatch.setattr(projection, "BLOCK_ENTRIES", entries)
        np.testing.assert_allclose(projection.apply(words, law, items, Q), phi @ items, atol=5e-6)
        np.testing.assert_allclose(projection.gram(words, law, Q, ITEMS), phi @ phi.T, atol=5e-6)
        np.testing.assert_allclose(
            projection.apply_transpose(words, law, compressed, ITEMS), phi.T @ compressed, atol=5e-6
        )
        inverse = projection.gram_inverse(words, law, Q, ITEMS)
        lifted = projection.apply_pseudo_inverse(words, law, inverse, compressed, ITEMS)
        np.testing.assert_allclose(lifted, np.linalg.pinv(phi) @ compressed, atol=5e-6)


TWO_DEVICES = """
import jax
from dpmf_jax.noise import bits
from dpmf_jax.kernels import projection
from tests.cases.processes import python
projection.LIFT_ENTRIES = 21
words = bits.public_words(jax.random.key(3))
compressed = jax.random.normal(jax.random.key(4), (7, 3))
inverse = projection.gram_inverse(words, "gaussian", 7, 25)
alone, spread = (
    jax.jit(lambda part: projection.apply_pseudo_inverse(words, "gaussian", inverse, part, 25,
        num_devices=number))(
        compressed
    )
    for number in (1, 2)
)
assert spread.shape == (25, 3) and spread.sharding.num_devices == 2 and spread.is_fully_replicated
print(float(abs(alone - jax.device_get(spread)).max()))
"""


@pytest.mark.seconds
def test_a_lift_over_two_devices_is_that_of_one():
    assert float(python(TWO_DEVICES, devices=2).stdout) < 1e-6
