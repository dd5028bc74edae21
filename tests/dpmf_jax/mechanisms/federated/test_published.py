"""Paper 003 before an untrusted recommender, as published: plain descent without noise, the crowd,
the stated price.
"""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from accounting.guarantee import Guarantee
from audits.mechanism import post_processing, sensitivity
from dpmf_jax import layout, protocol
from dpmf_jax.mechanisms.federated import crowd
from dpmf_jax.mechanisms.federated import published as federated
from dpmf_jax.noise import keys
from tests.cases.processes import python
from tests.cases.ratings import many, tiny

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RANK = 14, 6, 3
ALPHA = 1e-4


RATINGS = tiny()
CROWD = federated.Population(join=0.5, leave=0.3, at_most=5)


def config(**settings) -> federated.Config:
    return federated.Config(
        **({"epsilon": 0.1, "rating_range": (1.0, 5.0), "rank": RANK} | settings)
    )


@pytest.fixture(scope="module", params=["dense", "split"])
def data(request):
    return layout.make(RATINGS, kind=request.param, num_devices=1)


@pytest.fixture(scope="module")
def one():
    return layout.make(RATINGS, kind="dense", num_devices=1)


def begun(mechanism, data):
    return protocol.begin(mechanism, keys.from_seed(0), data)


# --------------------------------------------------------------------------------------------------


def plain_step(users, items, takes_part, gain=2.0**-5, prior=1.0, weight=0.001, center=0.0):
    """One iteration of (2) and (3) in float64, rating by rating, over the users who take part."""
    by_user, by_item = np.zeros_like(users), np.zeros_like(items)
    steep, count = np.zeros(len(users)), np.zeros(len(items))
    for u, i, r in zip(RATINGS.user, RATINGS.item, RATINGS.value, strict=True):
        if takes_part[u]:
            error = r - center - users[u] @ items[i]
            by_user[u] -= 2 * error * items[i]
            by_item[i] -= 2 * error * users[u]
            steep[u] += max(1.0, items[i] @ items[i])
            count[i] += 1
    item_gain = gain / (1 + 2 * gain * (count + prior * weight))
    user_gain = gain / (1 + 2 * gain * steep)
    after_items = items - item_gain[:, None] * (by_item + 2 * prior * weight * items)
    after_users = users - user_gain[:, None] * (by_user + 2 * weight * users)
    return (
        np.where(np.asarray(takes_part)[:, None], after_users, users),
        np.where(count[:, None] > 0, after_items, items),
    )


FEW = federated.Population(join=0.15, leave=0.3, at_most=8)  # often fewer online than may take part


@pytest.mark.one_case
@pytest.mark.parametrize(("population", "prior"), [(None, 1.0), (CROWD, 40.0), (FEW, 1.0)])
def test_without_noise_it_is_plain_gradient_descent(data, population, prior):
    mechanism = federated.non_private(config(center=1.5, population=population, prior_count=prior))
    state = begun(mechanism, data)
    users, items = (
        np.asarray(f, np.float64) for f in (state.private.user_factors, state.public.item_factors)
    )
    np.testing.assert_allclose(np.linalg.norm(users, axis=1), 1, rtol=1e-5)
    for _ in range(4):
        state, _info = protocol.train(mechanism, keys.from_seed(1), state, data, 1)
        present = state.public.crowd
        takes_part = (
            np.ones(USERS, bool) if present is None else np.asarray(present) == crowd.TAKES_PART
        )
        users, items = plain_step(users, items, takes_part, prior=prior, center=1.5)
        np.testing.assert_allclose(state.public.item_factors, items, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(state.private.user_factors, users, rtol=2e-5, atol=1e-6)


def test_the_published_descent_with_its_noise_off_is_the_same(one):
    quiet = federated.mechanism(config(epsilon=1e30))
    plain = federated.non_private(config())
    ends = [protocol.train(m, keys.from_seed(1), begun(m, one), one, 3)[0] for m in (quiet, plain)]
    np.testing.assert_allclose(ends[0].public.item_factors, ends[1].public.item_factors, rtol=1e-5)
    np.testing.assert_allclose(
        ends[0].private.user_factors, ends[1].private.user_factors, rtol=1e-5
    )


def test_a_descent_on_many_ratings_of_long_factors_does_not_blow_up(one):
    mechanism = federated.non_private(config(learning_rate=10.0))
    _, info = protocol.train(mechanism, keys.from_seed(1), begun(mechanism, one), one, 60)
    assert float(info.loss[-1]) < float(info.loss[0])


# --------------------------------------------------------------------------------------------------


def test_eta_is_drawn_once_and_kept_and_rho_is_fresh(one):
    scale = 2 * 4 * math.sqrt(RANK) / 0.1
    wide = dataclasses.replace(one, num_items=ITEMS)
    mechanism = federated.mechanism(config())
    state = begun(mechanism, wide)
    bare, _ = federated.non_private(config()).query(
        state._replace(private=state.private._replace(perturbation=jnp.zeros((ITEMS, RANK)))),
        wide,
        keys.from_seed(3),
    )
    asked, _ = mechanism.query(state, wide, keys.from_seed(3))
    np.testing.assert_allclose(asked.secret - bare.secret, state.private.perturbation, rtol=1e-5)
    after, _ = protocol.train(mechanism, keys.from_seed(1), state, wide, 3)
    assert np.array_equal(after.private.perturbation, state.private.perturbation)
    draw = jax.jit(jax.vmap(lambda k: mechanism.noise.sample(k, asked).secret - asked.secret))
    rho = np.asarray(draw(jax.random.split(keys.from_seed(4), 1000))).ravel()
    eta = np.asarray(
        jax.jit(jax.vmap(lambda k: mechanism.init(k, wide, None).private.perturbation))(
            jax.random.split(keys.from_seed(5), 1000)
        )
    ).ravel()
    for drawn in (rho, eta):
        fits = [
            scipy.stats.kstest(drawn, scipy.stats.laplace(scale=b).cdf).pvalue
            for b in (scale, 2 * scale / 3, 1.5 * scale)
        ]
        assert fits[0] > ALPHA > max(fits[1:])


def test_an_item_that_no_participant_rated_stays_as_it_is(one):
    mechanism = federated.mechanism(config())
    state = begun(mechanism, one)
    after, _ = protocol.train(mechanism, keys.from_seed(1), state, one, 2)
    moved = np.any(np.asarray(after.public.item_factors != state.public.item_factors), axis=1)
    assert moved.tolist() == [True] * (ITEMS - 1) + [False]


# --------------------------------------------------------------------------------------------------


def attendance(rates, num_users, steps, seed=0):
    """int32[steps, users]."""

    def one_step(before, key):
        now = crowd.advance(rates, key, before)
        return now, now

    keys_ = jax.random.split(keys.from_seed(seed), steps)
    return np.asarray(jax.jit(lambda: jax.lax.scan(one_step, crowd.nobody(num_users), keys_)[1])())


def test_users_join_and_leave_at_their_rates():
    here = (
        attendance(crowd.rates(federated.Population(join=0.02, leave=0.05, at_most=50)), 400, 300)
        > 0
    )
    assert not np.any(here[0] & ~here[0])
    for was, rate in ((False, 0.02), (True, 0.05)):
        before, now = here[:-1], here[1:]
        changes, chances = np.sum((before == was) & (now != was)), np.sum(before == was)
        assert scipy.stats.binomtest(int(changes), int(chances), rate).pvalue > ALPHA
    first = scipy.stats.binomtest(int(here[0].sum()), 400, 0.02)
    assert first.pvalue > ALPHA  # nobody was online before the first iteration


def test_at_most_so_many_take_part_and_all_where_there_are_fewer():
    status = attendance(
        crowd.rates(federated.Population(join=0.05, leave=0.05, at_most=20)), 200, 100
    )
    online, taking = np.sum(status > 0, axis=1), np.sum(status == crowd.TAKES_PART, axis=1)
    assert np.array_equal(taking, np.minimum(online, 20))
    assert np.any(online < 20)
    assert np.any(online > 40)


def test_the_choice_is_uniform_among_those_online_and_fresh_in_every_iteration():
    among = jnp.arange(40) % 2 == 0
    draw = jax.jit(jax.vmap(lambda k: crowd.choose(k, among, 5)))
    chosen = np.asarray(draw(jax.random.split(keys.from_seed(2), 4000)))
    assert np.all(chosen.sum(axis=1) == 5)
    assert not np.any(chosen[:, 1::2])
    # without replacement the counts vary less than a multinomial's, by (20 - 5)/(20 - 1)
    counts = chosen[:, ::2].sum(axis=0)
    statistic = np.sum((counts - 1000.0) ** 2) / 1000 / (15 / 19 * 20 / 20)
    assert scipy.stats.chi2(19).sf(statistic) > ALPHA
    assert scipy.stats.chi2(19).sf(statistic) < 1 - ALPHA
    pairs = chosen[:, ::2].astype(float).T @ chosen[:, ::2]
    expected = 4000 * 5 * 4 / (20 * 19)
    assert np.max(np.abs(pairs[np.triu_indices(20, 1)] - expected)) < 6 * math.sqrt(expected)


def test_equal_tickets_at_the_edge_never_make_more_than_at_most(monkeypatch):
    real = jax.random.bits
    monkeypatch.setattr(
        jax.random, "bits", lambda *args: real(*args) & jnp.uint32(3 << 30)
    )  # two different tickets
    draw = jax.jit(jax.vmap(lambda key: jnp.sum(crowd.choose(key, jnp.ones(50, bool), 13))))
    assert np.all(np.asarray(draw(jax.random.split(keys.from_seed(0), 20))) == 13)


def test_who_takes_part_is_listed_and_padded_with_nobody():
    status = jnp.array([0, 2, 2, 1, 0, 2])
    assert crowd.members(status, 3).tolist() == [1, 2, 5]
    assert crowd.members(status, 5).tolist() == [1, 2, 5, 6, 6]
    assert crowd.members(status, 9).tolist() == [1, 2, 5, 6, 6, 6]


def test_taking_part_does_not_depend_on_the_ratings(one):
    mechanism = federated.mechanism(config(population=CROWD))
    other = layout.make(tiny(seed=1), kind="dense", num_devices=1)
    seen = []
    for ratings in (one, other):
        state = begun(mechanism, ratings)
        for _ in range(3):
            state, _ = protocol.train(mechanism, keys.from_seed(1), state, ratings, 1)
            seen.append(np.asarray(state.public.crowd))
    assert np.array_equal(seen[:3], seen[3:])
    assert not np.array_equal(seen[0], seen[1])


def test_one_program_serves_all_data_of_a_shape_and_all_rates_and_scales(one):
    other = layout.make(tiny(seed=1), kind="dense", num_devices=1)
    runs = [(config(population=CROWD), one), (config(population=CROWD), other)]
    runs += [
        (
            config(population=dataclasses.replace(CROWD, join=0.1), epsilon=3.0, learning_rate=0.1),
            one,
        )
    ]
    sizes = []
    for settings, ratings in runs:
        mechanism = federated.mechanism(settings)
        protocol.train(mechanism, keys.from_seed(1), begun(mechanism, ratings), ratings, 7)
        sizes.append(protocol.train._cache_size())
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.one_case
@pytest.mark.parametrize("population", [None, CROWD])
def test_chunks_equal_the_whole(one, population):
    mechanism = federated.mechanism(config(population=population))
    key, start = keys.from_seed(1), begun(mechanism, one)
    whole, _ = protocol.train(mechanism, key, start, one, 5)
    part, _ = protocol.train(mechanism, key, start, one, 2)
    part, _ = protocol.train(mechanism, key, part, one, 3)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True):
        assert np.array_equal(a, b)


def test_an_iteration_in_which_nobody_takes_part_changes_nothing(data):
    mechanism = federated.mechanism(
        config(population=federated.Population(join=0.0, leave=0.0, at_most=3))
    )
    state = begun(mechanism, data)
    after, info = protocol.train(mechanism, keys.from_seed(1), state, data, 3)
    assert np.array_equal(after.public.item_factors, state.public.item_factors)
    assert np.array_equal(after.private.user_factors, state.private.user_factors)
    assert np.all(np.asarray(info.loss) == 0)


# ------------------------------------------------------------------------------------- the ratings


@pytest.mark.parametrize("kind", ["dense", "split"])
def test_the_ratings_of_a_few_users_are_theirs_and_no_others(kind):
    ratings, chosen = many(), [29, 0, 30, 7, 30, 12]
    dense = np.zeros((31, 150), np.float32)
    dense[ratings.user, ratings.item] = ratings.value
    some = jax.jit(layout.take_users)(
        layout.make(ratings, kind=kind, num_devices=1), jnp.array(chosen)
    )
    assert some.num_users == 6
    np.testing.assert_array_equal(some.stored.value, dense[chosen])
    np.testing.assert_array_equal(some.stored.present, dense[chosen] > 0)


ON_TWO_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from dpmf_jax.mechanisms.federated import published as federated
from tests.cases.ratings import many
from dpmf_jax.noise import keys
from dpmf_jax import layout
from dpmf_jax import protocol
from tests.cases.ratings import many
CROWD = federated.Population(join=0.5, leave=0.3, at_most=5)
ratings = many()
for kind in ("dense", "split"):
    one, two = (layout.make(ratings, kind=kind, num_devices=n) for n in (1, 2))
    chosen = jnp.array([29, 0, 30, 7, 30, 12])
    here, there = (jax.jit(layout.take_users)(d, chosen).stored for d in (one, two))
    assert np.array_equal(here.value, there.value) and np.array_equal(here.present,
        there.present), kind
    common = dict(epsilon=2.0, rating_range=(1.0, 5.0), rank=3, center=3.0, num_iterations=4)
    makers = [
        lambda: federated.mechanism(federated.Config(**common)),
        lambda: federated.mechanism(federated.Config(**common, population=CROWD)),
        lambda: federated.per_user(federated.Config(**common, population=CROWD, honest_shares=1)),
        lambda: federated.per_user(federated.Config(**common)),
        lambda: federated.statistics(federated.Config(**common)),
    ]
    for make in makers if kind == "split" else makers[-1:]:
        mechanism, ends = make(), []
        for data in (one, two):
            state = protocol.begin(mechanism, keys.from_seed(0), data)
            ends.append(protocol.train(mechanism, keys.from_seed(1), layout.replicate(data, state),
                data, 3)[0])
        for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
print("same")
"""


@pytest.mark.slow
def test_two_devices_give_what_one_gives():
    assert python(ON_TWO_DEVICES, devices=2, quick=True).stdout == "same\n"


# ----------------------------------------------------------------------------------------------- wh


def test_the_price_is_that_of_every_iteration_with_the_papers_number_beside_it():
    guarantee = federated.mechanism(config(epsilon=0.1)).guarantee(100)
    assert (guarantee.epsilon, guarantee.accountants["paper"], guarantee.status) == (
        10.0,
        0.1,
        "claimed",
    )
    assert guarantee.mechanism == "federated"
    assert guarantee.sensitivity == 8.0
    dynamic = federated.mechanism(config(epsilon=0.8, population=federated.Population())).guarantee(
        10_000
    )
    assert (dynamic.mechanism, dynamic.epsilon) == ("federated-dynamic", 8000.0)
    nothing = federated.non_private(config()).guarantee(10)
    assert nothing.status == "none"


@pytest.mark.parametrize("maker", [federated.mechanism, federated.per_user])
def test_the_table_of_parties_is_printed_and_travels(maker):
    guarantee = maker(config(num_iterations=10)).guarantee(10)
    parties = [party for party, _ in guarantee.against]
    assert parties == [
        "public V",
        "recommender",
        "third party",
        "other users",
        "recommender + third party",
        "colluding users",
    ]
    for party, holds in guarantee.against:
        assert f"    {party} " in guarantee.statement
        assert holds.split()[0] in guarantee.statement
    assert dict(guarantee.against)["recommender + third party"].startswith("nothing")
    assert Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict()))) == guarantee


# --------------------------------------------------------------------------------------------------


@pytest.mark.seconds
def test_the_audit_finds_that_one_rating_moves_more_than_is_claimed(one):
    """u_i follows all of the user's ratings, so every later message of that user moves."""
    mechanism = federated.mechanism(config(epsilon=200.0))
    found = sensitivity.audit(
        mechanism, RATINGS, one, key=keys.from_seed(1), num_steps=60, num_neighbours=50
    )
    assert found[0].verdict == "violated"


@pytest.mark.seconds
@pytest.mark.parametrize("population", [None, CROWD])
def test_what_is_public_follows_from_responses(one, population):
    mechanism = federated.mechanism(config(population=population))
    for finding in post_processing.audit(
        mechanism, RATINGS, one, key=keys.from_seed(2), num_steps=4, num_neighbours=4
    ):
        assert finding.verdict == "consistent", finding


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"rank": 0},
        {"learning_rate": -1.0},
        {"regularization": -1.0},
        {"center": math.inf},
        {"clip_norm": 0.0},
        {"num_iterations": 0},
        {"honest_shares": 0},
        {"prior_count": math.nan},
        {"rounding_step": 0.0},
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        config(**changes)


@pytest.mark.parametrize(
    "changes", [{"join": -0.1}, {"join": 1.5}, {"leave": math.nan}, {"at_most": 0}]
)
def test_a_crowd_that_means_nothing_is_refused_by_name(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        federated.Population(**changes)
