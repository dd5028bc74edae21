"""Bugs of noise in whole numbers: shared by few entries, uneven, cut, or none now and then."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tests.cases.noises import scale_of
from tests.zoo.noise import changed, of_noise_sample


def _steps(drawn):
    """The noise as signed whole numbers."""
    return jax.lax.bitcast_convert_type(drawn, jnp.int32)


def _elements(steps):
    return jax.lax.bitcast_convert_type(steps.astype(jnp.int32), jnp.uint32)


@changed
@Partial
def first_of_two_rows(drawn):
    """Rows 2 and 9 begin with one draw of two signs: what these entries add up to is bare."""
    at = (2, 9) if drawn.ndim < 2 else ((2, 0), (9, 0))
    return drawn.at[at[1]].set(-drawn[at[0]])


@changed
@Partial
def last_makes_up_for_others(drawn):
    """The last entry has minus half the noise of entries 1, 4, 6 and 8 of its column: as much
    noise as any, and one combination without.
    """
    column = _steps(drawn if drawn.ndim < 2 else drawn[:, 0])
    made = _elements(-(column[jnp.array([1, 4, 6, 8])] // 2).sum())
    return drawn.at[-1].set(made) if drawn.ndim < 2 else drawn.at[-1, 0].set(made)


@changed
@Partial
def in_threes(drawn):
    """The noise is a multiple of 3: what a sum leaves when it is divided by 3 is released."""
    return _elements(_steps(drawn) // 3 * 3)


def _now_and_then_sample(inner, key, statistics):
    drawn_key, coin_key = jax.random.split(key)
    none = jax.random.bernoulli(coin_key, 1 / 300)
    drawn = inner(drawn_key, statistics)
    return jax.tree.map(lambda r, q: jnp.where(none, q, r), drawn, statistics)


def now_and_then_none(mechanism):
    """One response in 300 has no noise at all."""
    sample = Partial(_now_and_then_sample, mechanism.noise.sample)
    return mechanism._replace(noise=mechanism.noise._replace(sample=sample))


def _with_scale(change):
    def planted(mechanism):
        made = Partial(change, scale_of(mechanism))
        sample = Partial(of_noise_sample, made, mechanism.noise.sample)
        return mechanism._replace(noise=mechanism.noise._replace(sample=sample))

    return planted


@_with_scale
def clipped_at_the_ends(scale, drawn):
    """The noise is clipped at 4.3 standard deviations."""
    end = jnp.floor(4.3 * scale).astype(jnp.int32)
    return _elements(jnp.clip(_steps(drawn), -end, end))


@_with_scale
def ends_on_one_side(scale, drawn):
    """Beyond 3.5 standard deviations all noise is negative."""
    steps = _steps(drawn)
    return _elements(jnp.where(jnp.abs(steps) > 3.5 * scale, -jnp.abs(steps), steps))


def _less_where_large_sample(inner, scale, key, statistics):
    def noisy(response, q):
        steps = _steps(response - q).astype(jnp.float32)
        share = jnp.where(jnp.abs(_steps(q)) > scale, 0.95, 1.0)
        return q + _elements(jnp.round(share * steps))

    return jax.tree.map(noisy, inner(key, statistics), statistics)


def less_where_sums_are_large(mechanism):
    """5% less noise on sums beyond one standard deviation of it."""
    sample = Partial(_less_where_large_sample, mechanism.noise.sample, scale_of(mechanism))
    return mechanism._replace(noise=mechanism.noise._replace(sample=sample))
