"""What paper 003's release by a trusted recommender promises: as published, and sound.

The prices, and why, are in `accounting.objective`.
"""

from accounting import words
from accounting.additive_noise import Noise, check_noise
from accounting.digits import printed_whole
from accounting.guarantee import Guarantee, priced
from accounting.loss import Gaussian, Loss, Pure
from accounting.objective import statistics_loss, value_change_loss
from accounting.relation import PRESENCE, value
from accounting.status import REAL_NUMBERS

_PUBLIC_USERS = (
    "the user factors were not computed from these ratings, and every one has norm 1 at most"
)


def published_guarantee(
    *, noise: Noise, scale: float, range_width: float, rank: int, seeded: bool = False
) -> Guarantee:
    """The claim of S1 as published; Theorem 1 takes U as given.

    It is claimed only, for U is fitted first, to the same ratings.

    Raises:
      ValueError: as `value_change_loss`, or the noise is not one of the paper's two.
    """
    if check_noise(noise) == "gaussian":
        raise ValueError("noise must be laplace or l2_laplace, which the paper has, got 'gaussian'")
    return priced(
        mechanism="objective",
        losses=(value_change_loss(noise=noise, scale=scale, range_width=range_width, rank=rank),),
        delta=0.0,
        unit="rating value",
        relation=value(range_width),
        released=("item factors",),
        trust_model=words.CURATOR,
        against=_against("the claim"),
        status="claimed",
        claimed_by="paper 003",
        real_number_noise=True,
        sensitivity=2 * range_width,
        assumptions=(
            (
                "the user factors are the same in both worlds; they are not, since they were fitted"
                " on the same ratings"
            ),
            "every user factor has norm 1 at most; fitted ones may exceed it",
            (
                "the released item factors are the exact minimiser, or depend on the ratings"
                " through the noisy sums alone"
            ),
            words.MASK,
            words.SETTINGS,
            words.CATALOGUE,
            words.FLOAT32_LAPLACE,
        ),
        not_covered=("the user factors, which stay with the curator", "the presence of a rating"),
        seeded=seeded,
    )


def real_closed_form_guarantee(
    *,
    noise: Noise,
    scale: float,
    range_width: float,
    rank: int,
    delta: float = 0.0,
    seeded: bool = False,
) -> Guarantee:
    """ε (and δ) of S1 with public U for noise of real numbers, proved for these.

    Args:
      noise, scale, range_width, rank: see `value_change_loss`.
      delta: 0 for the pure noises; in (0, 1) for the Gaussian, which has no finite ε at 0.
    """
    return closed_form_guarantee(
        value_change_loss(noise=noise, scale=scale, range_width=range_width, rank=rank),
        range_width=range_width,
        sensitivity=2 * range_width,
        delta=delta,
        real=words.FLOAT32_NORMALS if noise == "gaussian" else words.FLOAT32_LAPLACE,
        seeded=seeded,
    )


def closed_form_guarantee(
    loss: Loss,
    *,
    range_width: float,
    sensitivity: float,
    delta: float = 0.0,
    real: str | None = None,
    seeded: bool = False,
) -> Guarantee:
    """ε (and δ) of S1 with public U, proved.

    (Σuuᵀ + Mμ I) v_j = Σur − η_j/2 is solved exactly, or post-processed.

    Args:
      loss: what one release spends; of noise in whole numbers unless `real` says what it is.
      sensitivity: L2, of the statistics.
      delta: 0 for the pure noises; in (0, 1) for the Gaussian, which has no finite ε at 0.
    """
    whole = words.WHOLE_NUMBERS if isinstance(loss, Pure) else words.ROUNDED_NORMALS
    return priced(
        mechanism="objective-public-users",
        losses=(loss,),
        delta=delta,
        unit="rating value",
        relation=value(range_width),
        released=("item factors", "user factors, which were public"),
        trust_model=words.CURATOR,
        against=_against("the stated price"),
        status=REAL_NUMBERS if real else "proved",
        sensitivity=sensitivity,
        assumptions=(
            _PUBLIC_USERS,
            "the number M that weighs the regularisation is a public constant",
            words.MASK,
            words.SETTINGS,
            words.CATALOGUE,
            real or whole,
        ),
        not_covered=("the presence of a rating, for which the closed form has no finite epsilon",),
        seeded=seeded,
    )


def real_statistics_guarantee(
    *,
    matrix_scale: float,
    vector_scale: float,
    rating_bound: float,
    delta: float,
    seeded: bool = False,
) -> Guarantee:
    """`statistics_guarantee` of noise of real numbers, of these standard deviations."""
    return statistics_guarantee(
        statistics_loss(
            matrix_scale=matrix_scale, vector_scale=vector_scale, rating_bound=rating_bound
        ),
        rating_bound=rating_bound,
        delta=delta,
        real=words.FLOAT32_NORMALS,
        seeded=seeded,
    )


def statistics_guarantee(
    loss: Gaussian,
    *,
    rating_bound: float,
    delta: float,
    real: str | None = None,
    seeded: bool = False,
) -> Guarantee:
    """(ε, δ) for one rating's presence, of noisy (Σuuᵀ, Σur) of every item.

    It covers whatever item factors are made of them.

    Args:
      loss: what one release spends; of noise in whole numbers unless `real` says what it is.
    """
    return priced(
        mechanism="objective-statistics",
        losses=(loss,),
        delta=delta,
        unit="rating presence",
        relation=PRESENCE,
        released=(
            "item factors",
            "the noisy statistics of every item",
            "user factors, which were public",
        ),
        trust_model=words.CURATOR,
        against=_against("the stated price"),
        status=REAL_NUMBERS if real else "proved",
        assumptions=(
            _PUBLIC_USERS,
            (
                f"every rating is clipped to {printed_whole(rating_bound)} on either side of a"
                " public centre before it is summed"
            ),
            (
                "every item of the declared catalogue gets noise, rated or not; no count is divided"
                " by, none is released"
            ),
            words.SETTINGS,
            words.DECLARED,
            real or words.ROUNDED_NORMALS,
        ),
        not_covered=(
            (
                "a changed value at this price: it may move the sums twice as far, for up to four"
                " times ρ"
            ),
            (
                "a rating moved to another item at this price: that is one removed and one added,"
                " two times ρ"
            ),
        ),
        seeded=seeded,
    )


def _against(holds: str) -> tuple[tuple[str, str], ...]:
    return (
        ("public V", f"{holds}: this is what the noise is for"),
        ("recommender", "nothing: it holds the ratings, and is trusted"),
        words.NO_THIRD_PARTY,
        ("other users", f"{holds}, as public V"),
        ("recommender + third party", "nothing, as the recommender alone"),
        (
            "colluding users",
            f"{holds}, whatever they know of their own ratings: they have no part in the noise",
        ),
    )
