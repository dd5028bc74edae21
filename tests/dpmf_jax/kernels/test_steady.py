"""Arithmetic whose bits no compiler changes: NumPy makes the same of it, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax.kernels import steady

ROWS = 1_000


def formula(rows, square, number):
    """Products that sums take, a quotient by a number of every row, sums, matrices, a branch."""
    centred = rows - jnp.sum(rows, axis=0) / number
    moved = centred * 3.1 + rows * centred
    both = (moved.T @ centred) / number
    turned = moved @ jnp.where(number > 0, square, both)
    return turned / jnp.sum(turned**2), both


def by_numpy(rows, square, number):
    """The same in NumPy's float32, one rounding at a time."""
    one = np.float32(1)

    def total(numbers):
        wide = min(steady.WIDE, 1 << (len(numbers) - 1).bit_length())
        chunks = -(-len(numbers) // wide)
        filled = np.zeros((chunks * wide, *numbers.shape[1:]), np.float32)
        filled[: len(numbers)] = numbers
        parts = filled.reshape(chunks, wide, *numbers.shape[1:])
        sums = parts[0]
        for part in parts[1:]:
            sums = sums + part
        while len(sums) > 1:
            sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
        return sums[0]

    centred = rows - total(rows) * (one / number)
    moved = centred * np.float32(3.1) + rows * centred
    columns = [total(moved * column[:, None]) for column in centred.T]
    both = np.stack(columns, axis=1) * (one / number)
    turned = np.zeros((len(rows), square.shape[1]), np.float32)
    for left, right in zip(moved.T, square if number > 0 else both, strict=True):
        turned = turned + left[:, None] * right
    return turned * (one / total((turned**2).reshape(-1))), both


@pytest.fixture
def given():
    random = np.random.default_rng(0)
    rows, square = random.normal(size=(ROWS, 5)), random.normal(size=(5, 5))
    return rows.astype(np.float32), square.astype(np.float32), np.float32(7.7)


def test_every_bit_is_numpy_s(given):
    found = jax.jit(steady.alike(formula))(jnp.int32(0), *given)
    for ours, theirs in zip(found, by_numpy(*given), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_stands_beside_it_changes_nothing(given):
    """The compiler knows more of the inputs here, and has more uses for every number."""
    alone = jax.jit(steady.alike(formula))(jnp.int32(0), *given)

    @jax.jit
    def program(zero, rows, square, number):
        rows, square = 2 * (rows / 2), square + 0 * number
        found = steady.alike(formula)(steady.hidden_zero(zero), rows, square, number)
        return found, jax.tree.map(lambda leaf: leaf * number + 1, found)

    beside, _ = program(jnp.int32(3), *given)
    for ours, theirs in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_it_computes_what_the_function_does(given):
    found = jax.jit(steady.alike(formula))(jnp.int32(0), *given)
    for ours, theirs in zip(found, formula(*given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, steady.WIDE, steady.WIDE + 1, 3 * steady.WIDE + 7])
def test_totals_leave_nothing_out(rows):
    numbers = jnp.asarray(np.random.default_rng(1).integers(-99, 99, (rows, 2)), jnp.float32)
    np.testing.assert_array_equal(steady.total(numbers), np.sum(numbers, axis=0))


@pytest.mark.parametrize(
    "fn",
    [
        lambda rows: jax.lax.fori_loop(0, 3, lambda _, row: row * row, rows),
        lambda rows: jnp.einsum("ab,ac,ad->bcd", rows, rows, rows),
        lambda rows: jnp.einsum("ab,ab->a", rows, rows),
    ],
)
def test_what_it_cannot_keep_steady_is_refused(fn):
    with pytest.raises(ValueError, match=r"fixed roundings|a product of"):
        steady.alike(fn)(jnp.int32(0), jnp.ones((3, 2)))


@pytest.mark.parametrize("exponent", [-2, -1, 2, 3])
def test_a_power_is_products_each_rounded(given, exponent):
    rows = given[0]
    found = jax.jit(steady.alike(lambda x: jax.lax.integer_pow(x, exponent)))(jnp.int32(0), rows)
    expected = np.ones_like(rows)
    for _ in range(abs(exponent)):
        expected = expected * rows
    np.testing.assert_array_equal(found, 1 / expected if exponent < 0 else expected)
