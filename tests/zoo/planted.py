"""Planted bugs: for each the sound mechanism, what is broken in it, and the audit that must call it
violated.
"""

from typing import Any, NamedTuple

from tests.zoo import bugs, joint, public, rare, whole_noise
from tests.zoo import noise as noises


class Bug(NamedTuple):
    """mechanism: the sound one. plant: breaks it. named: the finding that must be violated. words:
    where it was planted. kind: what is broken, "mechanism", "fit" or "run". slow: not among the
    quick tests. num_steps: of its run, where that is not the usual one.
    """

    mechanism: str
    plant: Any
    named: str
    words: str = ""
    kind: str = "mechanism"
    slow: bool = False
    num_steps: int | None = None


def both(mechanism, make, in_sample, in_both, *, slow=""):
    """A bug of the noise, planted twice; slow: "sample" or "both" where that one is."""

    def in_sample_only(made):
        return made._replace(noise=made.noise._replace(sample=make(made).sample))

    def everywhere(made):
        return made._replace(noise=make(made))

    return [
        Bug(mechanism, in_sample_only, in_sample, "in sample", slow=slow == "sample"),
        Bug(mechanism, everywhere, in_both, "in sample and log_prob", slow=slow == "both"),
    ]


J, ITEMS_PUBLIC, MEANS, SKETCH, STATISTICS = (
    "gaussian-joint-noise",
    "gaussian-public-items",
    "noisy-item-means",
    "sketch-dpsgd",
    "objective-statistics",
)
FACTORS = "als-factors"
PUBLISHED = "gaussian, published"  # of float noise
LARGEST, PURE = "sensitivity: largest step", "privacy loss: largest"

# What the zoo is asked for, word for word; those of the noise are planted twice.
NOISE = (
    "noise × 0.9",
    "noise × 0.5",
    "σ for σ²",
    "wrong Δ (τ for √2τ)",
    "noise only on touched rows",
    "key reused over steps",
    "key reused over leaves",
    "key reused over devices",
    "ε instead of ε/k",
    "biased bit",
    "shared H",
    "NaN path without noise",
)
OTHERS = (
    "no clip",
    "clip before scatter",
    "clip computed on the batch",
    "same seed for two phases",
    "extra round",
    "coordinate chosen by data",
    "data-dependent normaliser",
    "centring by private means",
    "range from data",
    "early stop on private loss",
    "U refitted",
    "released state with X in it",
    "item set leaking through shapes",
    "rounding of the query before noise",
    "subsampling by shuffling priced as Poisson",
)

ALL: dict[str, list[Bug]] = {
    "noise × 0.9": both(J, noises.scaled(0.9), "noise: scale", "noise: scale"),
    "noise × 0.5, of statistics": both(
        "objective-statistics", noises.scaled(0.5), "noise: scale", "noise: scale", slow="both"
    ),
    "noise × 0.5, of an objective": both(
        "objective-public-users", noises.half_objective, "density: sampler", PURE
    ),
    "noise × 0.5, of a sum of messages": both(
        "federated-user", noises.half_federated, "density: sampler", PURE, slow="both"
    ),
    "σ for σ²": both(MEANS, noises.root_for_square, "noise: scale", "noise: scale"),
    "wrong Δ (τ for √2τ)": [
        Bug(J, bugs.narrow_noise, "noise: scale", "in sample"),
        Bug(J, bugs.narrow_delta, LARGEST, "in sample, log_prob and price"),
    ],
    "no clip": [Bug(ITEMS_PUBLIC, bugs.no_clip, LARGEST)],
    "clip before scatter": [Bug(SKETCH, bugs.clip_before_scatter, LARGEST)],
    "clip computed on the batch": [Bug("dpsgd", bugs.clip_on_the_batch, LARGEST)],
    "noise only on touched rows": both(
        "langevin", noises.touched_only, "noise: every entry", "noise: every entry", slow="both"
    ),
    "key reused over steps": both(
        "gaussian, published", noises.one_key, "noise: keys", "noise: keys", slow="both"
    ),
    "key reused over leaves": both(
        J, noises.one_key_for_leaves, "noise: independence", "noise: keys"
    ),
    "key reused over devices": both(
        ITEMS_PUBLIC,
        noises.one_key_for_devices,
        "noise: entries apart",
        "noise: entries apart",
        slow="both",
    ),
    "same seed for two phases": [Bug(J, bugs.one_seed_for_two_phases, "noise: keys", kind="run")],
    "extra round": [
        Bug("local-gd", bugs.round_unpaid, "enumeration: reports of a user", "in the price"),
        Bug(
            ITEMS_PUBLIC, bugs.one_round_more, "fit: steps", "in the program", kind="fit", slow=True
        ),
    ],
    "ε instead of ε/k": both(
        "local-gd",
        noises.whole_epsilon,
        "enumeration: sampler",
        "enumeration: largest ratio",
        slow="both",
    ),
    "biased bit": both(
        "local-gd-dr",
        noises.leaning_bit,
        "enumeration: sampler",
        "enumeration: largest ratio",
        slow="both",
    ),
    "coordinate chosen by data": [
        Bug("local-gd", bugs.own_coordinate, "enumeration: coordinates", slow=True)
    ],
    "data-dependent normaliser": [
        Bug(ITEMS_PUBLIC, public.divided_by_count, "post-processing", "after the noise"),
        Bug("objective-statistics", bugs.mean_for_sum, LARGEST, "before the noise"),
    ],
    "centring by private means": [
        Bug(J, bugs.centred_by_ratings, "init", "in the mechanism"),
        Bug(
            ITEMS_PUBLIC,
            bugs.centred_by_the_data,
            "fit: released numbers",
            "in the program",
            kind="fit",
            slow=True,
        ),
    ],
    "range from data": [Bug(ITEMS_PUBLIC, bugs.range_of_the_data, "fit: public words", kind="fit")],
    "early stop on private loss": [
        Bug(ITEMS_PUBLIC, bugs.stops_early, "fit: steps", kind="fit", slow=True)
    ],
    "U refitted": [Bug("objective-public-users", bugs.refitted_users, LARGEST)],
    "shared H": both(
        "federated-user",
        noises.shared_h,
        "noise: entries apart",
        "noise: entries apart",
        slow="both",
    ),
    "released state with X in it": [Bug("gaussian, published", bugs.released_items, "release")],
    "item set leaking through shapes": [
        Bug(ITEMS_PUBLIC, bugs.only_rated_items, "fit: files", kind="fit")
    ],
    "rounding of the query before noise": [Bug(MEANS, bugs.rounded_query, LARGEST)],
    "subsampling by shuffling priced as Poisson": [
        Bug("dpsgd", bugs.chosen(bugs.shuffle), "coins: independence"),
        Bug(
            "langevin",
            bugs.chosen(bugs.epochs),
            "coins: steps",
            "in epochs of one list",
            slow=True,
        ),
    ],
    "NaN path without noise": both(
        PUBLISHED,
        noises.bare_where_broken,
        "noise: faults",
        "noise: faults",
        slow="both",
    ),
    # beyond the list
    "σ that follows the ratings": both(
        PUBLISHED,
        noises.by_size,
        "noise: both worlds",
        "noise: both worlds",
        slow="both",
    ),
    "noise of 16 bits": [Bug(PUBLISHED, noises.coarse, "noise: repeated values", "in sample")],
    "rows whose noise adds up to 0": [
        Bug(ITEMS_PUBLIC, noises.rows_in_pairs, "noise: entries apart", "in sample")
    ],
    "columns whose noise adds up to 0": [
        Bug(J, noises.columns_in_pairs, "noise: entries apart", "in sample")
    ],
    "tails of Student's t": [Bug(PUBLISHED, noises.heavy_tails, "noise: tails", "in sample")],
    "tails that are drawn again": [
        Bug(PUBLISHED, noises.drawn_again_beyond, "noise: tails", "in sample")
    ],
    "two rows that share a draw": [
        Bug(ITEMS_PUBLIC, whole_noise.first_of_two_rows, "noise: entries apart", "in sample")
    ],
    "an entry that makes up for four others": [
        Bug(J, whole_noise.last_makes_up_for_others, "noise: entries apart", "in sample")
    ],
    "noise in multiples of 3": [
        Bug("federated-statistics", whole_noise.in_threes, "noise: repeated values", "in sample")
    ],
    "no noise now and then": [
        Bug("user-means", whole_noise.now_and_then_none, "noise: repeated values", "in sample")
    ],
    "noise clipped at 4.3σ": [
        Bug(ITEMS_PUBLIC, whole_noise.clipped_at_the_ends, "noise: tails", "in sample")
    ],
    "tails of one sign": [
        Bug("user-means", whole_noise.ends_on_one_side, "noise: tails", "in sample")
    ],
    "less noise where sums are large": [
        Bug("user-means", whole_noise.less_where_sums_are_large, "noise: every entry", "in sample")
    ],
    "a message that counts twice": [Bug("federated-user", rare.one_message_counts_twice, PURE)],
    "items that share a sum": [Bug(STATISTICS, rare.items_in_threes, "user price")],
    "who rated everything counts twice": [
        Bug(ITEMS_PUBLIC, rare.users_of_everything_count_twice, LARGEST)
    ],
    "a value that nobody gave counts thrice": [
        Bug("user-means", rare.users_of_a_code_count_thrice, LARGEST)
    ],
    "user factors that no word names": [
        Bug(PUBLISHED, bugs.says_released("item factors"), "released: words", "in the price")
    ],
    "levels that no word names": [
        Bug("user-means", bugs.says_released("a centre"), "released: words", "in the price")
    ],
    "half of what a user's ratings cost": [
        Bug("user-means", bugs.user_pays(0.5, 0.5), "user price", "in the price")
    ],
    "a user priced as if their ratings did not meet": [
        Bug(ITEMS_PUBLIC, bugs.user_pays(0.0, 1.0), "user price", "in the price")
    ],
    "a share of nothing": [Bug(PUBLISHED, bugs.share_of_marks, LARGEST)],
    "the logarithm of nothing": [Bug(PUBLISHED, bugs.log_of_marks, LARGEST)],
    "centred by the number of ratings": [
        Bug(ITEMS_PUBLIC, public.centred_by_the_number_of_ratings, "init")
    ],
    "divided by the number of ratings": [
        Bug("langevin", public.divided_by_the_number_of_ratings, "post-processing")
    ],
    "only steps that help": [Bug(ITEMS_PUBLIC, public.only_steps_that_help, "post-processing")],
    "smaller steps where most ratings are high": [
        Bug(J, public.smaller_steps_where_most_are_high, "post-processing")
    ],
    "peeks after 70 steps": [
        Bug("federated-statistics", public.peeks_late, "post-processing", num_steps=100)
    ],
    "releases items after 50 steps": [
        Bug(PUBLISHED, public.releases_items_late, "release", num_steps=64)
    ],
    "low digits without noise": [
        Bug(
            "federated-user",
            lambda made: made._replace(noise=noises.low_digits_left(made)),
            "noise: lookup",
            "in sample",
        )
    ],
    "16 bits of seed": [Bug(ITEMS_PUBLIC, noises.few_seeds, "noise: seeds", "in sample")],
    "the server peeks": [Bug("federated-statistics", public.peeking_update, "post-processing")],
    "a crowd of those who have ratings": [
        Bug("federated-user-dynamic", bugs.crowd_of_raters, PURE)
    ],
    "sampled twice as often": [
        Bug(SKETCH, bugs.chosen(bugs.twice_as_often), "coins: rate", slow=True)
    ],
    "sampled by place in a list": [
        Bug("dpsgd", bugs.chosen(bugs.by_place), "coins: both worlds", slow=True)
    ],
    "sampled by the size of the error": [
        Bug("dpsgd", bugs.chosen(bugs.by_error), "coins: rate", slow=True)
    ],
    "sampled by how much a user rated": [
        Bug("langevin", bugs.chosen(bugs.by_activity), "coins: rate", slow=True)
    ],
    "an item that counts twice": [Bug(J, rare.counted_twice(rare.one_item), LARGEST)],
    "the user with fewest ratings counts twice": [
        Bug(ITEMS_PUBLIC, rare.counted_twice(rare.the_least_active), LARGEST)
    ],
    "same coins in every step": [Bug("dpsgd", bugs.same_coins, "coins: steps", slow=True)],
    "metrics outside private/": [
        Bug(ITEMS_PUBLIC, bugs.metrics_in_the_open, "fit: public words", kind="fit", slow=True)
    ],
    "private factors outside private/": [
        Bug("gaussian, published", bugs.everything_in_the_open, "fit: files", kind="fit", slow=True)
    ],
    "weights from raw counts": [Bug(FACTORS, joint.weights_from_raw_counts, LARGEST)],
    "a count of 1 for each rating": [Bug("als-counts", joint.counts_of_ratings, LARGEST)],
    "a message clipped per rating only": [Bug(FACTORS, joint.clip_per_rating, LARGEST)],
    "a residual clip without the message's": [
        Bug(FACTORS, joint.no_whole_clip, LARGEST, slow=True)
    ],
    "a Gram matrix without noise": [
        Bug(FACTORS, joint.gram_without_noise, "noise: lookup", "in sample", slow=True)
    ],
    "a prior fitted to raw counts": [
        Bug("als-means", joint.prior_from_raw_counts, "post-processing")
    ],
    "a last pass that is not paid": [
        Bug(
            "als-means", joint.last_pass_unpaid, "privacy loss: δ = 0.01", "in the price", slow=True
        )
    ],
    "user factors released": [Bug(FACTORS, joint.users_released, "release", slow=True)],
    "replaced priced as removed": [
        Bug("als-means", joint.replaced_as_removed, LARGEST, "in the price", slow=True)
    ],
    "a log that tells who rated": [Bug(ITEMS_PUBLIC, bugs.talks, "fit: logs", kind="fit")],
}


# What no audit here sees, and what would.
UNSEEN = {
    "ratings centred by their mean before they are handed over": (
        bugs.centred_in_secret,
        "an audit that follows a program's statistics, not its releases, on two data sets",
    ),
}


def entries() -> dict[str, Bug]:
    """By name and place."""
    return {
        f"{name}, {bug.words}" if bug.words else name: bug
        for name, planted in ALL.items()
        for bug in planted
    }
