"""The planted bugs of what is public: it looks at the ratings, beside the response."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from dpmf_jax import layout


def _counting_update(update, state, response, data):
    count = jnp.sum(layout.stored_values(data)[1]).astype(jnp.float32)
    return update(state, jax.tree.map(lambda r: r / count, response), data)


def divided_by_count(mechanism):
    return mechanism._replace(update=Partial(_counting_update, mechanism.update))


def _sized_init(init, key, data, previous):
    """Levels start where public numbers of ratings would have them; theirs is not public."""
    state = init(key, data, previous)
    share = data.num_ratings / (data.num_users * data.num_items)
    return state._replace(public=state.public._replace(center=state.public.center + share))


def centred_by_the_number_of_ratings(mechanism):
    return mechanism._replace(init=Partial(_sized_init, mechanism.init))


def _sized_update(update, state, response, data):
    return update(state, jax.tree.map(lambda r: r / data.num_ratings, response), data)


def divided_by_the_number_of_ratings(mechanism):
    return mechanism._replace(update=Partial(_sized_update, mechanism.update))


def _peeking_update(update, state, response, data):
    state = update(state, response, data)
    total = jnp.sum(layout.stored_values(data)[0])
    return state._replace(
        public=state.public._replace(item_factors=state.public.item_factors + 1e-3 * total)
    )


def peeking_update(mechanism):
    return mechanism._replace(update=Partial(_peeking_update, mechanism.update))


def _helpful_update(update, query, state, response, data):
    """A step that would raise the private loss is not taken."""
    after = update(state, response, data)
    losses = [query(each, data, None)[1].loss for each in (state, after)]
    public = jax.tree.map(
        lambda a, b: jnp.where(losses[1] < losses[0], a, b),
        *(each.public for each in (after, state)),
    )
    return after._replace(public=public)


def only_steps_that_help(mechanism):
    return mechanism._replace(update=Partial(_helpful_update, mechanism.update, mechanism.query))


def _leaning_update(update, state, response, data):
    """Half a step, where four of five ratings are high."""
    values, present = layout.stored_values(data)
    most = 5 * jnp.sum(present & (values > 3)) > 4 * jnp.sum(present)
    after = update(state, response, data)
    half = jax.tree.map(lambda a, b: (a + b) / 2, after.public, state.public)
    return after._replace(
        public=jax.tree.map(lambda a, b: jnp.where(most, a, b), half, after.public)
    )


def smaller_steps_where_most_are_high(mechanism):
    return mechanism._replace(update=Partial(_leaning_update, mechanism.update))


def _late_update(update, state, response, data):
    peeked = _peeking_update(update, state, response, data)
    after = update(state, response, data)
    return jax.tree.map(lambda a, b: jnp.where(state.step < 70, a, b), after, peeked)


def peeks_late(mechanism):
    """From the 71st step on."""
    return mechanism._replace(update=Partial(_late_update, mechanism.update))


def _late_release(release, state):
    shown, items = release(state), state.private.item_factors
    return shown._replace(item_factors=jnp.where(state.step > 50, items, jnp.zeros_like(items)))


def releases_items_late(mechanism):
    """After 50 steps."""
    return mechanism._replace(release=Partial(_late_release, mechanism.release))
