"""What paper 003's T noisy iterations before an untrusted recommender promise."""

from accounting import guards, words
from accounting.additive_noise import Noise
from accounting.digits import printed_whole
from accounting.guarantee import Guarantee, priced
from accounting.iterations import (
    Change,
    iterations_claimed,
    iterations_per_user,
    message_sensitivity,
)
from accounting.relation import USER_ADDED_OR_REMOVED, USER_REPLACED, value
from accounting.status import REAL_NUMBERS

_NOTHING_DRAWN = "noise is as the price has it, of real numbers; no mechanism here draws it"


def published_iterations_guarantee(
    *,
    epsilon: float,
    num_iterations: int,
    range_width: float,
    mechanism: str = "federated",
    seeded: bool = False,
) -> Guarantee:
    """S2 and S3 as published: claimed, T·ε in all, with the paper's number, ε, beside it.

    Args:
      epsilon: of each iteration's noise, which the paper states for the whole run.
      num_iterations: T.
      mechanism: its name; S3 has another.
    """
    return priced(
        mechanism=mechanism,
        losses=(iterations_claimed(epsilon, num_iterations),),
        delta=0.0,
        unit="rating value",
        relation=value(range_width),
        released=("item factors",),
        trust_model=(
            "untrusted recommender, which sees the noisy sum of every iteration; a third party sees"
            " masked messages and does not collude with it; users send what the protocol asks for"
        ),
        rounds_are_seen=True,
        status="claimed",
        claimed_by="paper 003",
        real_number_noise=True,
        sensitivity=2 * range_width,
        accountants={"paper": epsilon},
        against=(
            ("public V", "the claim, T times ε: V is computed from the noisy sums"),
            (
                "recommender",
                (
                    "not the claim: it drew H, and given H the noise is Gaussian of a variance that"
                    " it knows; it sees who rated what"
                ),
            ),
            (
                "third party",
                (
                    "the messages are masked, as well as masks on an interval of real numbers can;"
                    " it sees who rated what"
                ),
            ),
            ("other users", "the claim, as public V; each also knows its own share of the noise"),
            words.TOGETHER,
            (
                "colluding users",
                (
                    "less than the claim: of k shares of an item's noise they know theirs, and an"
                    " only honest rater among them is left with one of k; with the recommender they"
                    " know the sum of the honest ones' messages"
                ),
            ),
        ),
        assumptions=(
            (
                "every iteration is a release of its own at the paper's epsilon, and they add up:"
                " the paper states it once"
            ),
            (
                "user factors are the same in both worlds at every iteration; they are not: each"
                " follows all of the user's ratings, and moves what he sends about every item he"
                " rated"
            ),
            "what a rating adds to a sum changes by 2Δ at most; its residual has no bound",
            (
                "the recommender does not use that it drew H, which the shares of noise are scaled"
                " with; given H their sum is Gaussian of a variance that it chose, and no pure"
                " epsilon holds against it"
            ),
            "the recommender and the third party do not collude, and all shares of noise arrive",
            (
                "a mask drawn from an interval of real numbers hides what it is added to; only one"
                " of a finite group does"
            ),
            words.MASK,
            words.SETTINGS,
            words.CATALOGUE,
        ),
        not_covered=(
            words.NOT_TOGETHER,
            "who rated what, which both of them see",
            "the presence of a rating",
        ),
        seeded=seeded,
    )


def iterations_guarantee(
    *,
    noise: Noise,
    clip_norm: float,
    scale: float,
    num_iterations: int,
    honest_shares: int | None,
    change: Change = "replace",
    delta: float = 0.0,
    mechanism: str = "federated-user",
    seeded: bool = False,
) -> Guarantee:
    """ε per user of S2 and S3 with every user's whole message clipped to C: T iterations, proved.

    Args:
      noise, clip_norm, scale, num_iterations, change: see `iterations_per_user`; the scale is that
        of the sum of `honest_shares` shares.
      honest_shares: k', so many users add their share to the sum of every item in every iteration;
        None: all but the protected one, so that one who drops out or colludes is one too many.
      delta: 0 for the pure noises; in (0, 1) for the Gaussian.

    Laplace noise is proved: the shares add up to its discrete law on the grid. The other two are
    proved for noise that is a real number, and nothing here draws them.
    """
    loss = iterations_per_user(
        noise=noise, clip_norm=clip_norm, scale=scale, num_iterations=num_iterations, change=change
    )
    if honest_shares is None:
        shares, while_honest = (
            "every user other than the protected one adds",
            "none of those who take part does",
        )
    else:
        shares = (
            f"at least {guards.count('honest_shares', honest_shares, 1)} users other than the"
            " protected one add"
        )
        while_honest = f"at least {honest_shares} others who take part do not"
    norm = {
        "laplace": "the sum of all absolute values",
        "l2_laplace": "the sum over items of L2 norms",
        "gaussian": "the L2 norm over all items",
    }[noise]
    return priced(
        mechanism=mechanism,
        losses=(loss,),
        delta=delta,
        unit="user",
        relation=USER_REPLACED if change == "replace" else USER_ADDED_OR_REMOVED,
        released=("item factors", "the noisy sum of every item in every iteration"),
        trust_model=(
            "untrusted recommender, which sees the noisy sums; a third party sees masked messages"
            " and does not collude with it; other users see the item factors"
        ),
        rounds_are_seen=True,
        status="proved" if noise == "laplace" else REAL_NUMBERS,
        sensitivity=message_sensitivity(clip_norm, change) if noise == "gaussian" else None,
        against=(
            ("public V", "ε, in all iterations together: V is computed from the noisy sums"),
            (
                "recommender",
                "ε: it sees the noisy sum of every item in every iteration, and who takes part",
            ),
            words.MASKED,
            ("other users", "ε, as public V"),
            words.TOGETHER,
            (
                "colluding users",
                (
                    f"ε, with or without the recommender, as long as {while_honest}: they know"
                    " their shares of the noise, and the price is that of the others'"
                ),
            ),
        ),
        assumptions=(
            (
                f"a user clips the whole message of an iteration, {norm}, to"
                f" {printed_whole(clip_norm)}, whatever the data"
            ),
            "user factors are computed from the user's own data and public values alone",
            (
                f"{shares} a share of noise to the sum of every item, rated or not, in every"
                " iteration that releases one, and keeps it secret: who drops out or colludes does"
                " not count"
            ),
            words.APART,
            (
                "a message still has that norm after rounding to the grid, and its noise is drawn"
                " on the same grid"
            ),
            "who takes part in which iteration does not depend on the ratings",
            *((words.EMPTY_MESSAGES,) if change == "remove" else ()),
            words.SETTINGS,
            words.CATALOGUE,
            words.WHOLE_NUMBERS if noise == "laplace" else _NOTHING_DRAWN,
        ),
        not_covered=(
            words.NOT_TOGETHER,
            *(
                ("who takes part at all",)
                if change == "replace"
                else ("other data in place of a user's: twice the change",)
            ),
        ),
        seeded=seeded,
    )
