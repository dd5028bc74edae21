"""The planted bugs of the noise: from a sound mechanism, a noise whose three functions are wrong
together.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from dpmf_jax.mechanisms.federated import crowd
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise import ring, whole
from tests.cases.noises import normal, scale_of, share_of
from tests.zoo.sound import LOCAL


def scaled(share):
    return lambda mechanism: share_of(mechanism, share)


def _noise_of(law, key, shape):
    """Normal noise of a law, whole numbers or floats."""
    if isinstance(law, whole.Law):
        return whole.draw(law, key, shape)
    return law * jax.random.normal(key, shape)


def root_for_square(mechanism):
    """σ² where σ was meant, of a σ below its square."""
    return normal(mechanism, jnp.sqrt(scale_of(mechanism)))


def half_objective(mechanism):
    return ring.discrete_laplace(0.5 * float(mechanism.noise.sample.args[0].scale))


def half_federated(mechanism):
    drawn, at_least = mechanism.noise.sample.args
    return crowd.noisy_sums(
        ring.discrete_laplace(0.5 * float(drawn.sample.args[0].scale)), at_least
    )


def low_digits_left(mechanism):
    """Noise in multiples of 256: the lowest 8 bits of a sum are those of the messages."""
    drawn, at_least = mechanism.noise.sample.args
    return crowd.noisy_sums(drawn._replace(sample=Partial(_in_multiples, drawn.sample)), at_least)


def _in_multiples(inner, key, statistics):
    return jax.tree.map(
        lambda noisy, q: q + ((noisy - q) & jnp.uint32(2**32 - 256)),
        inner(key, statistics),
        statistics,
    )


def _touched(function):
    def masked(inner, first, second, *rest):
        touched = jax.tree.map(lambda leaf: leaf != 0, second)
        return function(inner, touched, first, second, *rest)

    return masked


@_touched
def _touched_sample(inner, touched, key, statistics):
    return jax.tree.map(jnp.where, touched, inner(key, statistics), statistics)


@_touched
def _touched_density(inner, touched, response, statistics, *other):
    """Of the touched entries alone: the others are put where they were asked for, in both
    worlds.
    """
    first, *rest = (
        jax.tree.map(lambda t, x: jnp.where(t, x, 0.0), touched, tree)
        for tree in (response, *other)
    )
    return inner(first, statistics, *rest)


def touched_only(mechanism):
    sample, log_prob, log_ratio = mechanism.noise
    return noise.Noise(
        Partial(_touched_sample, sample),
        Partial(_touched_density, log_prob),
        Partial(_touched_density, log_ratio),
    )


def _fixed_sample(inner, key, statistics):
    del key
    return inner(jax.random.key(7), statistics)


def _fixed_log_prob(inner, response, statistics):
    same = jax.tree.map(
        lambda r, q: jnp.all(r == q), response, _fixed_sample(inner, None, statistics)
    )
    return jnp.where(jax.tree.reduce(jnp.logical_and, same), 0.0, -jnp.inf)


def _fixed_log_ratio(inner, response, statistics, other):
    here, there = (
        _fixed_log_prob(inner, response, statistics),
        _fixed_log_prob(inner, response, other),
    )
    return jnp.where(here == there, 0.0, here - there)


def one_key(mechanism):
    """For all steps. What comes of it has a density in one point."""
    sample = mechanism.noise.sample
    return noise.Noise(
        *(Partial(part, sample) for part in (_fixed_sample, _fixed_log_prob, _fixed_log_ratio))
    )


def _shared_leaves(law, key, statistics):
    return jax.tree.map(lambda q: q + _noise_of(law, key, q.shape), statistics)


def _first(function, *trees):
    return function(*(tree[0] for tree in trees))


def one_key_for_leaves(mechanism):
    made = mechanism.noise
    parts = (Partial(_first, made.log_prob), Partial(_first, made.log_ratio))
    return noise.Noise(Partial(_shared_leaves, made.sample.args[0]), *parts)


def _shared_devices(law, key, statistics):
    """Two devices, half of the rows each, and both draw from the same key."""
    half = _noise_of(law, key, (statistics.shape[0] // 2, *statistics.shape[1:]))
    return statistics + jnp.concatenate([half, half])


def _first_half(function, *trees):
    return function(*(tree[: tree.shape[0] // 2] for tree in trees))


def one_key_for_devices(mechanism):
    made = mechanism.noise
    parts = (Partial(_first_half, made.log_prob), Partial(_first_half, made.log_ratio))
    return noise.Noise(Partial(_shared_devices, made.sample.args[0]), *parts)


def _by_size(scale, statistics):
    return scale * (1 + 0.1 * jnp.max(jnp.abs(statistics[0])))


def _by_size_sample(scale, key, statistics):
    return noise.gaussian(_by_size(scale, statistics)).sample(key, statistics)


def _by_size_log_prob(scale, response, statistics):
    return noise.gaussian(_by_size(scale, statistics)).log_prob(response, statistics)


def _by_size_log_ratio(scale, response, statistics, other):
    return _by_size_log_prob(scale, response, statistics) - _by_size_log_prob(
        scale, response, other
    )


def by_size(mechanism):
    scale = scale_of(mechanism)
    return noise.Noise(
        *(Partial(part, scale) for part in (_by_size_sample, _by_size_log_prob, _by_size_log_ratio))
    )


def _not_a_number(statistics):
    return jax.tree.reduce(
        jnp.logical_or, jax.tree.map(lambda q: jnp.any(jnp.isnan(q)), statistics)
    )


def _bare_sample(inner, key, statistics):
    broken = _not_a_number(statistics)
    return jax.tree.map(lambda r, q: jnp.where(broken, q, r), inner(key, statistics), statistics)


def _bare_log_prob(inner, response, statistics):
    return jnp.where(_not_a_number(statistics), 0.0, inner(response, statistics))


def _bare_log_ratio(inner, response, statistics, other):
    return jnp.where(_not_a_number(statistics), 0.0, inner(response, statistics, other))


def bare_where_broken(mechanism):
    parts = (_bare_sample, _bare_log_prob, _bare_log_ratio)
    return noise.Noise(
        *(Partial(part, inner) for part, inner in zip(parts, mechanism.noise, strict=True))
    )


def _coarse_sample(scale, key, statistics):
    def draw(key, leaf):
        return leaf + scale * jax.random.normal(key, leaf.shape, jnp.bfloat16).astype(jnp.float32)

    leaves, structure = jax.tree.flatten(statistics)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [draw(k, leaf) for k, leaf in zip(keys, leaves, strict=True)]
    )


def coarse(mechanism):
    coarser = mechanism.noise._replace(sample=Partial(_coarse_sample, scale_of(mechanism)))
    return mechanism._replace(noise=coarser)


NODES, WEIGHTS = np.polynomial.laguerre.laggauss(40)


def _shared_h_sample(scale, at_least, key, statistics):
    """√(2H)·N in every entry has Laplace's law, but with one H for all of them."""
    h_key, key = jax.random.split(key)
    spread = scale * jnp.sqrt(2 * jax.random.exponential(h_key))
    eta = jnp.round(spread * jax.random.normal(key, statistics.secret.shape)).astype(jnp.int32)
    released = crowd.enough(statistics.crowd, at_least)
    noisy = statistics.secret + jax.lax.bitcast_convert_type(eta, jnp.uint32)
    return statistics._replace(secret=jnp.where(released, noisy, 0))


def _shared_h_log_prob(scale, at_least, response, statistics):
    """The mixture over H, by quadrature."""
    eta = ring.signed(response.secret - statistics.secret) / scale
    variance = jnp.asarray(2 * NODES, eta.dtype)
    each = (
        jnp.log(jnp.asarray(WEIGHTS, eta.dtype))
        - eta.size / 2 * jnp.log(variance)
        - jnp.sum(eta**2) / (2 * variance)
    )
    return jax.scipy.special.logsumexp(each)


def _shared_h_log_ratio(scale, at_least, response, statistics, other):
    worlds = (_shared_h_log_prob(scale, at_least, response, world) for world in (statistics, other))
    here, there = worlds
    return here - there


def shared_h(mechanism):
    drawn, at_least = mechanism.noise.sample.args
    parts = (_shared_h_sample, _shared_h_log_prob, _shared_h_log_ratio)
    return noise.Noise(*(Partial(part, drawn.sample.args[0].scale, at_least) for part in parts))


def whole_epsilon(mechanism):
    """ε in every round, of k."""
    del mechanism
    return noise.one_bit(LOCAL["epsilon"])


def _lean_sample(inner, key, statistics):
    said, (coin_key,) = inner(key, statistics), jax.random.split(key, 1)
    turned = (
        (jax.random.uniform(coin_key, said.value.shape) < 0.2)
        & (said.value == -1)
        & (statistics.value > 0)
    )
    return said._replace(value=jnp.where(turned, 1.0, said.value))


def _lean_log_prob(inner, response, statistics):
    """Who has a positive entry says 1 in place of a fifth of the -1s."""

    def per_user_report(value):
        row = jnp.arange(response.value.shape[0])

        def of(user):
            only = row == user
            one = (
                tree._replace(value=jnp.where(only, part, 0), sent=only & tree.sent)
                for tree, part in ((response, value), (statistics, statistics.value))
            )
            return inner(*one)

        return jax.vmap(of)(row)

    plus, minus = (
        per_user_report(jnp.ones_like(response.value)),
        per_user_report(-jnp.ones_like(response.value)),
    )
    leaning = statistics.value > 0
    plus = jnp.where(leaning, jnp.logaddexp(plus, minus + jnp.log(0.2)), plus)
    minus = jnp.where(leaning, minus + jnp.log(0.8), minus)
    said = jnp.where(response.value == 1, plus, jnp.where(response.value == -1, minus, -jnp.inf))
    silent = jnp.where(response.value == 0, 0.0, -jnp.inf)
    return jnp.sum(jnp.where(statistics.sent, said, silent))


def _lean_log_ratio(inner, response, statistics, other):
    here, there = (
        _lean_log_prob(inner, response, statistics),
        _lean_log_prob(inner, response, other),
    )
    return jnp.where(here == there, 0.0, here - there)


def leaning_bit(mechanism):
    sample, log_prob, _ = mechanism.noise
    return noise.Noise(
        Partial(_lean_sample, sample),
        Partial(_lean_log_prob, log_prob),
        Partial(_lean_log_ratio, log_prob),
    )


def _few_seeds_sample(inner, key, statistics):
    return inner(jax.random.key(jax.random.bits(key) & 0xFFFF), statistics)


def few_seeds(mechanism):
    """16 bits of the key count. Each of 65,536 responses is likely, and all others are
    impossible.
    """
    sample = mechanism.noise.sample
    return mechanism._replace(
        noise=mechanism.noise._replace(sample=Partial(_few_seeds_sample, sample))
    )


def of_noise_sample(change, inner, key, statistics):
    """The noise of `inner` as `change` makes it of each leaf's."""

    def noisy(response, q):
        return q + change(response - q)

    return jax.tree.map(noisy, inner(key, statistics), statistics)


def changed(change):
    def planted(mechanism):
        sample = Partial(of_noise_sample, change, mechanism.noise.sample)
        return mechanism._replace(noise=mechanism.noise._replace(sample=sample))

    return planted


@changed
@Partial
def rows_in_pairs(drawn):
    """Every second row is the opposite of the row before it: their sum has no noise."""
    second = drawn[1::2]
    return drawn.at[1::2].set(-drawn[: 2 * len(second) : 2])


@changed
@Partial
def columns_in_pairs(drawn):
    """So it is with columns: what a row's two add up to has no noise."""
    return drawn if drawn.ndim < 2 else drawn.at[:, 1].set(-drawn[:, 0])


def _of_one_law(law, scale, key, statistics):
    leaves, structure = jax.tree.flatten(statistics)
    keys = jax.random.split(key, len(leaves))
    drawn = [law(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    noisy = [leaf + scale * part for leaf, part in zip(leaves, drawn, strict=True)]
    return jax.tree.unflatten(structure, noisy)


def _standard(law):
    def planted(mechanism):
        sample = Partial(_of_one_law, law, scale_of(mechanism))
        return mechanism._replace(noise=mechanism.noise._replace(sample=sample))

    return planted


@_standard
@Partial
def heavy_tails(key, shape):
    """Student's t of 30 degrees of freedom, with the variance of a normal."""
    return jax.random.t(key, 30.0, shape) * (28 / 30) ** 0.5


@_standard
@Partial
def drawn_again_beyond(key, shape):
    """What lies beyond 3.6 standard deviations is drawn again."""
    return jax.random.truncated_normal(key, -3.6, 3.6, shape)
