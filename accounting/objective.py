"""Paper 003, objective perturbation: what V costs with a trusted recommender, and what T noisy iterations cost.

Everything rests on one sensitivity per relation, stated here and nowhere else. In objective (6) the ratings of item j
meet its noise only in the gradient, −2Σ_i u_i r_ij + 2(Σ_i u_i u_iᵀ + Mμ I) v_j + η_j = 0, so V is a function of the
noisy 2Σ_i u_i r_ij − η_j and of Σ_i u_i u_iᵀ, and its exact minimiser is post-processing of the two.

| relation                        | what is noisy     | one record moves it by                                         |
|---------------------------------|-------------------|----------------------------------------------------------------|
| a rating's value, by Δ at most  | 2Σur              | 2Δ‖u‖ <= 2Δ in L2, 2Δ√d in L1: `value_sensitivity`             |
| a rating's presence             | 2Σur, A exact     | without bound: `presence_loss`                                 |
| a rating's presence             | Σuuᵀ and Σur      | ‖u‖² <= 1 (Frobenius) and |r|‖u‖ <= c: `statistics_loss`       |
| a user, all of his data         | Σ_i g_i           | 2C replaced, C removed, ‖g_i‖ <= C: `iterations_per_user`      |

The noise is one of three: "laplace" in every coordinate (Lemma 1), "l2_laplace" of density ∝ exp(−‖η‖₂/b) (Theorem 1;
radius Gamma(d, b), uniform direction), or "gaussian". What of the paper's own claims does not hold stands in the
assumptions of its two published guarantees.

A float stands for the shortest decimal that names it; a pure ε is exact in these decimals, then rounded up to a float.
"""

import math
import operator
from decimal import Decimal
from fractions import Fraction
from typing import Literal, get_args

from accounting import gaussian, pure
from accounting.guarantee import Guarantee, priced
from accounting.loss import Gaussian, Loss, Pure
from accounting.statement import printed_whole

Noise = Literal["laplace", "l2_laplace", "gaussian"]
Change = Literal["replace", "remove"]

# ----------------------------------------------------------------------------- one release, trusted recommender (S1)


def value_sensitivity(noise: Noise, *, range_width: float, rank: int) -> float:
    """How far one changed rating moves 2Σur, in the norm that the noise is measured in.

    The rating enters as 2u·r, changes by at most Δ = `range_width`, and ‖u‖₂ <= 1: 2Δ in L2, for "l2_laplace" and
    "gaussian" (proof of Theorem 1), and at most √d times that in L1, for "laplace" (Lemma 1). Other items do not move.

    Args:
      range_width: Δ, width of the declared range of ratings, or the largest change that is to be hidden.
      rank: d.

    Raises:
      ValueError: Δ is not positive and finite, d is not an integer of at least 1, or the noise has another name.
    """
    width = _decimal("range_width", range_width)
    rank = _count("rank", rank)
    if _noise(noise) == "laplace":
        return _root_up(4 * width**2 * rank)
    return _up(2 * width)


def value_change_loss(*, noise: Noise, scale: float, range_width: float, rank: int) -> Loss:
    """What V spends on one rating's value: ε = 2Δ√d/b, ε = 2Δ/b, or one Gaussian step of z = σ/(2Δ).

    It holds where U and who rated what do not depend on what is protected, every ‖u_i‖ <= 1, M is a public constant,
    and V is the exact minimiser or comes from it. A user with m ratings has rated m items, whose noises are
    independent: m·ε, or m·ρ.

    Args:
      scale: b of the Laplace noises, σ of each coordinate of the Gaussian, in units of η (2Σur, not Σur).
      range_width, rank: see `value_sensitivity`.

    Raises:
      ValueError: as `value_sensitivity`, or the scale is not positive and finite.
    """
    sensitivity = value_sensitivity(noise, range_width=range_width, rank=rank)
    return _loss(noise, scale, sensitivity, 1, user_rho=(0.0, 1.0))


def value_change_scale(
    *, noise: Noise, epsilon: float, range_width: float, rank: int, delta: float | None = None
) -> float:
    """The smallest scale whose `value_change_loss` costs at most ε (to 1e-11 relative), at δ for Gaussians.

    Raises:
      ValueError: as `value_change_loss`; ε is not positive and finite; δ is given for a noise that has none, or is not
        in (0, 1) for the Gaussian.
    """
    return _scale(noise, epsilon, delta, value_sensitivity(noise, range_width=range_width, rank=rank), 1)


def presence_loss() -> Pure:
    """What V, as the exact minimiser of (6), spends on a rating's presence: no finite ε, whatever the noise.

    With the rating, η_j = 2(b_j − A_j v_j) has 2u(r − uᵀv) more: the noise at which the same v is the minimiser moves
    by twice the residual, which grows with v without bound, and so does ‖η_j − η_j'‖ in the exponent of the density
    (beside a Jacobian term of at most log(1 + 1/(Mμ))). `statistics_loss` is what protects presence.
    """
    return Pure(epsilon=math.inf)


def squared_noise(noise: Noise, *, scale: float, rank: int) -> float:
    """E‖η‖² of one item's noise, what accuracy pays: 2d·b², d(d + 1)·b², d·σ².

    At equal ε, L2-Laplace needs (d + 1)/(2d) of Lemma 1's: 0.51 at d = 50.
    """
    b, d = _positive("scale", scale), _count("rank", rank)
    weight = {"laplace": 2 * d, "l2_laplace": d * (d + 1), "gaussian": d}[_noise(noise)]
    return weight * b * b


# --------------------------------------------------------------------------- one release of noisy statistics, presence


def statistics_loss(*, matrix_scale: float, vector_scale: float, rating_bound: float) -> Gaussian:
    """What noisy Σuuᵀ and Σur of every item spend on one rating's presence: one Gaussian step.

    One rating more adds uuᵀ, of Frobenius norm ‖u‖² <= 1, and r·u, of norm at most c; both attain their bounds at once.
    So 1/z² = 1/σ_A² + c²/σ_b². The d × d noise on Σuuᵀ has independent entries of standard deviation σ_A, or is their
    symmetric part (E + Eᵀ)/2: σ_A on the diagonal, σ_A/√2 off it, the same in both triangles. That has the same price,
    for Σ_i u_i⁴/σ_A² + Σ_{i<j} u_i²u_j²/(σ_A²/2) = ‖u‖⁴/σ_A². A mirrored triangle with σ_A everywhere costs no more.
    U is public with ‖u_i‖ <= 1, and noise is on all items of a declared catalogue. A user with m ratings: m·ρ.

    Args:
      matrix_scale, vector_scale: σ_A and σ_b.
      rating_bound: c, every rating is clipped to [−c, c] after a public centre is subtracted.

    Raises:
      ValueError: a number is not positive and finite.
    """
    z_matrix = _positive("matrix_scale", matrix_scale)
    z_vector = _positive("vector_scale", vector_scale) / _positive("rating_bound", rating_bound)
    return Gaussian(noise_multiplier=1 / math.hypot(1 / z_matrix, 1 / z_vector), num_steps=1, user_rho=(0.0, 1.0))


def statistics_scales(
    *, epsilon: float, delta: float, rating_bound: float, matrix_share: float = 0.5
) -> tuple[float, float]:
    """(σ_A, σ_b) at which `statistics_loss` costs at most ε at δ; `matrix_share` of ρ goes to Σuuᵀ.

    Raises:
      ValueError: ε, δ or c is out of range, or the share is not strictly between 0 and 1.
    """
    if not 0 < matrix_share < 1:
        raise ValueError(f"matrix_share must be between 0 and 1, both excluded, got {matrix_share!r}")
    bound = _positive("rating_bound", rating_bound)
    z = gaussian.solve_noise_multiplier(epsilon, delta, 1)
    return z / math.sqrt(matrix_share), bound * z / math.sqrt(1 - matrix_share)


# ------------------------------------------------------------------------ T iterations, untrusted recommender (S2, S3)


def iterations_claimed(epsilon: float, num_iterations: int) -> Pure:
    """What T iterations of the published protocol spend on one rating, if the paper's claim held in each: T·ε.

    The paper states ε for the whole run; each iteration is a release of its own, so the claim is ε per iteration: 10.0
    at ε = 0.1, T = 100. The η of (6) is not paid again, V is post-processing. Even this is not proved: u_i follows the
    user's own ratings and moves all of his messages, and the residual has no bound.

    Raises:
      ValueError: ε is not positive and finite, or T is not an integer of at least 1.
    """
    rounds = _count("num_iterations", num_iterations)
    return Pure(epsilon=_up(rounds * _decimal("epsilon", epsilon)), num_rounds=rounds)


def message_sensitivity(clip_norm: float, change: Change) -> float:
    """How far one user moves Σ_i g_i where messages are clipped to C: 2C if all of his data are replaced, C if removed.

    The message is all that the user sends in an iteration, over all items; its norm is the one of the noise: Σ_j‖g_ij‖₁
    for "laplace", Σ_j‖g_ij‖₂ for "l2_laplace" of scale b on every item, √(Σ_j‖g_ij‖₂²) for "gaussian". Rounding towards
    zero after the clip keeps every one of these norms, so fixed point costs nothing here.

    Raises:
      ValueError: C is not positive and finite, or the change has another name.
    """
    if change not in get_args(Change):
        raise ValueError(f"change must be one of {', '.join(get_args(Change))}, got {change!r}")
    return _up((2 if change == "replace" else 1) * _decimal("clip_norm", clip_norm))


def iterations_per_user(
    *, noise: Noise, clip_norm: float, scale: float, num_iterations: int, change: Change = "replace"
) -> Loss:
    """What T iterations spend on a user who clips his whole message: T·2C/b, or ρ = T·2C²/σ² ("replace").

    A removed user costs half the ε, a quarter of the ρ. u_i may be anything computed from the user's own data and
    public V, and what is sent may change from iteration to iteration. T = 1 is one release of clipped statistics.

    Args:
      noise: see `message_sensitivity` for the norm that goes with it.
      clip_norm: C. scale: b or σ, of the sum over users, in every iteration. num_iterations: T, fixed beforehand.
      change: "replace" hides what all of a user's data are, "remove" that he takes part.

    Raises:
      ValueError: a number is out of range, or the noise or the change has another name.
    """
    return _loss(noise, scale, message_sensitivity(clip_norm, change), _count("num_iterations", num_iterations))


def iterations_scale(
    *,
    noise: Noise,
    epsilon: float,
    clip_norm: float,
    num_iterations: int,
    change: Change = "replace",
    delta: float | None = None,
) -> float:
    """The smallest scale (to 1e-11 relative) at which `iterations_per_user` costs at most ε, at δ for Gaussians.

    Raises:
      ValueError: as `iterations_per_user` and `value_change_scale`.
    """
    sensitivity = message_sensitivity(clip_norm, change)
    return _scale(noise, epsilon, delta, sensitivity, _count("num_iterations", num_iterations))


def rounded_sensitivity(sensitivity: float, *, rounding_step: float, num_coordinates: int) -> float:
    """The L2 sensitivity after rounding to multiples of h, h√n more: each of n coordinates may end one step further.

    Rounding, to the nearest or with coins that are the same in both worlds, moves |x − y| to at most |x − y| + h. The
    noise must be added after it, on the grid. This is for differences; `message_sensitivity` bounds each message.

    Args:
      num_coordinates: n that can differ: d for a changed rating, d times the declared catalogue for a user.

    Raises:
      ValueError: a number is out of range; a step of 0 is no rounding.
    """
    base = _decimal("sensitivity", sensitivity)
    if not 0 <= rounding_step < math.inf:
        raise ValueError(f"rounding_step must be at least 0 and finite, got {rounding_step!r}")
    step = Fraction(Decimal(repr(float(rounding_step))))
    more = Fraction(Decimal(repr(_root_up(step**2 * _count("num_coordinates", num_coordinates))))) if step else 0
    return _up(base + more)


# ---------------------------------------------------------------------------------------------------------- guarantees


def published_guarantee(
    *, noise: Noise, scale: float, range_width: float, rank: int, seeded: bool = False
) -> Guarantee:
    """S1 as published: claimed only, for Theorem 1 takes U as given, and U is fitted first on the same ratings.

    Raises:
      ValueError: as `value_change_loss`, or the noise is not one of the paper's two.
    """
    if _noise(noise) == "gaussian":
        raise ValueError("noise must be laplace or l2_laplace, which the paper has, got 'gaussian'")
    return priced(
        mechanism="objective",
        losses=(value_change_loss(noise=noise, scale=scale, range_width=range_width, rank=rank),),
        delta=0.0,
        unit="rating value",
        relation=_value_relation(range_width),
        released=("item factors",),
        trust_model=_CURATOR,
        status="claimed",
        sensitivity=2 * range_width,
        largest_change=float(range_width),
        assumptions=(
            "the user factors are the same in both worlds; they are not, since they were fitted on the same ratings",
            "every user factor has norm 1 at most; fitted ones may exceed it",
            "the released item factors are the exact minimiser, or depend on the ratings through the noisy sums alone",
            _MASK,
            _SETTINGS,
            _CATALOGUE,
            _NOISE,
        ),
        not_covered=("the user factors, which stay with the curator", "the presence of a rating"),
        seeded=seeded,
    )


def closed_form_guarantee(
    *, noise: Noise, scale: float, range_width: float, rank: int, delta: float = 0.0, seeded: bool = False
) -> Guarantee:
    """S1 with public U: (Σuuᵀ + Mμ I) v_j = Σur − η_j/2, solved exactly or post-processed in any way; proved.

    Args:
      noise, scale, range_width, rank: see `value_change_loss`.
      delta: 0 for the pure noises; in (0, 1) for the Gaussian, which has no finite ε at 0.
    """
    return priced(
        mechanism="objective-public-users",
        losses=(value_change_loss(noise=noise, scale=scale, range_width=range_width, rank=rank),),
        delta=delta,
        unit="rating value",
        relation=_value_relation(range_width),
        released=("item factors", "user factors, which were public"),
        trust_model=_CURATOR,
        status="proved",
        sensitivity=2 * range_width,
        largest_change=float(range_width),
        assumptions=(
            _PUBLIC_USERS,
            "the number M that weighs the regularisation is a public constant",
            _MASK,
            _SETTINGS,
            _CATALOGUE,
            _NOISE,
        ),
        not_covered=("the presence of a rating, for which the closed form has no finite epsilon",),
        seeded=seeded,
    )


def statistics_guarantee(
    *, matrix_scale: float, vector_scale: float, rating_bound: float, delta: float, seeded: bool = False
) -> Guarantee:
    """Noisy (Σuuᵀ, Σur) of every item, and whatever item factors are made of them; one rating's presence, proved."""
    return priced(
        mechanism="objective-statistics",
        losses=(statistics_loss(matrix_scale=matrix_scale, vector_scale=vector_scale, rating_bound=rating_bound),),
        delta=delta,
        unit="rating presence",
        relation="two data sets, one of which has one rating more than the other",
        released=("item factors", "the noisy statistics of every item", "user factors, which were public"),
        trust_model=_CURATOR,
        status="proved",
        assumptions=(
            _PUBLIC_USERS,
            f"every rating is clipped to {printed_whole(rating_bound)} on either side of a public centre before it is "
            "summed",
            "every item of the declared catalogue gets noise, rated or not; no count is divided by, none is released",
            _SETTINGS,
            "the catalogue was declared, not read off the ratings, and covers every user and item there could be",
            _NOISE,
        ),
        not_covered=(
            "a changed value at this price: it may move the sums twice as far, for up to four times ρ",
            "a rating moved to another item at this price: that is one removed and one added, two times ρ",
        ),
        seeded=seeded,
    )


def published_iterations_guarantee(
    *, epsilon: float, num_iterations: int, range_width: float, mechanism: str = "federated", seeded: bool = False
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
        relation=_value_relation(range_width),
        released=("item factors",),
        trust_model=(
            "untrusted recommender, which sees the noisy sum of every iteration; a third party sees masked messages "
            "and does not collude with it; users send what the protocol asks for"
        ),
        status="claimed",
        sensitivity=2 * range_width,
        largest_change=float(range_width),
        accountants={"paper": epsilon},
        assumptions=(
            "every iteration is a release of its own at the paper's epsilon, and they add up: the paper states it once",
            "user factors are the same in both worlds at every iteration; they are not: each follows all of the user's "
            "ratings, and moves what he sends about every item he rated",
            "what a rating adds to a sum changes by 2Δ at most; its residual has no bound",
            "the recommender does not use that it drew H, which the shares of noise are scaled with; given H their sum "
            "is Gaussian of a variance that it chose, and no pure epsilon holds against it",
            "the recommender and the third party do not collude, and all shares of noise arrive",
            "a mask drawn from an interval of real numbers hides what it is added to; only one of a finite group does",
            _MASK,
            _SETTINGS,
            _CATALOGUE,
        ),
        not_covered=(
            "the recommender and the third party together, who can take every mask off",
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
    honest_shares: int,
    change: Change = "replace",
    delta: float = 0.0,
    mechanism: str = "federated-user",
    seeded: bool = False,
) -> Guarantee:
    """S2 and S3 with every user's whole message clipped to C; unit user, T iterations added up, proved.

    Args:
      noise, clip_norm, scale, num_iterations, change: see `iterations_per_user`; the scale is that of the sum of
        `honest_shares` shares.
      honest_shares: k', so many users add their share to the sum of every item in every iteration.
      delta: 0 for the pure noises; in (0, 1) for the Gaussian.
    """
    loss = iterations_per_user(
        noise=noise, clip_norm=clip_norm, scale=scale, num_iterations=num_iterations, change=change
    )
    shares = _count("honest_shares", honest_shares)
    relation = (
        "two data sets that differ in all data of one user, who takes part in the same iterations"
        if change == "replace"
        else "two data sets, one of which has all data of one user and the other has none of that user"
    )
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
        relation=relation,
        released=("item factors", "the noisy sum of every item in every iteration"),
        trust_model=(
            "untrusted recommender, which sees the noisy sums; a third party sees masked messages and does not collude "
            "with it; other users see the item factors"
        ),
        status="proved",
        sensitivity=message_sensitivity(clip_norm, change) if noise == "gaussian" else None,
        assumptions=(
            f"a user clips the whole message of an iteration, {norm}, to {printed_whole(clip_norm)}, whatever the data",
            "user factors are computed from the user's own data and public values alone",
            f"at least {shares} users other than the protected one add their share of noise to the sum of every item, "
            "rated or not, in every iteration, and keep it to themselves: who drops out or colludes does not count",
            "the recommender and the third party do not collude, and masks are uniform on a finite group",
            "a message still has that norm after rounding to the grid, and its noise is drawn on the same grid",
            "who takes part in which iteration does not depend on the ratings",
            _SETTINGS,
            _CATALOGUE,
            _NOISE,
        ),
        not_covered=(
            "the recommender and the third party together, who can take every mask off",
            *(
                ("who takes part at all",)
                if change == "replace"
                else ("other data in place of a user's: twice the change",)
            ),
        ),
        seeded=seeded,
    )


_CURATOR = "trusted curator: one party holds the ratings, runs the training and reveals nothing but the release"
_PUBLIC_USERS = "the user factors were not computed from these ratings, and every one has norm 1 at most"
_MASK = "who rated what is public"
_SETTINGS = "the number of steps, the clips and all other settings were chosen without looking at the ratings"
_CATALOGUE = "the catalogue of users and items and the declared rating range are public"
_NOISE = "noise is pseudo-random, and floating point does not leave gaps that tell ratings apart"


def _value_relation(range_width: float) -> str:
    return (
        f"two data sets with the same rated pairs, one rating's value differs, by at most {printed_whole(range_width)}"
    )


# ------------------------------------------------------------------------------------------------------------ numerics


def _loss(
    noise: Noise, scale: float, sensitivity: float, count: int, user_rho: tuple[float, float] | None = None
) -> Loss:
    if _noise(noise) == "gaussian":
        z = _positive("scale", scale) / sensitivity
        return Gaussian(noise_multiplier=z, num_steps=count, user_rho=user_rho)
    return Pure(epsilon=pure.epsilon_laplace(scale, _times(count, sensitivity)), num_rounds=count)


def _scale(noise: Noise, epsilon: float, delta: float | None, sensitivity: float, count: int) -> float:
    if _noise(noise) == "gaussian":
        if delta is None:
            raise ValueError("delta must be given for Gaussian noise, which has no finite epsilon without one")
        return gaussian.solve_noise_multiplier(epsilon, delta, count) * sensitivity
    if delta is not None:
        raise ValueError(f"delta must be left out for pure noise ({noise}), got {delta!r}")
    return pure.scale_laplace(epsilon, _times(count, sensitivity))


def _times(count: int, sensitivity: float) -> float:
    """T·Δ: T rounds at Δ/b cost together what one round of T times the change would."""
    return _up(count * _decimal("sensitivity", sensitivity))


def _up(value: Fraction) -> float:
    """The smallest float whose decimal name is not below a positive number."""
    try:
        nearest = float(value)
    except OverflowError:
        nearest = math.inf
    if nearest == math.inf:
        raise ValueError("the numbers are so far apart that their quotient is out of range")
    return nearest if Fraction(Decimal(repr(nearest))) >= value else math.nextafter(nearest, math.inf)


def _root_up(square: Fraction) -> float:
    root = math.sqrt(_up(square))
    return root if Fraction(Decimal(repr(root))) ** 2 >= square else math.nextafter(root, math.inf)


def _decimal(name: str, value: float) -> Fraction:
    return Fraction(Decimal(repr(_positive(name, value))))


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return float(value)


def _count(name: str, value: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or not count >= 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return count


def _noise(noise: Noise) -> Noise:
    if noise not in get_args(Noise):
        raise ValueError(f"noise must be one of {', '.join(get_args(Noise))}, got {noise!r}")
    return noise
