"""Bugs in rare places: one item, one user, people and values that the ratings do not have."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from dpmf_jax import layout
from tests.zoo.sound import RATINGS


def _twice_query(query, where, state, data, coins):
    """Some rows of the statistics count twice."""
    statistics, info = query(state, data, coins)
    return where(statistics, data), info


def _twice(rows, which):
    return jnp.where(which[:, None], rows + rows, rows)


def one_item(statistics, data):
    users, items = statistics
    return users, _twice(items, jnp.arange(len(items)) == 3)


def the_least_active(statistics, data):
    count = layout.sum_by_user(data, lambda row, columns, values, present: present.sum(), (), ())
    return _twice(statistics, count == jnp.min(count))


def counted_twice(where):
    def plant(mechanism):
        return mechanism._replace(query=Partial(_twice_query, mechanism.query, Partial(where)))

    return plant


def _weighed_users_query(query, weigh, state, data, coins):
    """Each user's sum is weighed by what the user's row says."""
    sums, info = query(state, data, coins)
    weight = layout.sum_by_user(data, weigh, (), ()).astype(sums.dtype)
    return sums * weight.reshape(-1, *(1,) * (sums.ndim - 1)), info


def _weighed_users(weigh):
    def plant(mechanism):
        return mechanism._replace(
            query=Partial(_weighed_users_query, mechanism.query, Partial(weigh))
        )

    return plant


@_weighed_users
def users_of_everything_count_twice(row, columns, values, present):
    """Who has rated all items, as nobody here has."""
    del row, columns, values
    return 1 + (jnp.sum(present) >= RATINGS.num_items)


@_weighed_users
def users_of_a_code_count_thrice(row, columns, values, present):
    """Who has given 2.25, which nobody here has and the declared range allows."""
    del row, columns
    return 1 + 2 * jnp.any(present * (values == 2.25))


def _message_twice_query(query, user, state, data, coins):
    sums, info = query(state, data, coins)
    others, _ = query(state, layout.remove_user(data, user), coins)
    secret = jax.tree.map(lambda all_, rest: all_ + (all_ - rest), sums.secret, others.secret)
    return sums._replace(secret=secret), info


def one_message_counts_twice(mechanism):
    """That of user 3, whose opposite is twice as far again."""
    query = Partial(_message_twice_query, mechanism.query, jnp.int32(3))
    return mechanism._replace(query=query)


def _in_threes_query(query, state, data, coins):
    def shared(sums):
        whole = sums[: len(sums) // 3 * 3]
        threes = whole.reshape(-1, 3, *sums.shape[1:])
        return sums.at[: len(whole)].set(
            jnp.zeros_like(threes).at[:, 0].set(threes.sum(axis=1)).reshape(whole.shape)
        )

    statistics, info = query(state, data, coins)
    return jax.tree.map(shared, statistics), info


def items_in_threes(mechanism):
    """Three items have one sum: a rating moves it as far as ever, and ratings of one user meet."""
    return mechanism._replace(query=Partial(_in_threes_query, mechanism.query))
