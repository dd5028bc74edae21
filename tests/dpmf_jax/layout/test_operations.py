"""Laws of the layout: equal to dense arithmetic, whatever the kind, the order, the padding, the
blocks, the devices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmf_jax import layout
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import split
from tests.cases import layout as cases
from tests.cases.processes import python


@pytest.mark.one_case
@pytest.mark.parametrize("name", cases.MASKS)
@pytest.mark.parametrize("kind", cases.KINDS)
def test_sums_equal_a_dense_reference(kind, name):
    ratings = cases.make_ratings(cases.MASKS[name]())
    trees = cases.factors(ratings)
    cases.assert_close(
        cases.all_sums(layout.make(ratings, kind=kind), *trees), cases.reference(ratings, *trees)
    )


def test_blocks_and_large_tables_change_nothing():
    ratings = cases.make_ratings(cases.ragged())
    users, items, _ = trees = cases.factors(ratings, rank=2048)
    data = layout.make(ratings, kind="split")
    pieces, width = data.stored.by_user.column.shape
    fit = split.BLOCK_BYTES // (width * 2048 * 4)
    assert split.num_blocks(pieces, fit) > 1  # the case that this test is about,
    assert items.nbytes < split.LARGE_TABLE < users.nbytes  # with a table of either size
    cases.assert_close(cases.all_sums(data, *trees), cases.reference(ratings, *trees))


@given(st.integers(1, 200), st.integers(1, 5_000_000))
def test_blocks_divide_the_pieces_and_fill_up_little(shards, pieces):
    grain = split._grain(pieces // shards)
    padded = -(-pieces // (shards * grain)) * grain
    assert padded <= pieces / shards * 17 / 16 + 4
    for most in (1, 16, 40, 200, 4096):
        blocks = split.num_blocks(padded, most)
        assert padded % blocks == 0
        assert blocks == 1 or padded // blocks >= split.LEAST_BLOCK
        assert padded < 2048 or most / 2 < padded // blocks <= max(most, 16) or most > 128


@given(
    st.integers(1, 90), st.integers(1, 90), st.floats(0, 1), st.integers(1, 3), st.integers(0, 1000)
)
def test_split_holds_the_ratings_in_any_order(num_users, num_items, density, shards, seed):
    mask = np.random.default_rng(seed).random((num_users, num_items)) < density
    ratings = cases.make_ratings(mask, seed)
    expected = sorted(zip(ratings.user, ratings.item, ratings.value, strict=True))
    sides = split.make(ratings, num_shards=shards)
    for side, flip, num_columns in zip(sides, (1, -1), (num_items, num_users), strict=True):
        assert len(side.row) % shards == 0
        assert (np.diff(side.row) >= 0).all()
        piece, slot = np.nonzero(side.column != num_columns)
        pairs = (side.row[piece], side.column[piece, slot])[::flip]
        assert sorted(zip(*pairs, side.value[piece, slot], strict=True)) == expected
        assert not side.value[side.column == num_columns].any()
    shuffled = split.make(
        ratings.take(np.random.default_rng(seed).permutation(len(ratings))), num_shards=shards
    )
    jax.tree.map(np.testing.assert_array_equal, shuffled, sides)


def test_padding_of_a_split_layout_reads_zeros():
    ratings = cases.make_ratings(cases.ragged())
    users, items, _ = cases.factors(ratings)

    def careless(row, columns, values, present):
        return jnp.sum(columns, axis=0), jnp.sum(values)

    actual = layout.sum_by_user(layout.make(ratings, kind="split"), careless, users, items)
    mask = np.zeros((ratings.num_users, ratings.num_items))
    mask[ratings.user, ratings.item] = 1
    cases.assert_close(
        actual, (mask @ items, np.bincount(ratings.user, ratings.value, ratings.num_users))
    )


@pytest.mark.parametrize("kind", cases.KINDS)
def test_map_ratings_gives_each_rating_its_own_and_zero_elsewhere(kind):
    ratings = cases.make_ratings(cases.ragged())
    users, items, center = cases.factors(ratings)
    data = layout.make(ratings, kind=kind)
    out = np.asarray(
        layout.map_ratings(data, cases.residuals, users, {"factors": items, "center": center})
    )
    values, present = (np.asarray(part) for part in layout.stored_values(data))
    assert (out[~present] == 0).all()
    np.testing.assert_allclose(np.sort(values[present]), np.sort(ratings.value))
    products = np.einsum("nk,nk->n", users[ratings.user], items[ratings.item])
    expected = ratings.value - center[ratings.item] - products
    np.testing.assert_allclose(np.sort(out[present]), np.sort(expected), atol=2e-5)


@pytest.mark.parametrize("kind", cases.KINDS)
def test_neighbours_equal_the_layout_of_the_edited_ratings(kind):
    ratings = cases.make_ratings(cases.ragged())
    trees = cases.factors(ratings)
    data = layout.make(ratings, kind=kind)
    for name, edit, edited in cases.edits(ratings):
        neighbour = edit(data)
        assert jax.tree.structure(neighbour) == jax.tree.structure(data), name
        assert jax.tree.map(jnp.shape, neighbour) == jax.tree.map(jnp.shape, data), name
        cases.assert_close(cases.all_sums(neighbour, *trees), cases.reference(edited, *trees))
        values, present = layout.stored_values(neighbour)
        np.testing.assert_array_equal(
            np.sort(np.asarray(values)[np.asarray(present)]), np.sort(edited.value)
        )


@pytest.mark.seconds
@pytest.mark.parametrize("kind", cases.KINDS)
def test_one_program_serves_all_neighbours_and_stacks_of_them(kind):
    ratings = cases.make_ratings(cases.ragged())
    users, items, center = cases.factors(ratings)
    data = layout.make(ratings, kind=kind)
    chosen = slice(0, 4)
    addresses = layout.locate(data, ratings.user[chosen], ratings.item[chosen])
    worlds = jax.vmap(layout.remove_rating, in_axes=(None, 0))(data, addresses)
    together = jax.vmap(cases.all_sums, in_axes=(0, None, None, None))(worlds, users, items, center)
    cases.all_sums(data, users, items, center)
    compiled = len(cases.TRACES)
    for world in range(4):
        keep = np.arange(len(ratings)) != world
        expected = cases.reference(ratings.take(keep), users, items, center)
        cases.assert_close(jax.tree.map(lambda leaf, at=world: leaf[at], together), expected)
        alone = layout.remove_rating(data, jax.tree.map(lambda leaf, at=world: leaf[at], addresses))
        cases.assert_close(cases.all_sums(alone, users, items, center), expected)
    assert len(cases.TRACES) == compiled
    many = jax.vmap(cases.all_sums, in_axes=(None, 0, None, None))(
        data, np.stack([users, 2 * users]), items, center
    )
    cases.assert_close(
        jax.tree.map(lambda leaf: leaf[1], many), cases.reference(ratings, 2 * users, items, center)
    )


@pytest.mark.parametrize("kind", cases.KINDS)
def test_located_ratings_are_where_they_are_said_to_be(kind):
    ratings = cases.make_ratings(cases.ragged())
    data = layout.make(ratings, kind=kind)
    address = jax.tree.map(np.asarray, layout.locate(data, ratings.user, ratings.item))
    if kind == "split":
        np.testing.assert_array_equal(
            np.asarray(data.stored.by_user.value)[address.user_piece, address.user_slot],
            ratings.value,
        )
        np.testing.assert_array_equal(
            np.asarray(data.stored.by_item.value)[address.item_piece, address.item_slot],
            ratings.value,
        )
    np.testing.assert_array_equal(address.user, ratings.user)
    removed = layout.remove_rating(data, layout.locate(data, ratings.user[0], ratings.item[0]))
    with pytest.raises(UsageError, match="no such rating"):
        layout.locate(removed, ratings.user[0], ratings.item[0])
    for user, item in ((3, 0), (0, 2), (70, 0), (0, 40), (-1, 0), (0, -1)):
        with pytest.raises(UsageError, match="no such rating"):
            layout.locate(data, user, item)


def test_padding_the_rank_adds_only_zeros():
    users = jnp.ones((4, 20))
    padded = layout.pad_rank(users)
    assert padded.shape == (4, 24)
    np.testing.assert_array_equal(padded[:, :20], users)
    assert not padded[:, 20:].any()
    assert layout.pad_rank(jnp.ones((4, 64))).shape == (4, 64)


def test_everything_on_the_device_is_at_most_four_bytes_wide():
    for kind in cases.KINDS:
        data = layout.make(cases.make_ratings(cases.ragged()), kind=kind)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(data)} <= {"float32", "int32", "bool"}


def test_the_choice_depends_on_public_sizes_only():
    thin, thick = cases.ragged(), cases.ragged()
    thick[:] = False
    thick.ravel()[: thin.sum()] = True  # as many ratings, of fewer users
    kinds = {layout.make(cases.make_ratings(mask)).kind for mask in (thin, thick)}
    assert len(kinds) == 1
    assert layout.choose(6040, 3706, 1_000_209, backend="cpu") == "split"
    assert layout.choose(20, 7, 50, backend="cpu") == "dense"
    assert layout.choose(1000, 1000, 950_000, backend="cpu") == "dense"


def test_bad_arguments_are_refused():
    ratings = cases.make_ratings(cases.lone())
    with pytest.raises(UsageError, match="unknown layout"):
        layout.make(ratings, kind="sparse")
    for devices in (0, len(jax.devices()) + 1):
        with pytest.raises(UsageError, match="devices"):
            layout.make(ratings, num_devices=devices)


def test_description_names_kind_and_sizes():
    ratings = cases.make_ratings(cases.ragged())
    for kind in cases.KINDS:
        text = layout.describe(layout.make(ratings, kind=kind))
        assert text.startswith(f"{kind} layout, {len(ratings)} ratings, 70 users x 40 items")


@pytest.mark.seconds
def test_sharded_equals_unsharded():
    python(
        """
        import jax, numpy as np
        from dpmf_jax import layout
        from tests.cases import layout as t
        assert len(jax.devices()) == 4
        for name in ("ragged", "lone", "none"):
            ratings = t.make_ratings(t.MASKS[name]())
            trees = t.factors(ratings)
            for kind in t.KINDS:
                for devices in (3, 4) if name == "ragged" else (4,):
                    data = layout.make(ratings, kind=kind, num_devices=devices)
                    assert len(data.stored[0].devices() if kind == "dense" else data.stored[
                        0].row.devices()) == devices
                    t.assert_close(t.all_sums(data, *trees), t.reference(ratings, *trees))
                    out = np.asarray(t.mapped(data, *trees))
                    squared = t.reference(ratings, *trees)[0]["squared"].sum()
                    np.testing.assert_allclose((out ** 2).sum(), squared, rtol=1e-5, atol=1e-6)
                    if name == "ragged" and devices == 3:
                        for _, edit, edited in t.edits(ratings):
                            t.assert_close(t.all_sums(edit(data), *trees), t.reference(edited,
                                *trees))
                        stack = jax.tree.map(lambda leaf: jax.numpy.stack([leaf, leaf]), data)
                        both = jax.vmap(t.all_sums, in_axes=(0, None, None, None))(stack, *trees)
                        t.assert_close(jax.tree.map(lambda leaf: leaf[1], both), t.reference(
                            ratings, *trees))
        """,
        devices=4,
    )


@pytest.mark.seconds
def test_each_device_has_its_own_users():
    python(
        """
        import jax, numpy as np
        from dpmf_jax import layout
        from tests.cases import layout as t
        ratings = t.make_ratings(np.random.default_rng(0).random((400, 200)) < 0.5)
        data, one = layout.make(ratings, kind="split"), layout.make(ratings, kind="split",
            num_devices=1)
        assert data.num_devices == 4
        for device in range(4):
            for part in (data.stored.by_user.row, data.stored.by_item.column):
                users = set(np.unique(part.addressable_shards[device].data))
                assert users - {400} == set(range(100 * device, 100 * device + 100)), (device,
                    users)

        # all of them together are in the order of one device, with padding at the end
        places = one.stored.by_user.row.shape[0]
        for here, there in zip(jax.jit(layout.stored_values)(data), layout.stored_values(one)):
            np.testing.assert_array_equal(here[:places], there)
            assert not here[places:].any()
        users, items, center = trees = t.factors(ratings)
        here, there = (t.mapped(which, *trees) for which in (data, one))
        np.testing.assert_allclose(here[:places], there, rtol=1e-5, atol=1e-5)
        here, there = (t.folded(which, users, items) for which in (data, one))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), here,
            there)

        # sums per user are nobody else's business: only those per item are exchanged
        def exchanged(by, fn, *trees):
            program = jax.jit(lambda *trees: by(data, fn, *trees))
            return program.lower(*layout.replicate(data, trees)).compile().as_text().count(" all-")
        assert exchanged(layout.sum_by_user, t.by_user, users, {"factors": items,
            "center": center}) == 0
        assert exchanged(layout.sum_by_item, t.by_item, (items, center), users) > 0
        """,
        devices=4,
    )


@pytest.mark.one_case
@pytest.mark.parametrize("numbers", [1, 16, 24, 32, 64, 80, (4, 8)])
def test_rows_are_taken_to_the_last_bit(numbers):
    """Whatever the loop that copies them is made of: also what is not a number, infinite, or almost
    0.
    """
    shape = (6, *(numbers if isinstance(numbers, tuple) else (numbers,)))
    bits = np.random.default_rng(0).integers(0, 2**32, shape, np.uint32)
    # a signalling NaN, -0.0, the least number
    bits[0], bits[1], bits[2] = (
        0x7F800001,
        0x80000000,
        1,
    )
    table, index = jnp.asarray(bits.view(np.float32)), jnp.array([[0, 5], [2, 2], [1, 3]])
    zeros = jnp.zeros(4, jnp.int32)
    found = jax.jit(split.take)(table, index, zeros)
    np.testing.assert_array_equal(np.asarray(found).view(np.uint32), bits[index])
    ones = jnp.ones(shape)
    summed = jax.grad(lambda table: jnp.sum(split.take(table, index, zeros)))(ones)
    np.testing.assert_array_equal(summed[:, ..., 0].reshape(6, -1)[:, 0], [1, 1, 2, 1, 0, 1])


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((10, 10, 0), (8, 8)),
        ((10, 10, 90), (16, 16)),
        ((1_000, 4, 900), (8, 32)),
        ((6_040, 3_706, 1_000_209), (32, 32)),
        ((100_000, 6_000, 900_000), (16, 32)),
    ],
)
def test_pieces_are_no_wider_than_a_mean_row_needs(sizes, expected):
    users, items, num = sizes
    assert tuple(split.width(rows, num) for rows in (users, items)) == expected
    if num == 900:  # every user has one rating, or none
        ratings = cases.make_ratings(
            np.arange(users)[:, None] % 4 == np.arange(items) + np.arange(users)[:, None] // 900 * 9
        )
        [user, item] = layout.make(ratings, kind="split", num_devices=1).stored
        assert (user.column.shape[1], item.column.shape[1]) == expected
