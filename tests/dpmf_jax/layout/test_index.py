"""`layout.INDEX` among the columns is what an array of indices there would give, in every layout
and on two devices.
"""

import pytest

from tests.cases.processes import python


@pytest.mark.seconds
def test_the_index_of_columns_is_an_array_of_their_indices():
    python(
        """
        import jax
        import jax.numpy as jnp
        import numpy as np
        from dpmf_jax import layout
        from dpmf_jax.data import synthetic

        many = synthetic.generate(num_users=901, num_items=150, num_ratings=30000)
        users = jax.random.normal(jax.random.key(901), (901, 8))
        items = jax.random.normal(jax.random.key(150), (150, 8))

        def sums(row, columns, values, present):
            factors, index = columns
            weight = jnp.cos(1.0 + index + row)
            return (present * values * weight) @ factors, jnp.sum(present * (index == 7))

        @jax.jit
        def found_and_expected(data):
            return [
                by(data, sums, rows, (columns, index))
                for by, rows, columns in (
                    (layout.sum_by_user, jnp.arange(901.0), items),
                    (layout.sum_by_item, jnp.arange(150.0), users),
                )
                for index in (layout.INDEX, jnp.arange(len(columns)))
            ]

        for kind in ("split", "dense"):
            for number in (1, 2):
                by = found_and_expected(layout.make(many, kind=kind, num_devices=number))
                for found, expected in (by[:2], by[2:]):
                    assert float(jnp.sum(found[1])) > 0
                    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4)
                    jax.tree.map(close, found, expected)
        """,
        devices=2,
    )
