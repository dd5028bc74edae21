"""A small crowd for the tests of paper 003's messages: numbers are multiples of the grid, so that
sums are exact.
"""

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.mechanisms.federated import messages, roles

USERS, ITEMS, RANK, WIDTH = 6, 5, 3, 4
STEP = 2.0**-8


def quarters(random, *shape):
    return (random.integers(-6, 7, shape) / 4).astype(np.float32)


def asks(seed: int = 0) -> messages.Ask:
    """Lists of 2 to 4 distinct items in any order; item 4 is nobody's, the rest is padding."""
    random = np.random.default_rng(seed)
    items = np.full((USERS, WIDTH), ITEMS, np.int32)
    for row in items:
        listed = random.integers(2, WIDTH + 1)
        row[random.permutation(WIDTH)[:listed]] = random.permutation(ITEMS - 1)[:listed]
    return messages.Ask(jnp.asarray(items))


def whole_catalogue(num_users: int = USERS) -> messages.Ask:
    return messages.Ask(jnp.broadcast_to(jnp.arange(ITEMS, dtype=jnp.int32), (num_users, ITEMS)))


def owns(listed: messages.Ask, seed: int = 0, share=None) -> messages.Own:
    random = np.random.default_rng(100 + seed)
    shape = listed.items.shape
    return messages.Own(
        jnp.asarray(quarters(random, shape[0], RANK)),
        jnp.asarray(random.integers(1, 6, shape).astype(np.float32)),
        listed.items < ITEMS,
        share,
    )


def item_factors(seed: int = 0):
    return jnp.asarray(quarters(np.random.default_rng(200 + seed), ITEMS, RANK))


def elements(seed: int, *shape: int):
    """uint32, uniform."""
    return jnp.asarray(np.random.default_rng(300 + seed).integers(0, 2**32, shape, dtype=np.uint32))


def plain_sums(own: messages.Own, listed: messages.Ask, factors, here, center: float = 0.0):
    """Equation (5) over who is here, one rating after the other, in float64: [items, d]."""
    own, items, factors = jax.tree.map(
        lambda leaf: np.asarray(leaf), (own, listed.items, np.asarray(factors))
    )
    sums = np.zeros((ITEMS, RANK))
    for user, item in ((i, s) for i in range(items.shape[0]) for s in range(items.shape[1])):
        j = items[user, item]
        if here[user] and own.rated[user, item] and j < ITEMS:
            u, v = own.factors[user].astype(np.float64), factors[j].astype(np.float64)
            sums[j] += -2 * u * (float(own.values[user, item]) - center - u @ v)
    return sums


def contributors(listed: messages.Ask, here):
    """How many of who is here list each item: int[items]."""
    items = np.asarray(listed.items)[np.asarray(here)]
    return np.bincount(items[items < ITEMS], minlength=ITEMS)


FALSE_ALARM = 1e-4  # of every statistical test, with the keys fixed
RULES = roles.without_noise(step=STEP, center=3.0)
NOBODY_HIDES = jnp.zeros((ITEMS, RANK), jnp.uint32)  # α of S2
iterate = jax.jit(roles.iteration)
every = jnp.ones(USERS, bool)
cut = jax.jit(roles.cut)
split = jax.jit(roles.split, static_argnums=2)


def run(
    own, listed, *, rules=RULES, seed=0, factors=None, alpha=NOBODY_HIDES, at_least=1, **settings
):
    factors = item_factors() if factors is None else factors
    return iterate(
        jax.random.key(seed),
        rules,
        own,
        listed,
        factors,
        alpha,
        every,
        every,
        jnp.int32(at_least),
        **settings,
    )


def bitwise(one, other) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), one, other))
