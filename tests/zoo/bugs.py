"""The planted bugs of everything but the noise: small functions of a sound mechanism, or of the
program that fits.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from audits.mechanism import keys as keys_used
from dpmf_jax import layout, protocol
from dpmf_jax.kernels import count_sketch
from dpmf_jax.kernels.count_sketch import ITEMS, USERS
from dpmf_jax.mechanisms.federated import crowd
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.mechanisms.sampled import sampled
from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
from dpmf_jax.noise import ring
from tests.zoo.sound import GAUSSIAN, RANGE, RATINGS, fit, public_items

# --- other parts of a mechanism: each function plants one bug


def narrow_delta(mechanism):
    """Noise and price for τC, under a query that moves by √2·τC."""
    narrow = gaussian.public_items(gaussian.Config(**GAUSSIAN, residual_clip=2.0))
    return mechanism._replace(noise=narrow.noise, guarantee=narrow.guarantee)


def narrow_noise(mechanism):
    """The noise alone."""
    narrow = gaussian.public_items(gaussian.Config(**GAUSSIAN, residual_clip=2.0)).noise
    return mechanism._replace(noise=mechanism.noise._replace(sample=narrow.sample))


def no_clip(mechanism):
    """Residuals as they are: the query's bound is as wide as whole numbers are exact."""
    params = mechanism.query.args[0]
    wide = params.grid._replace(bound=jnp.float32(2**20))
    return mechanism._replace(
        query=Partial(mechanism.query.func, dataclasses.replace(params, grid=wide))
    )


def _clip_first_query(params, state, data, coins):
    """Clips a rating's two rows, and then writes them into the sketch, as often as it has depth."""
    public, rank = state.public, params.rank
    drawn = sampled.sample(params, data, coins)
    p, q = (
        sketch_dpsgd._on_grid(params, public, family, ids)
        for family, ids in ((USERS, drawn.user), (ITEMS, drawn.item))
    )
    error = sampled.residuals(params, drawn, p, q, public.center)
    lengths = jnp.linalg.norm(jnp.concatenate([q, p], 1), axis=1)
    factor, shrunk = sampled.clipped(params, state.step, error, lengths, (2 * rank) ** 0.5)
    total = jnp.zeros_like(public.table)
    for family, ids, rows in ((USERS, drawn.user, q), (ITEMS, drawn.item, p)):
        part = ring.signed(sampled.part(factor, rows)).astype(jnp.float32)
        total = count_sketch.update(total, public.hashes, family, ids, part)
    return _in_ring(total), sampled.info(params, drawn, error, shrunk)


def clip_before_scatter(mechanism):
    return mechanism._replace(query=Partial(_clip_first_query, mechanism.query.args[0]))


def _in_ring(numbers):
    return jax.lax.bitcast_convert_type(jnp.round(numbers).astype(jnp.int32), jnp.uint32)


def _batch_clip_query(params, query, state, data, coins):
    wide = params.grid._replace(bounds=jnp.full_like(params.grid.bounds, 2.0**22))
    total, info = query(dataclasses.replace(params, grid=wide), state, data, coins)
    total = jax.tree.map(lambda leaf: ring.signed(leaf).astype(jnp.float32), total)
    expected = params.rate * layout.stored_values(data)[0].size
    length = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(total))) / expected
    shrink = jnp.minimum(1.0, params.grid.bounds[0] / jnp.maximum(length, 1e-20))
    return jax.tree.map(lambda leaf: _in_ring(shrink * leaf), total), info


def clip_on_the_batch(mechanism):
    """The mean of a sample's gradients is clipped to C, where each of them should be."""
    return mechanism._replace(
        query=Partial(_batch_clip_query, mechanism.query.args[0], Partial(mechanism.query.func))
    )


def _of_marks_query(query, weigh, item, mark, state, data, coins):
    statistics, info = query(state, data, coins)
    counts = layout.sum_by_item(data, _marks, (mark + jnp.zeros(data.num_items),), ())
    weight = weigh(counts[item])
    return jax.tree.map(lambda q: q * weight, statistics), info


def _marks(row, columns, values, present):
    del columns
    return jnp.sum(present * (values == row[0]))


def _by_marks(weigh):
    """Of an item to which one user gave one of the marks, and nobody does where that is changed."""

    def planted(mechanism):
        marks = [
            (item, mark)
            for mark in (1.0, 5.0)
            for item in range(RATINGS.num_items)
            if np.sum((RATINGS.item == item) & (RATINGS.value == mark)) == 1
        ]
        item, mark = marks[0]
        query = Partial(_of_marks_query, mechanism.query, Partial(weigh), item, mark)
        return mechanism._replace(query=query)

    return planted


@_by_marks
def share_of_marks(count):
    """A share of nothing."""
    return count / count


@_by_marks
def log_of_marks(count):
    return 1 + 0 * jnp.log(count)


def _user_guarantee(guarantee, a, b, num_steps):
    stated = guarantee(num_steps)
    losses = [dataclasses.replace(loss, user_rho=(a, b)) for loss in stated.losses]
    return dataclasses.replace(stated, losses=tuple(losses))


def says_released(*words):
    """The guarantee says so, whatever the release has."""

    def planted(mechanism):
        def guarantee(num_steps):
            return dataclasses.replace(mechanism.guarantee(num_steps), released=words)

        return mechanism._replace(guarantee=guarantee)

    return planted


def user_pays(a, b):
    """(a·m² + b·m)·ρ for m ratings."""

    def planted(mechanism):
        guarantee = Partial(_user_guarantee, mechanism.guarantee, a, b)
        return mechanism._replace(guarantee=guarantee)

    return planted


def _rounded_query(query, state, data, coins):
    statistics, info = query(state, data, coins)

    def rounded(q):
        return _in_ring(3_000 * jnp.round(ring.signed(q) / 3_000))

    return jax.tree.map(rounded, statistics), info


def rounded_query(mechanism):
    return mechanism._replace(query=Partial(_rounded_query, mechanism.query))


def _counting_query(query, state, data, coins):
    """The mean of the ratings' parts where a sum is priced: times a public guess of how many there
    are.
    """
    statistics, info = query(state, data, coins)
    count = jnp.maximum(jnp.sum(layout.stored_values(data)[1]), 1).astype(jnp.float32)
    return jax.tree.map(lambda q: _in_ring(ring.signed(q) * (60 / count)), statistics), info


def mean_for_sum(mechanism):
    return mechanism._replace(query=Partial(_counting_query, mechanism.query))


def _centred_init(init, key, data, previous):
    state = init(key, data, previous)
    values, present = layout.stored_values(data)
    mean = jnp.sum(jnp.where(present, values, 0)) / jnp.maximum(jnp.sum(present), 1)
    return state._replace(public=state.public._replace(center=state.public.center - 3 + mean))


def centred_by_ratings(mechanism):
    return mechanism._replace(init=Partial(_centred_init, mechanism.init))


def _refitted_init(own, published, key, data, previous):
    public = own(key, data, previous).public
    state = published(key, data, previous)
    return state._replace(
        public=public._replace(user_factors=None), private=state.private.user_factors
    )


def _refitted_query(query, state, data, coins):
    public = state.public._replace(user_factors=state.private)
    return query(state._replace(public=public), data, coins)


def refitted_users(mechanism):
    """U by a factorisation of the same ratings, kept private; price and noise are those of a public
    U.
    """
    published = objective.mechanism(
        objective.Config(
            epsilon=1.0, rating_range=RANGE, prior_count=200, rank=3, num_passes=4, center=3.0
        )
    )
    return mechanism._replace(
        init=Partial(_refitted_init, mechanism.init, published.init),
        query=Partial(_refitted_query, mechanism.query),
    )


def _whole_release(state):
    return protocol.Release(state.public.user_factors, state.private.item_factors)


def released_items(mechanism):
    return mechanism._replace(release=Partial(_whole_release))


def _one_less(guarantee, num_steps):
    return guarantee(num_steps - 1)


def round_unpaid(mechanism):
    """`while iter ≤ k`: k + 1 rounds at the price of k."""
    return mechanism._replace(guarantee=Partial(_one_less, mechanism.guarantee))


def _own_query(query, state, data, coins):
    report, info = query(state, data, coins)
    rated = layout.stored_values(data)[1]
    return report._replace(row=jnp.argmax(rated, axis=1).astype(jnp.int32)), info


def own_coordinate(mechanism):
    """Each is asked for the first item that they rated."""
    return mechanism._replace(query=Partial(_own_query, mechanism.query))


def _absent_members(query, state, data, coins):
    """Users without ratings are not asked: the crowd follows the ratings."""
    sums, info = query(state, data, coins)
    rated = jnp.any(layout.stored_values(data)[1], axis=1)
    return sums._replace(crowd=jnp.where(rated, sums.crowd, crowd.OFFLINE)), info


def crowd_of_raters(mechanism):
    return mechanism._replace(query=Partial(_absent_members, mechanism.query))


# --- samples: who is in is chosen otherwise, and the rest asked with certainty


def _kept(data, mask):
    """The ratings at a mask of a dense layout."""
    return dataclasses.replace(
        data, stored=layout.Dense(jnp.where(mask, data.stored.value, 0.0), mask)
    )


def _chosen_query(params, query, choose, state, data, coins):
    values, present = layout.stored_values(data)
    kept = _kept(data, present & choose(params.rate, state, values, coins.key))
    everybody = coins._replace(rate=jnp.float32(1))
    return query(dataclasses.replace(params, highest_rate=1.0), state, kept, everybody)


def shuffle(rate, state, values, coins):
    order = jnp.argsort(jax.random.bits(coins, (values.size,), jnp.uint32))
    place = jnp.argsort(order)
    return (place < jnp.floor(rate * values.size)).reshape(values.shape)


def twice_as_often(rate, state, values, coins):
    return jax.random.uniform(coins, values.shape) < 2 * rate


def by_value(rate, state, values, coins):
    return jax.random.uniform(coins, values.shape) < rate * jnp.where(values > 3, 1.0, 0.5)


def by_error(rate, state, values, coins):
    """What is not expected is drawn more often, the rest less."""
    users, items, center = state.public
    error = jnp.abs(values - center - users @ items.T)
    return jax.random.uniform(coins, values.shape) < rate * jnp.where(error > 1, 1.5, 0.75)


def by_activity(rate, state, values, coins):
    """Of who rated less than half of the items every rating is drawn twice as often."""
    few = jnp.mean(values != 0, axis=1, keepdims=True) < 0.5
    return jax.random.uniform(coins, values.shape) < rate * jnp.where(few, 2.0, 1.0)


def by_place(rate, state, values, coins):
    """The coin of the n-th rating that there is: one rating less, and all that follow have
    another's.
    """
    place = jnp.cumsum(values.reshape(-1) != 0)
    return (jax.random.uniform(coins, (values.size + 1,))[place] < rate).reshape(values.shape)


def epochs(rate, state, values, coins):
    """One shuffled list, gone through again and again."""
    place = jnp.argsort(jnp.argsort(jax.random.bits(jax.random.key(5), (values.size,), jnp.uint32)))
    blocks = jnp.floor(1 / rate).astype(jnp.int32)
    return (place % blocks == state.step % blocks).reshape(values.shape)


def chosen(choose):
    def plant(mechanism):
        params = mechanism.query.args[0]
        return mechanism._replace(
            query=Partial(_chosen_query, params, Partial(mechanism.query.func), Partial(choose))
        )

    return plant


def _no_coins(coins, key):
    return coins(jax.random.key(11))


def same_coins(mechanism):
    return mechanism._replace(coins=Partial(_no_coins, mechanism.coins))


# --- the program that fits


def stops_early(ratings, folder, key):
    """Once the training RMSE, which nobody pays for, has not fallen in two steps."""
    made = public_items(noise_multiplier=8.0, learning_rate=0.05)
    return fit(ratings, folder, key, mechanism=made, num_steps=60, patience=2)


def one_round_more(ratings, folder, key):
    model = fit(ratings, None, key, num_steps=6)
    model = dataclasses.replace(model, guarantee=public_items().guarantee(5).with_seed(True))
    return model.save(folder)


def only_rated_items(ratings, folder, key):
    rated, item = np.unique(ratings.item, return_inverse=True)
    return fit(
        dataclasses.replace(ratings, items=ratings.items[rated], item=item.astype(np.int32)),
        folder,
        key,
    )


def range_of_the_data(ratings, folder, key):
    seen = (float(ratings.value.min()), float(ratings.value.max()))
    seen = seen if seen[0] < seen[1] else RANGE
    made = public_items(rating_range=seen, center=3.0)
    return fit(dataclasses.replace(ratings, rating_range=seen), folder, key, mechanism=made)


def centred_by_the_data(ratings, folder, key):
    return fit(ratings, folder, key, mechanism=public_items(center=float(np.mean(ratings.value))))


def centred_in_secret(ratings, folder, key):
    """Before the mechanism sees them, and nobody is told: what comes out is noisy, and moves too
    far.
    """
    value = np.clip(ratings.value - ratings.value.mean() + 3, *RANGE).astype(np.float32)
    return fit(dataclasses.replace(ratings, value=value), folder, key)


def metrics_in_the_open(ratings, folder, key):
    model = fit(ratings, folder, key)
    (folder / "metrics.json").write_text(json.dumps({"rmse": model.metrics["rmse_train"]}))
    return model


def everything_in_the_open(ratings, folder, key):
    made = gaussian.mechanism(gaussian.Config(**GAUSSIAN, center=3.0))
    model = fit(ratings, folder, key, mechanism=made, settings={"mechanism": "gaussian"})
    (folder / "factors.safetensors").write_bytes(
        (folder / "private" / "factors.safetensors").read_bytes()
    )
    return model


def talks(ratings, folder, key):
    rated = len(np.unique(ratings.item))
    print("every item has raters" if rated == ratings.num_items else "some items have no raters")
    return fit(ratings, folder, key)


def one_seed_for_two_phases(phases, key, data, chunk):
    """Each phase from the same key."""
    return np.concatenate([keys_used.production([phase], key, data, chunk) for phase in phases])
