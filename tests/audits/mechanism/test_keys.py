"""A key that is spent twice is counted, whoever spends it, and named in the replay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audits.mechanism import keys

SPENT = np.array([[1, 1], [2, 2], [3, 3], [4, 4]], np.uint32)


@pytest.mark.parametrize(("again", "measured"), [([], 0), ([1], 1), ([1, 1], 2), ([0, 3], 2)])
def test_every_key_that_was_spent_before_is_counted(again, measured):
    found = keys._distinct_finding(0, np.concatenate([SPENT, SPENT[again]]), {}, {})
    assert found.measured == found.lower == measured
    assert found.verdict == ("violated" if measured else "consistent")


def test_the_replay_names_the_first_key_and_its_places():
    found = keys._distinct_finding(0, np.concatenate([SPENT, SPENT[[2, 1]]]), {}, {})
    assert found.details["replay"] == {"spent_twice": [2, 2], "places": [1, 5]}


def test_a_program_s_keys_are_written_down_where_they_are_spent():
    def program(key):
        one, other = jax.random.split(key)
        return jax.random.bits(one) + jax.random.bits(other) + jax.random.bits(one)

    _, spent = keys.recorded(program)(jax.random.key(0))
    one, other = map(jax.random.key_data, jax.random.split(jax.random.key(0)))
    np.testing.assert_array_equal(spent, jnp.stack([one, other, one]))


def test_keys_of_gamma_variables_are_written_down_too():
    """They are drawn by an operation of their own: L2-Laplace noise has them."""
    _, spent = keys.recorded(lambda key: jax.random.gamma(key, 2.0))(jax.random.key(0))
    np.testing.assert_array_equal(spent, jax.random.key_data(jax.random.key(0))[None])
