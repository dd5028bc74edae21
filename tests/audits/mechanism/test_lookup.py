"""The lookup audit on trial: floats are told apart by what they can be, whole numbers are not, and
planted bugs are.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import accounting
import audits
from accounting.loss import Gaussian
from audits.mechanism import lookup, lookup_tables
from dpmf_jax import parts
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
from dpmf_jax.noise import keys, ring
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Release, State
from tests.zoo.sound import DATA, OBJECTIVE, RATINGS, sound, steps

pytestmark = pytest.mark.usefixtures("quick_compilation")

LOW, HIGH = RATINGS.rating_range
SIGMA = 20.0


def audit(mechanism, num_steps=1, **settings):
    settings = {"num_neighbours": 4, "num_places": 1, "both_ends": False} | settings
    [finding] = lookup.audit(
        mechanism, RATINGS, DATA, key=keys.from_seed(3), num_steps=num_steps, **settings
    )
    assert finding.audit == "noise: lookup"
    finding.to_dict()
    return finding


# --- what the project has


def _float_query(query, state, data, coins):
    statistics, info = query(state, data, coins)
    return jax.tree.map(lambda leaf: ring.signed(leaf).astype(jnp.float32), statistics), info


def _rounded_update(update, state, response, data):
    def whole(leaf):
        return jax.lax.bitcast_convert_type(jnp.round(leaf).astype(jnp.int32), jnp.uint32)

    return update(state, jax.tree.map(whole, response), data)


def with_float_noise(mechanism):
    """The same with float32 normals: the response is rounded only after it was seen."""
    return mechanism._replace(
        query=Partial(_float_query, mechanism.query),
        noise=noise.gaussian(mechanism.guarantee(1).noise_scale),
        update=Partial(_rounded_update, mechanism.update),
    )


@pytest.mark.seconds
@pytest.mark.parametrize(
    "name",
    [
        "gaussian, published",
        pytest.param("objective-statistics", marks=pytest.mark.slow),
        "langevin",
    ],
)
@pytest.mark.usefixtures("optimized")  # two programs draw the same floats
def test_floats_are_told_apart_by_what_each_world_can_make(name):
    made = sound(name) if name == "gaussian, published" else with_float_noise(sound(name))
    finding = audit(made, steps(name))
    assert finding.verdict == "violated"
    assert finding.measured > finding.claimed
    details = finding.details
    # of samples the table holds the usual statistics alone
    assert details["known_to_the_table"] > (0.7 if name == "langevin" else 0.85)
    if name != "langevin":  # there the rating is mostly not in the sample
        assert details["known_to_the_table"] == 1
        assert details["told_apart"] > 0.5
        assert details["told_apart_in_the_other_world"] == 0
    assert details["replay"]["key"]
    assert details["replay"]["pair"]["change"]


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "num_steps"),
    [
        pytest.param("gaussian-joint-noise", 20, marks=pytest.mark.slow),
        pytest.param("gaussian-public-items", 20, marks=pytest.mark.slow),
        ("noisy-item-means", 1),
        ("user-means", 1),
        ("objective-public-users", 1),
        pytest.param("objective-statistics", 1, marks=pytest.mark.slow),
        ("dpsgd", 1),
        pytest.param("langevin", 20, marks=pytest.mark.slow),
        pytest.param("sketch-dpsgd", 20, marks=pytest.mark.slow),
        ("federated-user", 20),
        ("federated-statistics", 1),
        ("local-gd", 1),
        pytest.param("local-gd-dr", 20, marks=pytest.mark.slow),
    ],
)
def test_whole_numbers_and_bits_are_not(name, num_steps):
    finding = audit(sound(name), min(num_steps, steps(name)), num_runs=1_000, num_drawn=1 << 16)
    assert finding.verdict == "consistent"
    assert "probability 0.95" in finding.details["power"]


@pytest.mark.seconds
@pytest.mark.usefixtures("optimized")  # two programs draw the same floats
def test_a_response_too_large_to_be_counted_by_rows_is_counted_by_entries():
    """A sketch of 4 rows has hundreds of cells, and each its own word."""
    config = sketch_dpsgd.Config(
        rating_range=RATINGS.rating_range,
        num_steps=1,
        sampling_rate=1.0,  # so that a cell has one usual value, and a world one table
        noise_multiplier=2.0,
        rank=20,
        clip_norm=1.0,
    )
    mechanism = with_float_noise(sketch_dpsgd.mechanism(config))
    cells = mechanism.release(mechanism.init(keys.from_seed(0), DATA, None)).sketch
    assert lookup_tables.WORDS // len(cells) * cells.size > lookup.WORK
    finding = audit(mechanism, num_runs=1_000, num_neighbours=2)
    assert finding.verdict == "violated"
    assert finding.details["known_to_the_table"] > 0.5


@pytest.mark.seconds
def test_numbers_of_several_words_are_not_called_consistent():
    """Of η by a radius and a direction, at rank 3."""
    radial = objective.public_users(objective.Config(**OBJECTIVE))
    finding = audit(radial, num_runs=1_000, num_drawn=1 << 16)
    assert finding.verdict == "inconclusive"
    assert "more than one word" in finding.details["why"]


@pytest.mark.seconds
@pytest.mark.usefixtures("optimized")
def test_it_is_part_of_every_quick_audit():
    assert "lookup" in audits.families(quick=True)
    floats = with_float_noise(sound("objective-statistics"))
    for made, verdict in ((floats, "violated"), (sound("noisy-item-means"), "consistent")):
        found = audits.audit(
            made, RATINGS, key=keys.from_seed(0), num_steps=1, quick=True, only=["lookup"]
        )
        assert [(one.audit, one.verdict) for one in found] == [("noise: lookup", verdict)]


def test_what_promises_nothing_or_has_no_noise_is_not_applicable():
    made = gaussian.non_private(
        gaussian.Config(rating_range=(LOW, HIGH), noise_multiplier=None, rank=2)
    )
    assert audit(made).verdict == "not applicable"
    quiet = sound("noisy-item-means")._replace(noise=noise.none())
    assert audit(parts.as_pytree(quiet)).verdict == "not applicable"


def test_what_has_no_price_of_one_step_is_not_applicable():
    def guarantee(num_steps):
        raise ValueError("epsilon must be positive")

    unpriced = parts.as_pytree(sound("noisy-item-means")._replace(guarantee=guarantee))
    found = audit(unpriced)
    assert found.verdict == "not applicable"
    assert "epsilon must be positive" in found.details["why"]


# --- whole numbers on whole statistics, and four bugs of those who write them


def whole_sums(sample, grid=1.0) -> Mechanism:
    """Sums of clipped ratings over each item, in whole multiples of `grid`; their noise is
    `sample`'s.
    """

    def init(key, data, previous):
        del key, previous
        return State(jnp.zeros(data.num_items), (), jnp.int32(0))

    def query(state, data, coins):
        del coins
        values, present = data.stored.value[: data.num_users], data.stored.present[: data.num_users]
        sums = jnp.sum(jnp.where(present, jnp.clip(values, LOW, HIGH), 0.0), 0) / grid
        return sums, Info(jnp.mean((sums - state.public) ** 2), jnp.float32(0))

    def update(state, response, data):
        del data
        return state._replace(public=response.astype(jnp.float32) * grid)

    def guarantee(num_steps):
        return accounting.priced(
            mechanism="whole sums of items",
            losses=(Gaussian(noise_multiplier=SIGMA / (HIGH - LOW), num_steps=num_steps),),
            delta=1e-5,
            sensitivity=(HIGH - LOW) / grid,
            unit="rating value",
            relation=(
                "one rating takes another value of the declared range; who rated what is public"
            ),
            largest_change=HIGH - LOW,
            released=("item sums",),
            trust_model="one curator",
            status="proved",
        )

    def unused(*args):
        raise NotImplementedError

    return parts.as_pytree(
        Mechanism(
            init=init,
            coins=lambda key: None,
            query=query,
            noise=noise.Noise(Partial(sample), unused, unused),
            update=update,
            release=lambda state: Release(center=state.public),
            guarantee=guarantee,
        )
    )


def normal(key, shape):
    return SIGMA * jax.random.normal(key, shape)


def rounded(key, statistics):
    """The rounded normal: whole, whatever the statistics are made of."""
    return jnp.rint(statistics).astype(jnp.int32) + jnp.rint(normal(key, statistics.shape)).astype(
        jnp.int32
    )


def float_noise(key, statistics):
    return statistics + normal(key, statistics.shape)


def off_the_grid(key, statistics):
    """Statistics are multiples of 0.1, noise of 1: the fraction of a response is that of its
    statistics.
    """
    return statistics * 0.1 + jnp.rint(normal(key, statistics.shape))


def rounded_after_scaling(key, statistics):
    """Noise is rounded to whole numbers, then brought to scale by floats, in which statistics are
    not whole.
    """
    return statistics + jnp.rint(normal(key, statistics.shape)) * jnp.float32(0.37)


def low_bits_left(key, statistics):
    """Noise of whole multiples of 8: the last three bits of a response are those of its
    statistics.
    """
    return jnp.rint(statistics).astype(jnp.int32) + 8 * jnp.rint(
        normal(key, statistics.shape) / 8
    ).astype(jnp.int32)


def wide_low_bits_left(key, statistics):
    """The same where no number comes twice: noise of 2^26 in multiples of 8."""
    steps = jnp.rint(jax.random.normal(key, statistics.shape) * 2.0**23).astype(jnp.int32)
    return jnp.rint(statistics).astype(jnp.int32) + 8 * steps


@pytest.mark.parametrize("num_steps", [1, 20])
def test_rounded_noise_on_whole_statistics_is_consistent(num_steps):
    finding = audit(whole_sums(rounded), num_steps, both_ends=True)
    assert finding.verdict == "consistent"
    assert finding.details["known_to_the_table"] > 0.99


@pytest.mark.seconds
@pytest.mark.parametrize(
    "sample",
    [float_noise, off_the_grid, rounded_after_scaling, low_bits_left, wide_low_bits_left],
    ids=lambda f: f.__name__,
)
def test_planted_bugs_are_violated(sample):
    finding = audit(whole_sums(sample))
    assert finding.verdict == "violated", finding.details
    assert finding.details["told_apart_in_the_other_world"] < 0.01


def of_two_words(key, statistics):
    """A quarter of a million values, each from two words, beside statistics that they miss."""
    one, two = jax.random.randint(key, (2, *statistics.shape), 0, 512)
    return statistics + 0.37 * (512.0 * one + two)


@pytest.mark.seconds
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    ("num_drawn", "verdict"), [(1 << 19, "violated"), (1 << 13, "inconclusive")]
)
def test_a_larger_table_is_drawn_where_it_promises_more(monkeypatch, num_drawn, verdict):
    """A small one knows a hundredth of the responses, which refutes nothing."""
    monkeypatch.setattr(lookup, "WORK_FLOATS", RATINGS.num_items << 12)
    assert audit(whole_sums(of_two_words), num_runs=256, num_drawn=num_drawn).verdict == verdict


@pytest.mark.seconds
def test_what_is_sound_is_called_violated_no_more_often_than_stated(monkeypatch):
    """At a level of one half in place of 1e-4, false alarms of rounded noise stay below a half."""
    monkeypatch.setattr(lookup, "ALPHA", 0.5)
    verdicts = [
        lookup.audit(
            whole_sums(rounded),
            RATINGS,
            DATA,
            key=keys.from_seed(seed),
            num_steps=1,
            num_places=1,
            num_runs=256,
        )[0].verdict
        for seed in range(12)
    ]
    assert verdicts.count("violated") <= 9  # binomial of one half: above with probability 0.003


# --- the tables


def test_counting_gives_a_sampler_every_word_once():
    statistics = jnp.zeros((3, 2))
    table = np.asarray(
        lookup_tables.numbers(
            noise.gaussian(1.0).sample,
            lookup_tables.every_word(3),
            statistics,
            0,
            jnp.int32(2),
            1 << 12,
        )
    )
    bits = jax.random.wrap_key_data(jnp.array([[5, 0]], jnp.uint32), impl=lookup_tables.COUNTING)
    assert np.array_equal(jax.random.bits(bits[0], (3, 2)) >> 9, [[5, 5], [6, 6], [7, 7]])
    assert lookup_tables.WORDS <= len(table) < lookup_tables.WORDS + 3
    drawn = np.asarray(jax.random.normal(keys.from_seed(1), (10_000,)))
    # Another program may round a normal otherwise, by its last bit or two.
    numbers = np.sort(table)
    above = np.clip(np.searchsorted(numbers, drawn), 1, len(numbers) - 1)
    nearest = np.minimum(np.abs(numbers[above] - drawn), np.abs(numbers[above - 1] - drawn))
    assert (nearest <= 2 * np.spacing(np.abs(drawn))).all()
    assert (lookup_tables.counts([table], drawn, "value") > 0).mean() > 0.8
    between = np.nextafter(
        np.sort(np.abs(drawn))[:100], np.float32(9)
    )  # small normals lie further apart than floats do
    assert not lookup_tables.counts([table], between, "value").any()


def test_counting_by_entries_gives_every_word_as_counting_by_rows_does():
    """Of uniform noise, which two programs do not round otherwise."""

    def sample(key, statistics):
        return statistics + jax.random.uniform(key, statistics.shape)

    statistics = jnp.arange(6.0).reshape(3, 2)
    by_row, by_entry = (
        np.unique(
            lookup_tables.numbers(
                Partial(sample),
                lookup_tables.every_word(number, entries=entries),
                statistics,
                0,
                jnp.int32(4),
                1 << 12,
                entries=entries,
            )
        )
        for number, entries in ((3, False), (6, True))
    )
    assert np.array_equal(by_row, by_entry)


def test_counts_are_those_of_numpy():
    random = np.random.default_rng(0)
    table, asked = random.integers(-300, 300, 5_000), random.integers(-400, 400, 1_000)
    values, number = np.unique(table, return_counts=True)
    expected = [dict(zip(values, number, strict=True)).get(one, 0) for one in asked]
    assert lookup_tables.counts(np.split(table, 5), asked, "value").tolist() == expected
    wide = table + 2**40 * random.integers(0, 2, 5_000)
    assert lookup_tables.counts([wide], asked, lookup_tables.LOW).tolist() == expected
    zeros = np.array([0.0, -0.0, 1.0], np.float32)
    assert lookup_tables.counts([zeros], zeros, "value").tolist() == [2, 2, 1]
