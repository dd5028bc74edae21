"""The count sketch against plain Python: hash values, tables, queries; golden values, sizes, and
what is refused.
"""

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmf_jax.kernels import count_sketch
from dpmf_jax.kernels.count_sketch import ITEMS, PRIME, USERS, Hashes
from dpmf_jax.noise import keys

pytestmark = pytest.mark.usefixtures("quick_compilation")

cells = jax.jit(count_sketch.cells, static_argnames=("rank", "width"))
query = jax.jit(count_sketch.query, static_argnames=("rank", "how"))
update = jax.jit(count_sketch.update)
EDGES = (0, 1, 2**15, 2**16 - 1, 2**16, 2**30, PRIME - 1)
GOLDEN_WORDS = [
    *(898629804, 464490951, 2073012052, 675773846, 1236986287, 695081809),
    *(1233730501, 1142947680, 762153071, 483525356, 214074250, 750882400),
    *(1896247337, 1358413094, 1146326936, 1297507667, 291486269, 590253338),
    *(411573576, 1834330392, 127644905, 2087178601, 957683670, 356912986),
]
GOLDEN_ADDRESSES = [
    *(416810, 49369, 681931, 879059, 14791, 150525),
    *(162623, 753204, 343782, 716835, 487209, 257584),
    *(650793, 18230, 385671, 670661, 534926, 399192),
]
GOLDEN_SIGNS = "-++++--++---++-+--"


def threefry(key, counter):
    """The first word of Threefry-2x32-20 in Python's own numbers."""
    ks = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (counter[0] + ks[0]) % 2**32, (counter[1] + ks[1]) % 2**32
    for group in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = (x + y) % 2**32
            y = ((y << rotation | y >> 32 - rotation) % 2**32) ^ x
        x, y = (x + ks[(group + 1) % 3]) % 2**32, (y + ks[(group + 2) % 3] + group + 1) % 2**32
    return x


def value(words, identity, component):
    first, second, offset = map(int, words)
    return ((first + second * component) * (identity + 1) + offset) % PRIME


def oracle(hashes, family, ids, rank, width):
    """(addresses, signs), each [ids, depth, rank]."""
    words = np.asarray(hashes.words)[family]
    shape = (len(ids), words.shape[1], rank)
    addresses, signs = np.zeros(shape, np.int64), np.zeros(shape)
    for at in np.ndindex(shape):
        place, row, component = at
        addresses[at] = value(words[0, row], int(ids[place]), component) * width // PRIME
        signs[at] = 1 - 2 * (value(words[1, row], int(ids[place]), component) % 2)
    return addresses, signs


def whole(key, shape, most=50):
    """Whole numbers as float32: their sums and halves are exact, in any order."""
    return jax.random.randint(key, shape, -most, most + 1).astype(jnp.float32)


def test_the_generator_here_gives_the_known_answers_of_threefry():
    assert threefry((0, 0), (0, 0)) == 0x6B200159
    assert threefry((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)) == 0xC4923A9C


@pytest.mark.parametrize("partitionable", [True, False])
def test_words_are_those_of_the_documented_derivation_under_every_setting_of_jax(partitionable):
    with jax.threefry_partitionable(partitionable):
        words = np.asarray(count_sketch.hashes(keys.from_seed(2**40 + 7), 5).words)
    assert words.shape == (2, 2, 5, 3)
    assert words.dtype == np.uint32
    for family, kind, row, place in np.ndindex(words.shape):
        drawn = threefry((2**8, 7), (row, 6 * family + 3 * kind + place)) >> 1
        assert words[family, kind, row, place] == drawn % PRIME
    np.testing.assert_array_equal(
        words[:, :, :2], count_sketch.hashes(keys.from_seed(2**40 + 7), 2).words
    )


def test_a_word_is_never_the_prime(monkeypatch):
    monkeypatch.setattr(
        count_sketch,
        "threefry_2x32",
        lambda key, counter: jnp.full(counter.shape, 2**32 - 1, jnp.uint32),
    )
    assert not np.any(count_sketch.hashes(keys.from_seed(0), 2).words)


def test_golden_values_of_seed_0():
    hashes = count_sketch.hashes(keys.from_seed(0), 2)
    assert np.asarray(hashes.words).ravel().tolist() == GOLDEN_WORDS
    addresses, signs = count_sketch.cells(
        hashes, ITEMS, jnp.array([0, 12345, PRIME - 2]), rank=3, width=1_000_003
    )
    assert np.asarray(addresses).ravel().tolist() == GOLDEN_ADDRESSES
    assert "".join("-+"[int(sign > 0)] for sign in np.asarray(signs).ravel()) == GOLDEN_SIGNS


def test_hash_values_are_those_of_whole_numbers_at_every_edge():
    triples = np.array(list(itertools.product(EDGES, EDGES, EDGES)), np.uint32)
    hashes = Hashes(jnp.asarray(np.broadcast_to(triples, (2, 2, *triples.shape))))
    ids = np.array([*EDGES[:-1], 2, 2**16 + 1, PRIME // 2, PRIME - 3, PRIME - 2], np.int32)
    for width in (1, 2, 3, 2**16 - 1, 2**16, 2**16 + 1, 1_099_999, 2**30, PRIME - 1, PRIME):
        addresses, signs = cells(hashes, USERS, ids, rank=2, width=width)
        assert addresses.dtype == jnp.int32
        assert signs.dtype == jnp.float32
        first, second, offset = (part.astype(object)[:, None] for part in triples.T)
        numbers = (first + second * np.arange(2).astype(object)) * (
            np.array(ids, object)[:, None, None] + 1
        )
        numbers = (numbers + offset) % PRIME
        np.testing.assert_array_equal(addresses, (numbers * width // PRIME).astype(np.int64))
        np.testing.assert_array_equal(signs, (1 - 2 * (numbers % 2)).astype(np.float32))


def test_values_of_all_components_at_the_edges():
    """Up to the largest rank; a width of the prime makes addresses the values themselves."""
    words = np.array(
        [(3, step, 5) for step in EDGES] + [(PRIME - 1, PRIME - 1, PRIME - 1)], np.int64
    )
    hashes = Hashes(jnp.asarray(np.broadcast_to(words, (2, 2, *words.shape)), jnp.uint32))
    ids = np.array([0, 1, 2**16, PRIME - 2])
    found, _ = cells(hashes, ITEMS, ids, rank=2**15, width=PRIME)
    slopes = (words[:, :1] + words[:, 1:2] * np.arange(2**15)) % PRIME
    np.testing.assert_array_equal(
        found, (slopes * (ids[:, None, None] + 1) % PRIME + words[:, 2:]) % PRIME
    )


def test_packed_cells_are_the_cells(key):
    hashes = count_sketch.hashes(key, 3)
    user, item = jnp.array([0, 7, PRIME - 2], jnp.int32), jnp.array([5, 1, 123456], jnp.int32)
    packed = jax.jit(count_sketch.packed_cells, static_argnames=("rank", "width"))(
        hashes, user, item, rank=6, width=1001
    )
    assert packed.shape == (2, 3, 6, 3)
    for family, ids in enumerate((user, item)):
        places, signs = cells(hashes, family, ids, rank=6, width=1001)
        expected = 2 * (places + jnp.arange(3)[:, None] * 1001) + (signs < 0)
        np.testing.assert_array_equal(packed[family].transpose(2, 0, 1), expected)


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, PRIME - 2), min_size=4, max_size=4))
def test_cells_are_those_of_whole_numbers(seed, ids):
    width = (77, 1_100_003, PRIME - 5)[seed % 3]
    hashes = count_sketch.hashes(keys.from_seed(seed), 3)
    for family in (USERS, ITEMS):
        found = cells(hashes, family, np.array(ids, np.int32), rank=5, width=width)
        for ours, expected in zip(found, oracle(hashes, family, ids, 5, width), strict=True):
            np.testing.assert_array_equal(ours, expected)


def test_an_id_outside_counts_as_its_remainder(key):
    hashes = count_sketch.hashes(key, 100)
    outside = np.array(
        [PRIME, PRIME + 5, 3_000_000_000, 2**32 - 12_345, 2**32 - 2, 2**32 - 1], np.uint32
    )
    inside = (outside.astype(np.int64) % PRIME).astype(np.int32)
    found = (cells(hashes, USERS, ids, rank=2, width=PRIME) for ids in (outside, inside))
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.one_case
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_update_and_query_are_those_of_a_table_in_python(key, depth):
    """Small tables, so that most cells are shared, and an id twice in a batch."""
    k_hash, k_table, k_change = jax.random.split(key, 3)
    hashes, ids, rank, width = (
        count_sketch.hashes(k_hash, depth),
        np.array([3, 0, 70_000, 3]),
        4,
        11,
    )
    table, change = whole(k_table, (depth, width)), whole(k_change, (len(ids), rank))
    for family in (USERS, ITEMS):
        addresses, signs = oracle(hashes, family, ids, rank, width)
        expected = np.array(table)
        for place, row, component in np.ndindex(addresses.shape):
            at = place, row, component
            expected[row, addresses[at]] += signs[at] * change[place, component]
        after = update(table, hashes, family, ids, change)
        np.testing.assert_array_equal(after, expected)
        each = signs * expected[np.arange(depth)[:, None], addresses]
        for how, of_rows in (("mean", np.mean), ("median", np.median)):
            found = query(after, hashes, family, ids, rank=rank, how=how)
            np.testing.assert_allclose(found, of_rows(each, axis=1), rtol=1e-6)


@pytest.mark.seconds
@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 3, 4]),
    st.sampled_from([1, 7]),
    st.integers(-100, 100),
)
def test_one_coordinate_moves_by_its_update_whatever_the_table_holds(seed, depth, width, change):
    """Mean and median, also where the table is one cell wide."""
    k_hash, k_table = jax.random.split(keys.from_seed(seed))
    hashes, table = count_sketch.hashes(k_hash, depth), whole(k_table, (depth, width))
    identity, component = seed % 1000, seed % 3
    after = update(table, hashes, ITEMS, identity, jnp.zeros(3).at[component].set(change))
    for how in ("mean", "median"):
        was, now = (
            query(t, hashes, ITEMS, identity, rank=3, how=how)[component] for t in (table, after)
        )
        np.testing.assert_allclose(now - was, change, atol=2e-5)


@pytest.mark.seconds
@pytest.mark.parametrize("how", ["mean", "median"])
def test_a_batch_that_shares_no_cell_moves_by_its_update_and_one_that_does_does_not(key, how):
    depth, rank, ids = 4, 4, jnp.arange(8)
    k_hash, k_table, k_change = jax.random.split(key, 3)
    hashes, change = count_sketch.hashes(k_hash, depth), whole(k_change, (8, rank), 1000)
    for width, shared in ((100_000, False), (20, True)):
        addresses = np.asarray(cells(hashes, USERS, ids, rank=rank, width=width)[0])
        assert shared == any(len(np.unique(addresses[:, row])) < 8 * rank for row in range(depth))
        table = whole(k_table, (depth, width))
        after = update(table, hashes, USERS, ids, change)
        was, now = (query(t, hashes, USERS, ids, rank=rank, how=how) for t in (table, after))
        assert bool(jnp.all(now - was == change)) == (not shared)


def test_the_mean_is_off_by_one_over_depth_of_the_other_change_for_each_shared_cell(key):
    hashes, ids, change = count_sketch.hashes(key, 4), jnp.array([4, 9]), jnp.array([[8.0], [20.0]])
    addresses, signs = (np.asarray(x)[..., 0] for x in cells(hashes, USERS, ids, rank=1, width=3))
    assert 0 < sum(addresses[0] == addresses[1]) < 4
    found = query(update(jnp.zeros((4, 3)), hashes, USERS, ids, change), hashes, USERS, ids, rank=1)
    error = np.sum((addresses[0] == addresses[1]) * signs[0] * signs[1]) / 4
    np.testing.assert_allclose(found - change, [[20 * error], [8 * error]], atol=1e-5)


@pytest.mark.seconds
def test_sketches_add_up(key):
    """Bit for bit for whole numbers, in any order; else within rounding."""
    k_hash, *ks = jax.random.split(key, 5)
    hashes, empty = count_sketch.hashes(k_hash, 4), jnp.zeros((4, 37))
    ids, others = jnp.arange(50), jnp.arange(25, 90)
    for draw, tolerance in ((whole, 0), (jax.random.normal, 1e-6)):
        one, other = draw(ks[0], (50, 6)), draw(ks[1], (65, 6))
        first = update(empty, hashes, USERS, ids, one)
        second = update(empty, hashes, ITEMS, others, other)
        both = update(first, hashes, ITEMS, others, other)
        again = update(empty, hashes, USERS, ids, 3 * one)
        scale = float(jnp.abs(both).max())
        np.testing.assert_allclose(first + second, both, rtol=0, atol=4 * tolerance * scale)
        np.testing.assert_allclose(again, 3 * first, rtol=0, atol=4 * tolerance * scale)
        np.testing.assert_allclose(
            update(both, hashes, USERS, ids, -one), second, rtol=0, atol=4 * tolerance * scale
        )
        merged = query(first + second, hashes, USERS, ids, rank=6)
        apart = [query(t, hashes, USERS, ids, rank=6) for t in (first, second)]
        np.testing.assert_allclose(merged, apart[0] + apart[1], rtol=0, atol=4 * tolerance * scale)


def test_depth_1_is_feature_hashing(key):
    """Weinberger et al. (ICML 2009): φ_c(x) = Σ s(e)·x_e over e with h(e) = c, and x_e read back as
    s(e)·φ_h(e).
    """
    hashes, x, width = count_sketch.hashes(key, 1), whole(key, (30, 5)), 64
    addresses, signs = oracle(hashes, USERS, range(30), 5, width)
    phi = np.bincount(addresses.ravel(), (signs[:, 0] * np.asarray(x)).ravel(), width)
    table = update(jnp.zeros((1, width)), hashes, USERS, jnp.arange(30), x)
    np.testing.assert_array_equal(table[0], phi)
    for how in ("mean", "median"):
        found = query(table, hashes, USERS, jnp.arange(30), rank=5, how=how)
        np.testing.assert_array_equal(found, signs[:, 0] * phi[addresses[:, 0]])


@pytest.mark.seconds
def test_shapes_of_ids_and_a_compiled_program_change_nothing(key):
    hashes, table = count_sketch.hashes(key, 4), whole(key, (4, 101))
    ids = jnp.arange(6)
    rows = query(table, hashes, USERS, ids, rank=3)
    np.testing.assert_array_equal(
        query(table, hashes, USERS, ids.reshape(2, 3), rank=3).reshape(6, 3), rows
    )
    np.testing.assert_array_equal(query(table, hashes, USERS, 4, rank=3), rows[4])
    one = jax.vmap(lambda i: query(table, hashes, USERS, i, rank=3))(ids)
    np.testing.assert_array_equal(one, rows)
    change = whole(key, (6, 3))
    after = update(table, hashes, USERS, ids, change)
    eager = count_sketch.update(table, hashes, USERS, ids, change)
    np.testing.assert_array_equal(eager, after)
    np.testing.assert_array_equal(
        update(table, hashes, USERS, ids.reshape(2, 3), change.reshape(2, 3, 3)), after
    )


def sizes(jaxpr):
    """The sizes of all that a program computes, inside its parts too."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):
                yield from sizes(inner)


@pytest.mark.parametrize("how", ["mean", "median"])
def test_a_batch_of_a_million_users_makes_the_table_and_things_of_a_batch_only(how):
    users, items, rank, depth, batch = 1_000_000, 100_000, 16, 4, 256
    width = count_sketch.width(users, items, rank, depth=depth, gain=4)
    table = jax.ShapeDtypeStruct((depth, width), jnp.float32)
    words = jax.ShapeDtypeStruct((2, 2, depth, 3), jnp.uint32)
    ids = jax.ShapeDtypeStruct((batch,), jnp.int32)

    def both(table, words, ids):
        vectors = count_sketch.query(table, Hashes(words), USERS, ids, rank=rank, how=how)
        return count_sketch.update(table, Hashes(words), USERS, ids, -0.1 * vectors)

    found = set(sizes(jax.make_jaxpr(both)(table, words, ids).jaxpr))
    assert max(found - {depth * width}) <= batch * depth * rank
    assert 4 * depth * width == (users + items) * rank
    memory = jax.jit(both, donate_argnums=0).lower(table, words, ids).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 16 * 4 * batch * depth * rank


def test_width_and_gain_are_the_papers():
    assert count_sketch.width(6040, 3952, 32, depth=4, gain=4) == 19_984
    assert count_sketch.width(6040, 3952, 8, depth=1, gain=1) == 79_936
    assert count_sketch.width(3, 4, 3, depth=4, gain=2) == 3  # 21/8
    # the double next to 0.7 would give 1001
    assert count_sketch.width(60, 10, 10, depth=1, gain=0.7) == 1000
    assert count_sketch.gain(6040, 3952, 32, depth=4, width=19_984) == 4


@given(
    *[st.integers(1, 10**6)] * 2,
    st.integers(1, 64),
    st.integers(1, 8),
    st.sampled_from([1, 1.5, 2, 4, 16.25]),
)
def test_the_width_is_the_least_that_does_not_exceed_the_gain(users, items, rank, depth, gain):
    width = count_sketch.width(users, items, rank, depth=depth, gain=gain)
    assert count_sketch.gain(users, items, rank, depth=depth, width=width) <= gain
    assert width == 1 or count_sketch.gain(users, items, rank, depth=depth, width=width - 1) > gain


@pytest.mark.parametrize(("how", "factor"), [("mean", 1.0), ("median", 1.0922)])
def test_a_coordinate_of_a_random_table_has_the_scale(key, how, factor):
    """The variance within 4.5 of its standard deviations, were coordinates independent; the few
    that share cells count twice.
    """
    k_hash, k_table = jax.random.split(key)
    hashes, table = (
        count_sketch.hashes(k_hash, 4),
        count_sketch.random_table(k_table, 4, 2**18, 0.3),
    )
    assert table.dtype == jnp.float32
    x = np.asarray(
        query(table, hashes, USERS, jnp.arange(4000), rank=8, how=how), np.float64
    ).ravel()
    assert abs(x.mean()) < 4.5 * 0.3 * factor / x.size**0.5
    assert abs(np.mean(x**2) / (0.3 * factor) ** 2 - 1) < 2 * 4.5 * (2 / x.size) ** 0.5


@pytest.mark.seconds
def test_what_makes_no_sense_is_refused(key):
    hashes = count_sketch.hashes(key, 2)
    refused = {
        "depth must be an integer of at least 1": lambda: count_sketch.hashes(key, 0),
        "width must be from 1": lambda: count_sketch.cells(hashes, USERS, 0, rank=1, width=0),
        "width must be from 1 ": lambda: count_sketch.cells(
            hashes, USERS, 0, rank=1, width=PRIME + 1
        ),
        "as many rows": lambda: count_sketch.query(jnp.zeros((3, 5)), hashes, USERS, 0, rank=1),
        "as many rows as": lambda: count_sketch.update(
            jnp.zeros((1, 5)), hashes, USERS, 0, jnp.zeros(1)
        ),
        "how must be": lambda: inspect.unwrap(count_sketch.query)(
            jnp.zeros((2, 5)), hashes, USERS, 0, rank=1, how="mode"
        ),
        "gain must be positive": lambda: count_sketch.width(1, 1, 1, depth=1, gain=0),
        "gain must be positive and": lambda: count_sketch.width(
            1, 1, 1, depth=1, gain=float("nan")
        ),
        "at most 2147483647 cells; got 2 rows": lambda: count_sketch.width(
            10**9, 1, 4, depth=2, gain=1
        ),
        "rank must be an integer of at least 1": lambda: count_sketch.width(
            1, 1, 0, depth=1, gain=1
        ),
        "rank must be at most 32768; got 32769": lambda: count_sketch.cells(
            hashes, USERS, 0, rank=2**15 + 1, width=9
        ),
        "at most 2147483647 cells; got 2 rows of 1073741824": lambda: count_sketch.packed_cells(
            hashes, jnp.arange(2), jnp.arange(2), rank=1, width=2**30
        ),
        "width must be an integer of at least 1": lambda: count_sketch.gain(
            1, 1, 1, depth=1, width=0
        ),
        "depth must be an integer of at least 1, got -1": lambda: count_sketch.random_table(
            key, -1, 1, 1.0
        ),
        "at most 2147483647 cells; got": lambda: jax.eval_shape(
            lambda table: count_sketch.query(table, hashes, USERS, 0, rank=1),
            jax.ShapeDtypeStruct((2, 2**30), jnp.float32),
        ),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError, match=message):
            call()
