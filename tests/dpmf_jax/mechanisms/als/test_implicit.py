"""ALS on what users have seen: what a message is and costs, what it computes, whom it serves."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import accounting
from accounting import gaussian
from audits.mechanism import keys as keys_used
from audits.mechanism import sensitivity
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import PrivacyError, UsageError
from dpmf_jax.mechanisms.als import config as als_config
from dpmf_jax.mechanisms.als import implicit, implicit_config
from dpmf_jax.mechanisms.als import implicit_estimates as estimates
from dpmf_jax.mechanisms.als import phases as als
from dpmf_jax.mechanisms.silent import silent
from dpmf_jax.noise import keys

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS = 14, 30


def config(**change):
    usual = {"num_users": USERS, "noise_multiplier": 0.8, "rank": 3, "num_passes": 2}
    return implicit_config.Config(**(usual | change))


def seen_by(rated):
    """Ratings of the pairs that are true; also of nobody, which no file of ratings may be."""
    user, item = np.nonzero(rated)
    return Ratings(
        user.astype(np.int32),
        item.astype(np.int32),
        np.ones(len(user), np.float32),
        np.arange(rated.shape[0]),
        np.arange(rated.shape[1]),
        (0.0, 1.0),
    )


def rated():
    """Users with none, one, all and a few items."""
    random = np.random.default_rng(0)
    found = random.random((USERS, ITEMS)) < 0.4
    found[0], found[1], found[2] = False, False, True
    found[1, 5] = True
    return found


def public_states(phases, data):
    """(mechanism, the public state that its first step starts from) of each phase."""
    key, public = keys.from_seed(0), None
    for mechanism, num_steps in phases:
        key, init_key, train_key = jax.random.split(key, 3)
        start = jax.jit(mechanism.init)(init_key, data, public)
        yield mechanism, start.public
        public = protocol.train(mechanism, train_key, start, data, num_steps)[0].public


@jax.jit
def ask(mechanism, public, data):
    if public.asked is None:
        private = mechanism.init(jax.random.key(0), data, None).private
    else:
        private = implicit._solve(public.asked, data)
    return mechanism.query(protocol.State(public, private, jnp.int32(0)), data, None)[0]


def statistics(mechanism, public, data):
    """What all users send about a public state; everybody answers to it first."""
    return jax.tree.leaves(jax.device_get(ask(mechanism, public, data)))


def signed(leaf):
    return leaf.astype(np.uint32).view(np.int32).astype(np.float64)


def fitted(of, made, *, seed=0, kind="dense", change=lambda mechanism: mechanism):
    """(the last mechanism, its last state)"""
    *earlier, (last, num_steps) = [(change(one), num) for one, num in implicit.phases(made)]
    data = layout.make(of, kind=kind, num_devices=1)
    init_key, key = jax.random.split(keys.from_seed(seed))
    state = protocol.begin(last, init_key, data, earlier)
    return last, protocol.train(last, key, state, data, num_steps)[0]


@pytest.mark.parametrize(
    ("kind", "clip"),
    [
        ("dense", 0.5),
        pytest.param("dense", 30.0, marks=pytest.mark.seconds),
        pytest.param("split", 0.5, marks=pytest.mark.seconds),
    ],
)
def test_a_message_is_of_one_user_alone_and_no_longer_than_the_clip(kind, clip):
    """Whoever is left out, exactly their own message is missing from every sum, mod 2^32."""
    whole = rated()
    data = layout.make(seen_by(whole), kind=kind, num_devices=1)
    longest = []
    for mechanism, public in public_states(implicit.phases(config(factors_clip=clip)), data):
        bound = float(mechanism.query.args[0].whole_clip[0])
        everybody = statistics(mechanism, public, data)
        # each has shapes of its own in the split layout
        for user in range(USERS if kind == "dense" else 4):
            mine = np.arange(USERS) == user
            own, others = (
                statistics(
                    mechanism,
                    public,
                    layout.make(seen_by(whole * kept[:, None]), kind=kind, num_devices=1),
                )
                for kept in (mine, ~mine)
            )
            for total, part, rest in zip(everybody, own, others, strict=True):
                np.testing.assert_array_equal(total, part + rest)
            longest.append(math.sqrt(sum((signed(leaf) ** 2).sum() for leaf in own)) / bound)
    assert max(longest) <= 1
    assert max(longest) > 0.999  # of the counts, whatever the clip
    assert min(longest) == 0  # of who has seen nothing
    factors = sorted(longest[len(longest) // 2 :])
    assert factors[-1] > 0.99 if clip < 1 else factors[-1] < 0.5


def test_rounding_makes_no_message_longer_than_the_clip():
    """Of one who has everything, of many, and of one item; every length, and every rounding."""
    random = np.random.default_rng(0)
    count = np.tile([1.0, 9.0, 4_000.0], 400).astype(np.float32)
    deviations = random.integers(-(2**15), 2**15, (len(count), 5)).astype(np.float32)
    deviations *= np.exp2(-random.integers(0, 16, (len(count), 1))).astype(np.float32)
    users = implicit.Users(jnp.zeros(len(count)), jnp.asarray(np.round(deviations)))
    for clip in (64.0, 700.0, 20_000.0):
        norms = jnp.zeros(len(count)), jnp.asarray(count)
        kappa = jnp.float32(clip / 64)
        sent = implicit.messages.scales(users, norms[1], norms, jnp.float32(clip), kappa, rank=5)
        rows = np.round(np.asarray(sent.scale)[:, None] * np.asarray(users.units))
        lengths = np.sqrt(count * (rows.astype(np.float64) ** 2).sum(axis=1))
        assert lengths.max() <= clip
        assert lengths.max() > 0.9 * clip


def test_phases_cost_what_was_asked_for_and_what_those_of_als_cost():
    z = gaussian.solve_noise_multiplier(4.0, 1e-5, 1)
    for change in ({}, {"rank": 0, "num_passes": 0}, {"num_passes": 5, "growth": 1.2}):
        phases = implicit.phases(config(noise_multiplier=z, **change))
        spent = [loss for made, num in phases for loss in made.guarantee(num).losses]
        assert sum(1 / loss.noise_multiplier**2 for loss in spent) <= 1 / z**2
        whole = accounting.compose(*(made.guarantee(num) for made, num in phases))
        assert 3.99 < whole.accountants["exact"] <= whole.epsilon <= 4.0
        assert whole.accountants["pld"] == pytest.approx(4.0, abs=0.01)  # dp-accounting's
        assert (whole.unit, whole.status) == ("user", "proved")
        assert "joint" in str(whole)
    explicit = als_config.Config(rating_range=(1.0, 5.0), noise_multiplier=z, num_passes=4)
    other = accounting.compose(*(made.guarantee(num) for made, num in als.phases(explicit)))
    assert other.epsilon == pytest.approx(whole.epsilon, abs=0.01)


def test_shares_add_up_to_one():
    for change in ({}, {"rank": 0, "num_passes": 0}, {"growth": 3.0, "counts_share": 0.7}):
        counts, factors = config(**change).clips()
        assert 0.8**2 * (counts**2 + sum(one**2 for one in factors)) == pytest.approx(1)
    half = config(relation="user replaced").clips()
    assert half[0] == pytest.approx(config().clips()[0] / 2)
    assert half[1] == pytest.approx([one / 2 for one in config().clips()[1]])


def test_a_user_who_is_replaced_moves_a_sum_twice_as_far():
    for made, num in implicit.phases(config(relation="user replaced")):
        params, losses = made.query.args[0], made.guarantee(num).losses
        expected = float(params.noise_scale) / (2 * np.asarray(params.whole_clip))
        assert [loss.noise_multiplier for loss in losses] == pytest.approx(expected.tolist())


def test_a_sum_of_many_users_keeps_within_32_bits():
    """Even if all have one item alone. And the price is that of the noise that is drawn."""
    z = gaussian.solve_noise_multiplier(20.0, 1e-5, 1)
    for users in (10_000, 1_000_000, 100_000_000):
        phases = implicit.phases(config(num_users=users, noise_multiplier=z))
        for made, num in phases:
            params = made.query.args[0]
            clip, scale = float(params.whole_clip.max()), float(params.noise_scale)
            assert users * clip <= 2**30 or 1_000 < clip <= 1_024
            found = [loss.noise_multiplier for loss in made.guarantee(num).losses]
            assert found == pytest.approx((scale / np.asarray(params.whole_clip)).tolist())
            drawn = made.noise.sample(keys.from_seed(0), jnp.zeros(20_000, jnp.uint32))
            assert np.std(signed(np.asarray(drawn))) == pytest.approx(scale, rel=0.03)
        whole = accounting.compose(*(made.guarantee(num) for made, num in phases))
        assert 19.9 < whole.epsilon <= 20.0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rank": 0}, ValueError),
        ({"num_users": 0}, ValueError),
        ({"growth": 0.0}, ValueError),
        ({"counts_share": 1.0}, ValueError),
        ({"gram_share": 0.0}, ValueError),
        ({"noise_multiplier": 1e4}, PrivacyError),
    ],
)
def test_settings_that_no_price_is_known_for_are_refused(change, error):
    with pytest.raises(error):
        implicit.phases(config(**change))


# --- what it computes


def answer(mine, of_all, made):
    """Of one user, in NumPy: mine: float64[seen, d], factors of the items; of_all: of all."""
    gram, rank = of_all.T @ of_all, of_all.shape[1]
    ridge = made.regularization * np.trace(gram) / rank * np.eye(rank)
    return np.linalg.solve(mine.T @ mine + made.unseen_weight * (gram + ridge), mine.sum(axis=0))


def alternated(seen, factors, made):
    """Item factors after all passes, in NumPy: each user is solved for, then every item."""
    weight = 1 / np.sqrt(np.maximum(seen.sum(axis=1), 1))
    count = weight @ seen
    for _ in range(made.num_passes):
        users = np.stack([answer(factors[row > 0], factors, made) for row in seen])
        typical = (count.sum() / len(seen)) ** 2 * count / count.sum()  # number of each item seen
        gram = factors.T @ factors
        ridge = made.regularization * np.trace(gram) / len(gram) * np.eye(len(gram))
        matrix = (factors * typical[:, None]).T @ factors + made.unseen_weight * (gram + ridge)
        mean = np.linalg.solve(matrix, typical @ factors)
        off = np.where(seen.any(axis=1)[:, None], users - mean, 0)
        every = off.T @ off / len(seen) + np.outer(mean, mean)  # for E[u·uᵀ]
        unseen = made.unseen_weight * len(seen) ** 2 / count.sum()
        right = (weight[:, None] * seen).T @ off + count[:, None] * mean
        factors = np.linalg.solve(every, right.T).T / (count + unseen)[:, None]
    return factors


def exact(mechanism):
    """Without noise, and knowing that there is none."""
    none = {"noise_scale": jnp.float32(0), "count_deviation": jnp.float32(1e-3)}
    params = dataclasses.replace(mechanism.query.args[0], **none)
    parts = {
        name: Partial(getattr(mechanism, name).func, params) for name in ("init", "query", "update")
    }
    return silent(mechanism)._replace(**parts)


@pytest.mark.parametrize(
    ("num_passes", "clip"), [(1, 3.0), pytest.param(3, 10.0, marks=pytest.mark.seconds)]
)
def test_without_noise_and_clip_it_is_als_in_numpy(num_passes, clip, monkeypatch):
    """The scores of all pairs, in any basis: with `evenness` 0 passes only turn it."""
    monkeypatch.setattr(estimates, "LEAST", 1e-6)  # which guards against noise
    random = np.random.default_rng(3)
    taste = random.normal(size=(200, 2)) @ random.normal(size=(2, 40))
    seen = taste + random.normal(size=(200, 1)) + random.normal(size=40) > 1.5
    seen[0] = False
    made = config(
        num_users=200,
        noise_multiplier=0.02,
        rank=2,
        num_passes=num_passes,
        factors_clip=clip,
        sampling=0.0,
        evenness=0.0,
    )
    *earlier, (last, steps) = [(exact(one), num) for one, num in implicit.phases(made)]
    data = layout.make(seen_by(seen), kind="dense", num_devices=1)
    start = protocol.begin(last, keys.from_seed(0), data, earlier)
    state, info = protocol.train(last, keys.from_seed(1), start, data, steps)
    assert not np.any(info.clipped_fraction)
    first = np.asarray(start.public.item_factors, np.float64)
    factors = alternated(seen.astype(float), first, made)
    expected = np.stack([factors @ answer(factors[row], factors, made) for row in seen])
    found = np.asarray(state.private.user_factors) @ np.asarray(state.public.item_factors).T
    assert expected.max() > 0.5
    np.testing.assert_allclose(found, expected, atol=0.02)
    loss = np.mean((1 - (np.asarray(start.private.user_factors) @ first.T)[seen]) ** 2)
    assert float(info.loss[0]) == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("rank", [0, 3])
def test_new_users_have_the_bits_of_the_training(rank):
    """Each from the release and from own items; who has seen nothing has zeros."""
    made = config(num_passes=2, rank=rank) if rank else config(rank=0, num_passes=0)
    of = seen_by(rated())
    last, state = fitted(of, made)
    release = jax.device_get(last.release(state))
    rows = implicit.fold_in(made, release, of)
    np.testing.assert_array_equal(rows, np.asarray(state.private.user_factors))
    assert rows.any() == (rank > 0)
    for user in (0, 1, 5):
        own = of.take(of.user == user)
        alone = dataclasses.replace(own, user=0 * own.user, users=own.users[user : user + 1])
        np.testing.assert_array_equal(implicit.fold_in(made, release, alone)[0], rows[user])
    nothing = release._replace(center=None)
    with pytest.raises(UsageError, match="releases no item factors"):
        implicit.fold_in(made, nothing, of)
    with pytest.raises(UsageError, match="rank 5"):
        implicit.fold_in(config(rank=5), release, of)


def test_without_factors_items_are_ranked_by_their_noisy_counts():
    made = config(rank=0, num_passes=0)
    last, state = fitted(seen_by(rated()), made)
    count = np.asarray(state.public.count)
    release = last.release(state)
    np.testing.assert_array_equal(np.argsort(release.center), np.argsort(count))
    assert release.user_factors is None
    _, silent_state = fitted(seen_by(rated()), made, change=exact)
    number = np.maximum(rated().sum(axis=1), 1)
    expected = (rated() / np.sqrt(number)[:, None]).sum(axis=0)
    np.testing.assert_allclose(silent_state.public.count, expected, rtol=1e-4)
    noise = (count - expected) * np.sqrt(float(1 / made.noise_multiplier**2))
    assert 0.5 < np.std(noise) < 2


@pytest.mark.seconds
def test_factors_find_what_popularity_cannot():
    """Two groups of users with items of their own, at ε = 8."""
    random = np.random.default_rng(0)
    group = random.integers(0, 2, 1_500)
    rate = np.where(group[:, None] == np.arange(100) % 2, 0.25, 0.05)
    seen = random.random((1_500, 100)) < rate
    z = gaussian.solve_noise_multiplier(8.0, 1e-5, 1)
    made = config(num_users=1_500, noise_multiplier=z, rank=2, num_passes=3)
    _, state = fitted(seen_by(seen), made)
    scores = np.asarray(state.private.user_factors) @ np.asarray(state.public.item_factors).T
    own = group[:, None] == np.arange(100) % 2
    unseen = np.where(seen, np.nan, scores)
    of_own, others = (np.nanmean(np.where(own == one, unseen, np.nan), axis=1) for one in (1, 0))
    assert np.mean(of_own > others) > 0.7  # of popularity, and of chance, a half


# --- audits


def longer_at_first(query, params, state, data, coins):
    """The first pass has the clip of the last one."""
    clip = jnp.where(state.step == 0, params.clip[-1], params.clip[0])
    return query(dataclasses.replace(params, clip=clip[None]), state, data, coins)


def looks_at_its_key(params, key, data, previous):
    """The start of the factors, of which a word of the key is a part."""
    state = implicit._init_factors(params, key, data, previous)
    word = jnp.float32(1e-9) * jnp.ravel(jax.random.key_data(key))[0]
    return state._replace(public=state.public._replace(center=state.public.center + word))


@pytest.mark.seconds
@pytest.mark.parametrize("planted", [False, True])
def test_no_key_is_used_twice(planted):
    of = seen_by(rated())
    data = layout.make(of, kind="dense", num_devices=1)
    counts, (made, _) = implicit.phases(config(num_passes=1))
    if planted:
        made = made._replace(init=Partial(looks_at_its_key, *made.init.args))
    found = keys_used.audit(made, of, data, key=keys.from_seed(1), num_steps=1, earlier=(counts,))
    verdicts = {one.audit: one.verdict for one in found}
    assert verdicts["noise: keys"] == ("violated" if planted else "consistent")


@pytest.mark.seconds
@pytest.mark.parametrize("planted", [False, True])
def test_every_pass_is_held_to_its_own_clip(planted):
    of = seen_by(rated())
    data = layout.make(of, kind="dense", num_devices=1)
    *earlier, (made, num_steps) = implicit.phases(config(factors_clip=0.3, growth=3.0))
    if planted:
        query = made.query
        made = made._replace(query=Partial(partial(longer_at_first, query.func), *query.args))
    made = protocol.link((*earlier, (made, num_steps)), keys.from_seed(0), data)[-1]
    found = sensitivity.audit(
        made, of, data, key=keys.from_seed(1), num_steps=num_steps, num_neighbours=USERS
    )
    assert {one.verdict for one in found} == ({"violated"} if planted else {"consistent"})
