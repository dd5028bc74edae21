"""Messages of paper 003: what each role may see, what is opened, what a pad hides, what a message weighs."""

import inspect
import math
import typing

import jax
import jax.numpy as jnp
import messages_cases as cases
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from messages_cases import ITEMS, RANK, STEP, USERS, WIDTH

from dpmf_jax import messages, ring
from dpmf_jax.messages import Ask, Opened, Own, Request, Total, Upload

FALSE_ALARM = 1e-4  # of every statistical test, with the keys fixed
RULES = messages.without_noise(step=STEP, center=3.0)
NOBODY_HIDES = jnp.zeros((ITEMS, RANK), jnp.uint32)  # α of S2
iterate = jax.jit(messages.iteration)
every = jnp.ones(USERS, bool)


cut = jax.jit(messages.cut)
split = jax.jit(messages.split, static_argnums=2)


def run(own, listed, *, rules=RULES, seed=0, factors=None, alpha=NOBODY_HIDES, at_least=1, **settings):
    factors = cases.item_factors() if factors is None else factors
    return iterate(
        jax.random.key(seed), rules, own, listed, factors, alpha, every, every, jnp.int32(at_least), **settings
    )


def bitwise(one, other) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), one, other))


# ----------------------------------------------------------------------------------------------- what each role may see

SEES = {
    "user": {
        "contribution": {"own", "item_factors", "rules"},
        "upload": {"key", "own", "ask", "request", "rules"},
        "keep_share": {"key", "request", "rules"},
        "introduce": {"key", "ask", "request", "rules"},
    },
    "third party": {
        "draw_alpha": {"key", "num_items", "rank"},
        "add_up": {"uploads", "arrived", "alpha", "at_least"},
    },
    "recommender": {
        "draw_factor": {"key", "num_items", "rank"},
        "request": {"key", "asks", "asked", "num_items", "rank", "item_factors", "tau_hat", "factor"},
        "cut": {"key", "tau_hat", "asks", "asked"},
        "split": {"key", "tau_hat", "num_pieces"},
        "open_sum": {"total", "asks", "asked", "requests"},
    },
}
HIDDEN = {
    "user": {Upload, Total, Opened, messages.Messages},  # of others; own uploads are what a user returns
    "third party": {Own, Ask, Request, Opened, messages.Messages},
    "recommender": {Own, Upload, messages.Messages},
}
WHOLE_RUNS = {"initialise", "iteration"}
COUNTING = {"num_bytes", "traffic"}
SETTINGS = {"published", "per_user", "without_noise"}


@pytest.mark.parametrize("role", SEES)
def test_a_role_takes_what_it_may_see_and_nothing_else(role):
    for name, seen in SEES[role].items():
        function = getattr(messages, name)
        assert set(inspect.signature(function).parameters) == seen, name
        hints = typing.get_type_hints(function)
        del hints["return"]
        assert not HIDDEN[role] & set(hints.values()), name
        assert inspect.unwrap(function).__closure__ is None, name


def test_every_public_function_is_a_role_s_or_plays_all():
    found = {
        name
        for name, value in vars(messages).items()
        if inspect.isfunction(value) and value.__module__ == messages.__name__ and not name.startswith("_")
    }
    assert found == set().union(*SEES.values(), WHOLE_RUNS, COUNTING, SETTINGS)


def test_a_message_has_only_the_fields_that_its_reader_may_see():
    """The third party never gets a pad, a piece, V or a rating; the recommender no single φ."""
    assert set(Upload._fields) == {"items", "masked"}
    assert set(Ask._fields) == {"items"}
    assert set(Total._fields) == {"sums", "opened", "arrived"}
    assert set(Request._fields) == {"pads", "item_factors", "pieces", "factor", "num_shares"}
    assert not set(Own._fields) & set(Request._fields) | set(Own._fields) & set(Upload._fields)


@pytest.mark.parametrize("user", range(USERS))
def test_a_user_s_upload_depends_on_the_own_data_alone(user):
    """Every other user's factors and ratings are replaced: the upload stays, to the bit; all other uploads change."""
    listed = cases.asks()
    own, other = cases.owns(listed), cases.owns(listed, seed=1)
    mixed = jax.tree.map(lambda a, b: b.at[user].set(a[user]), own, other)
    uploads, changed = (run(world, listed)[1].uploads for world in (own, mixed))
    assert bitwise(jax.tree.map(lambda leaf: leaf[user], uploads), jax.tree.map(lambda leaf: leaf[user], changed))
    others = np.arange(USERS) != user
    assert np.all(np.any(np.asarray(uploads.masked != changed.masked), axis=(1, 2))[others])


def test_one_user_alone_and_among_others_sends_the_same():
    listed = cases.asks()
    own = cases.owns(listed)
    _opened, sent = run(own, listed)
    key = jax.random.split(jax.random.split(jax.random.key(0))[1], USERS)[2]
    mine = jax.tree.map(lambda leaf: leaf[2], (own, listed, sent.requests))
    assert bitwise(messages.upload(key, *mine, RULES), jax.tree.map(lambda leaf: leaf[2], sent.uploads))


def test_what_the_recommender_sends_does_not_depend_on_ratings():
    listed = cases.asks()
    first, second = (run(cases.owns(listed, seed), listed)[1].requests for seed in (0, 1))
    assert bitwise(first, second)


# ------------------------------------------------------------------------------------------------------- what is opened


@given(seed=st.integers(0, 2**20), alpha=st.booleans())
def test_without_noise_the_opened_sum_is_the_plain_gradient_exactly(seed, alpha):
    """On numbers that the grid holds, with pads and, in S3's manner, with α and pieces of τ̂ = α."""
    listed = cases.asks(seed)
    own, factors = cases.owns(listed, seed), cases.item_factors(seed)
    secret = cases.elements(seed, ITEMS, RANK) if alpha else NOBODY_HIDES
    opened, _sent = run(own, listed, seed=seed, factors=factors, alpha=secret, tau_hat=secret)
    counts = cases.contributors(listed, every)
    np.testing.assert_array_equal(opened.counts, counts)
    np.testing.assert_array_equal(opened.opened, counts > 0)
    expected = cases.plain_sums(own, listed, factors, every, center=3.0)
    np.testing.assert_array_equal(ring.decode(opened.sums, STEP), expected)


def test_on_other_numbers_it_is_within_one_step_for_each_contribution():
    listed = cases.asks()
    own = cases.owns(listed)
    own = own._replace(factors=own.factors / 3, values=own.values + 0.123)
    opened, _sent = run(own, listed)
    expected = cases.plain_sums(own, listed, cases.item_factors(), every, center=3.0)
    apart = np.abs(ring.decode(opened.sums, STEP) - expected)
    assert np.all(apart <= STEP * np.asarray(opened.counts)[:, None] + 1e-5)
    assert np.max(apart) > STEP / 10


def test_padding_and_the_order_of_a_list_change_nothing():
    listed = cases.asks()
    own = cases.owns(listed)
    order = np.argsort(np.random.default_rng(5).random((USERS, WIDTH)), axis=1)
    turned = Ask(jnp.take_along_axis(listed.items, order, 1))
    own_turned = own._replace(
        values=jnp.take_along_axis(own.values, order, 1), rated=jnp.take_along_axis(own.rated, order, 1)
    )
    # what stands in the padding is nothing: a rating there would be one of no item
    filled = own_turned._replace(
        values=jnp.where(own_turned.rated, own_turned.values, 77.0), rated=jnp.ones_like(own_turned.rated)
    )
    results = [run(*world)[0] for world in ((own, listed), (own_turned, turned), (filled, turned))]
    assert bitwise(results[0], results[1])
    assert bitwise(results[0], results[2])


def test_the_sum_wraps_around_and_comes_back():
    """α and τ̂ far apart: the total passes 2^32 many times, what is opened does not move."""
    listed = cases.asks()
    own = cases.owns(listed)
    high = jnp.full((ITEMS, RANK), 2**32 - 1, jnp.uint32)
    results = [run(own, listed, alpha=alpha, tau_hat=alpha)[0] for alpha in (NOBODY_HIDES, high, high // 2)]
    assert bitwise(results[0], results[1])
    assert bitwise(results[0], results[2])


def test_rows_without_a_sum_are_zero_and_say_so():
    listed = cases.asks()
    opened, sent = run(cases.owns(listed), listed, at_least=3)
    enough = cases.contributors(listed, every) >= 3
    assert 0 < enough.sum() < ITEMS
    np.testing.assert_array_equal(opened.opened, enough)
    np.testing.assert_array_equal(sent.total.opened, enough)
    for sums in (opened.sums, sent.total.sums):
        assert not np.any(np.asarray(sums)[~enough])
        assert np.all(np.any(np.asarray(sums)[enough], axis=1))
    assert not np.any(np.asarray(opened.counts)[~enough])


def test_a_scan_over_iterations_is_the_loop_over_them():
    listed = cases.asks()
    own = cases.owns(listed)

    def step(factors, key):
        opened, _sent = messages.iteration(key, RULES, own, listed, factors, NOBODY_HIDES, every, every, 1)
        return factors - ring.decode(opened.sums, STEP) / 64, opened.sums

    keys = jax.random.split(jax.random.key(3), 4)
    scanned, sums = jax.jit(lambda factors: jax.lax.scan(step, factors, keys))(cases.item_factors())
    factors = cases.item_factors()
    for key, seen in zip(keys, sums, strict=True):
        opened, _sent = iterate(key, RULES, own, listed, factors, NOBODY_HIDES, every, every, jnp.int32(1))
        np.testing.assert_array_equal(opened.sums, seen)
        factors = factors - ring.decode(opened.sums, STEP) / 64
    np.testing.assert_array_equal(factors, scanned)


def test_rules_of_one_kind_do_not_recompile():
    listed = cases.asks()
    own = cases.owns(listed)
    run(own, listed)
    before = iterate._cache_size()
    run(own, listed, rules=messages.without_noise(step=2.0**-4, center=1.0, clip_norm=2.0), at_least=2)
    assert iterate._cache_size() == before


# ---------------------------------------------------------------------------------------------------- the whole message


def in_steps(contribution) -> int:
    """The L1 norm, as a whole number of steps."""
    return int(np.sum(np.abs(np.asarray(ring.signed(contribution)).astype(np.int64))))


contribute = jax.jit(messages.contribution)
wild = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, 1e-30, 3e38, -3e38, math.inf, -math.inf, math.nan, 1.0, 5.0])
)


@given(
    numbers=st.lists(wild, min_size=RANK + WIDTH, max_size=RANK + WIDTH),
    clip_norm=st.floats(STEP, 2.0**20, width=32),
    seed=st.integers(0, 100),
)
def test_no_data_make_a_message_longer_than_the_clip(numbers, clip_norm, seed):
    own = Own(jnp.asarray(numbers[:RANK], jnp.float32), jnp.asarray(numbers[RANK:], jnp.float32), jnp.ones(WIDTH, bool))
    factors = jnp.asarray(np.random.default_rng(seed).normal(size=(WIDTH, RANK)), jnp.float32)
    rules = messages.without_noise(step=STEP, clip_norm=clip_norm)
    assert in_steps(contribute(own, factors, rules)) <= clip_norm / STEP


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_makes_a_message_of_nothing(bad):
    own = Own(jnp.array([1.0, bad, 1.0]), jnp.full(WIDTH, 3.0), jnp.ones(WIDTH, bool))
    rules = messages.without_noise(step=STEP, clip_norm=1.0)
    assert in_steps(contribute(own, jnp.ones((WIDTH, RANK)), rules)) == 0


def test_the_clip_scales_and_leaves_short_messages_alone():
    """Whole messages: one factor for all items. Of a clipped one 1% or less is given away, rounding aside."""
    own = jax.tree.map(lambda leaf: leaf[0], cases.owns(cases.whole_catalogue()))
    free = messages.contribution(own, cases.item_factors(), RULES)
    length = in_steps(free) * STEP
    fine = 2.0**-20
    for clip, kept in ((2 * length, 1.0), (length / 5, 0.2)):
        rules = messages.without_noise(step=fine, center=3.0, clip_norm=clip)
        clipped = messages.contribution(own, cases.item_factors(), rules)
        np.testing.assert_allclose(ring.decode(clipped, fine), kept * ring.decode(free, STEP), rtol=1e-4, atol=2 * fine)
        assert in_steps(clipped) * fine == pytest.approx(kept * length, rel=1e-3)


def test_a_message_cannot_exceed_the_clip_by_computing_in_floats():
    """C of 2^29 steps: numbers are whole steps already, nothing is lost by rounding, and a factor that is a float too
    large would be seen. 500 users of 8 items, and one of 20,000."""
    rules = messages.without_noise(step=2.0**-29, clip_norm=1.0)
    random = np.random.default_rng(0)
    for users, num in ((500, 8), (1, 20_000)):
        factors, rows = random.normal(size=(users, RANK)), random.normal(size=(num, RANK))
        values = random.uniform(1, 5, (users, num))
        own = Own(jnp.float32(factors), jnp.float32(values), jnp.ones((users, num), bool))
        made = jax.vmap(messages.contribution, (0, None, None))(own, jnp.float32(rows), rules)
        lengths = np.array([in_steps(one) for one in made])
        assert np.all(lengths <= 2**29)
        assert np.all(lengths > 0.98 * 2**29)


# -------------------------------------------------------------------------------------------- what the third party sees


def two_worlds(listed):
    own, other = cases.owns(listed), cases.owns(listed, seed=1)
    return own, other._replace(rated=own.rated)


def test_another_pad_makes_the_upload_of_any_other_ratings():
    """φ(D, ψ) = φ(D', ψ + c), where c does not depend on ψ: so both worlds' φ have one law, if ψ is uniform."""
    listed = cases.asks()
    worlds = [jax.tree.map(lambda leaf: leaf[0], world) for world in two_worlds(listed)]
    ask = Ask(listed.items[0])
    rows = cases.item_factors().at[ask.items].get(mode="fill", fill_value=0)
    key = jax.random.key(8)

    def sent(world, pads):
        return messages.upload(key, world, ask, Request(pads, rows), RULES)

    nothing = jnp.zeros((WIDTH, RANK), jnp.uint32)
    moved = sent(worlds[0], nothing).masked - sent(worlds[1], nothing).masked
    assert np.any(moved)
    for seed in range(5):
        pads = cases.elements(seed, WIDTH, RANK)
        assert bitwise(sent(worlds[0], pads), sent(worlds[1], pads + moved))


def test_over_all_pads_of_a_small_ring_every_upload_occurs_once_in_both_worlds():
    """Addition mod 2^32 is addition mod 2^8 in the lowest byte: all 256 pads of a coordinate are gone through."""
    listed = cases.asks()
    ask = Ask(listed.items[0])
    rows = cases.item_factors().at[ask.items].get(mode="fill", fill_value=0)
    pads = jnp.broadcast_to(jnp.arange(256, dtype=jnp.uint32)[:, None, None], (256, WIDTH, RANK))
    counts = []
    for world in two_worlds(listed):
        one = jax.tree.map(lambda leaf: leaf[0], world)
        send = jax.jit(
            jax.vmap(lambda pad, one=one: messages.upload(jax.random.key(8), one, ask, Request(pad, rows), RULES))
        )
        seen = np.asarray(send(pads).masked) % 256
        counts.append(np.array([np.bincount(column, minlength=256) for column in seen.reshape(256, -1).T]))
    assert np.all(counts[0] == 1)
    np.testing.assert_array_equal(counts[0], counts[1])


@pytest.mark.parametrize("dynamic", [False, True])
def test_pads_are_uniform_and_so_is_all_that_the_third_party_sees(dynamic):
    """Bytes of pads and of uploads against the uniform law; the sum of two users' uploads too."""
    listed = cases.whole_catalogue(200)
    own = jax.tree.map(
        lambda leaf: jnp.tile(leaf[:1], (200, *(1,) * (leaf.ndim - 1))), cases.owns(cases.whole_catalogue())
    )
    here = jnp.ones(200, bool)
    tau_hat = cases.elements(1, ITEMS, RANK) if dynamic else None
    _opened, sent = iterate(
        jax.random.key(4), RULES, own, listed, cases.item_factors(), NOBODY_HIDES, here, here, 1, tau_hat=tau_hat
    )
    masked = np.asarray(sent.uploads.masked)
    for words in (np.asarray(sent.requests.pads), masked, masked[::2] + masked[1::2], masked[::2] - masked[1::2]):
        of_bytes = np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)
        assert scipy.stats.chisquare(of_bytes).pvalue > FALSE_ALARM
    assert len(np.unique(masked)) == masked.size


def test_listing_the_whole_catalogue_hides_who_rated_what():
    """In `per_user` the fields that are not masked are the same for any ratings of any items."""
    listed = cases.whole_catalogue()
    own = cases.owns(listed)
    rated = jnp.asarray(np.random.default_rng(0).random((2, USERS, ITEMS)) < 0.5)
    rules = messages.per_user(clip_norm=2.0, scale_in_steps=20.0, num_shares=3, step=STEP)
    results = [run(own._replace(rated=which), listed, rules=rules) for which in rated]
    for opened, sent in results:
        assert np.all(opened.counts == USERS)
        np.testing.assert_array_equal(sent.uploads.items, listed.items)
    assert bitwise(results[0][1].requests, results[1][1].requests)
    assert np.any(results[0][1].uploads.masked != results[1][1].uploads.masked)


# --------------------------------------------------------------------------------------------------------- pieces of τ̂


@given(seed=st.integers(0, 2**20), num_pieces=st.sampled_from([1, 2, 9]))
def test_pieces_sum_to_the_whole(seed, num_pieces):
    tau_hat = cases.elements(seed, ITEMS, RANK)
    pieces = split(jax.random.key(seed), tau_hat, num_pieces)
    assert pieces.shape == (num_pieces, ITEMS, RANK)
    np.testing.assert_array_equal(jnp.sum(pieces, axis=0, dtype=jnp.uint32), tau_hat)


@given(seed=st.integers(0, 2**20), asked=st.lists(st.booleans(), min_size=USERS, max_size=USERS))
def test_pieces_go_to_those_who_asked_for_the_item(seed, asked):
    listed, asked, tau_hat = cases.asks(seed), np.array(asked), cases.elements(seed, ITEMS, RANK)
    pieces = np.asarray(cut(jax.random.key(seed), tau_hat, listed, jnp.asarray(asked)))
    sums = np.zeros((ITEMS + 1, RANK), np.uint32)
    np.add.at(sums, np.asarray(listed.items), pieces)
    some = cases.contributors(listed, asked) > 0
    np.testing.assert_array_equal(sums[:ITEMS][some], np.asarray(tau_hat)[some])
    assert not np.any(pieces[~asked])
    assert not np.any(pieces[np.asarray(listed.items) == ITEMS])


def test_all_pieces_but_one_say_nothing_about_the_whole():
    """Two wholes, one key: only the last piece differs, and by the difference; the others are uniform."""
    whole, other = cases.elements(0, ITEMS, RANK), cases.elements(1, ITEMS, RANK)
    pieces, changed = (split(jax.random.key(2), tau_hat, 600) for tau_hat in (whole, other))
    np.testing.assert_array_equal(pieces[:-1], changed[:-1])
    np.testing.assert_array_equal(pieces[-1] - changed[-1], whole - other)
    of_bytes = np.bincount(np.frombuffer(np.asarray(pieces[:-1]).tobytes(), np.uint8), minlength=256)
    assert scipy.stats.chisquare(of_bytes).pvalue > FALSE_ALARM
    # nor does the last, without the others: over keys it is uniform
    last = jax.jit(jax.vmap(lambda key: messages.split(key, whole, 2)[1]))
    last = np.asarray(last(jax.random.split(jax.random.key(3), 600)))
    of_bytes = np.bincount(np.frombuffer(last.tobytes(), np.uint8), minlength=256)
    assert scipy.stats.chisquare(of_bytes).pvalue > FALSE_ALARM


# ------------------------------------------------------------------------------------------------------ noise and price


@pytest.mark.parametrize("scale", [3.0, 15.0])
def test_the_noise_of_an_opened_sum_is_the_discrete_laplace_of_the_rules(scale):
    """No ratings at all, k' = 3 of 3 users: the seam between what is priced and what is added."""
    rules = messages.per_user(clip_norm=1.0, scale_in_steps=scale, num_shares=3, step=STEP)
    own, listed, here = Own(jnp.ones((3, 4)), jnp.zeros((3, 500)), jnp.zeros((3, 500), bool)), 500, jnp.ones(3, bool)
    asks = Ask(jnp.broadcast_to(jnp.arange(listed), (3, listed)))
    opened, _sent = iterate(
        jax.random.key(1), rules, own, asks, jnp.ones((listed, 4)), jnp.zeros((listed, 4), jnp.uint32), here, here, 3
    )
    drawn = np.abs(np.asarray(ring.signed(opened.sums)).astype(np.int64)).ravel()
    reach = int(4 * scale)
    found = np.bincount(np.minimum(drawn, reach), minlength=reach + 1)

    def p_value(b):
        law = np.append(math.tanh(1 / (2 * b)), 2 * math.tanh(1 / (2 * b)) * np.exp(-np.arange(1, reach) / b))
        return scipy.stats.chisquare(found, drawn.size * np.append(law, 1 - law.sum())).pvalue

    assert p_value(scale) > FALSE_ALARM
    assert p_value(scale * 2 / 3) < FALSE_ALARM
    assert p_value(scale * 3 / 2) < FALSE_ALARM


def test_the_published_noise_of_an_opened_sum_is_laplace_over_h():
    """1,000 items, nothing rated, 3 users with shares (12), H fresh for every item and coordinate."""
    rules = messages.published(scale=2.5, step=2.0**-14)
    num, here = 1000, jnp.ones(3, bool)
    own = Own(jnp.ones((3, 2)), jnp.zeros((3, num)), jnp.zeros((3, num), bool))
    asks = Ask(jnp.broadcast_to(jnp.arange(num), (3, num)))
    factor = messages.draw_factor(jax.random.key(5), num, 2)
    hidden = jnp.zeros((num, 2), jnp.uint32)
    opened, sent = iterate(
        jax.random.key(1), rules, own, asks, jnp.ones((num, 2)), hidden, here, here, 3, factor=factor
    )
    drawn = np.ravel(ring.decode(opened.sums, 2.0**-14))
    assert np.all(sent.requests.num_shares == 3)
    for wrong, fits in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        law = scipy.stats.laplace(scale=2.5 * wrong).cdf
        assert (scipy.stats.kstest(drawn, law).pvalue > FALSE_ALARM) == fits
    given_h = scipy.stats.kstest(drawn / np.ravel(2.5 * np.sqrt(2 * factor)), scipy.stats.norm.cdf)
    assert given_h.pvalue > FALSE_ALARM


@pytest.mark.parametrize(("scale", "num_shares"), [(0.0, 3), (-1.0, 3), (math.nan, 3), (5.0, 0)])
def test_noise_that_is_none_is_refused(scale, num_shares):
    with pytest.raises(ValueError, match="must be"):
        messages.per_user(clip_norm=1.0, scale_in_steps=scale, num_shares=num_shares, step=STEP)


def test_published_rules_without_h_are_refused():
    listed = cases.asks()
    with pytest.raises(ValueError, match="H"):
        messages.iteration(
            jax.random.key(0),
            messages.published(scale=1.0, step=STEP),
            cases.owns(listed),
            listed,
            cases.item_factors(),
            NOBODY_HIDES,
            every,
            every,
            1,
        )


# ---------------------------------------------------------------------------------------------------------------- bytes


def paper_s_user(*, factor: bool):
    """One user with 20 items at d = 50, S3: the real arrays of an iteration."""
    rank, num = 50, 20
    own = Own(jnp.ones((1, rank)), jnp.ones((1, num)), jnp.ones((1, num), bool))
    asks, here = Ask(jnp.arange(num, dtype=jnp.int32)[None]), jnp.ones(1, bool)
    hidden = jnp.zeros((num, rank), jnp.uint32)
    _opened, sent = iterate(
        jax.random.key(0),
        messages.published(scale=1.0, step=STEP) if factor else RULES,
        own,
        asks,
        jnp.ones((num, rank)),
        hidden,
        here,
        here,
        1,
        tau_hat=hidden,
        factor=jnp.ones((num, rank)) if factor else None,
    )
    return messages.traffic(sent)


def test_the_paper_s_bytes_of_a_user_are_counted():
    """20 items, d = 50, four bytes a number: V, pads and pieces down, φ up. The paper: 12 KB and 5 KB at most."""
    sent = paper_s_user(factor=False)
    assert sent["recommender", "user"] == 3 * 20 * 50 * 4 == 12_000
    assert sent["user", "third party"] == 20 * 50 * 4 + 20 * 4 == 4_080 <= 5_000
    assert sent["user", "recommender"] == 80
    # the shares (12) need H and k, in every iteration another H: more than the paper counts
    with_h = paper_s_user(factor=True)
    assert with_h["recommender", "user"] == 12_000 + 4_000 + 80
    assert with_h["user", "third party"] == 4_080


def test_the_third_party_sends_less_than_3_mb_for_10_000_items():
    rank, num, users = 50, 10_000, 1_000
    uploads = Upload(jnp.zeros((users, 1), jnp.int32), jnp.zeros((users, 1, rank), jnp.uint32))
    total = messages.add_up(uploads, jnp.ones(users, bool), jnp.zeros((num, rank), jnp.uint32), 1)
    assert messages.num_bytes(total) == num * rank * 4 + num + users == 2_011_000 < 3_000_000


def test_every_message_has_a_sender_and_a_receiver():
    assert set(messages.ROUTES) == set(messages.Messages._fields)
    assert not {route for route in messages.ROUTES.values() if set(route) == {"user"}}
    counted = jax.eval_shape(lambda: paper_like())
    assert messages.traffic(counted) == messages.traffic(paper_like())


def paper_like():
    listed = cases.asks()
    return run(cases.owns(listed), listed)[1]
