"""Paper 003, objective perturbation: what a release of V costs with a trusted recommender.

Everything rests on one sensitivity per relation, stated here and nowhere else. In objective (6) the
ratings of item j meet its noise only in the gradient, −2Σ_i u_i r_ij + 2(Σ_i u_i u_iᵀ + Mμ I) v_j +
η_j = 0. So V is a function of the noisy 2Σ_i u_i r_ij − η_j and of A_j = Σ_i u_i u_iᵀ + Mμ I, and
its exact minimiser is post-processing of the two.

What is noisy, and how far one record moves it:

- a rating's value, by Δ at most: 2Σur moves by 2Δ‖u‖ <= 2Δ in L2 and 2Δ√d in L1, see
  `value_sensitivity`;
- a rating's presence, A exact: 2Σur moves without bound, so no ε is finite, whatever the noise.
  With the rating, η_j = 2(b_j − A_j v_j) has 2u(r − uᵀv) more: the noise at which the same v is the
  minimiser moves by twice the residual, which grows with v without bound. (The Jacobian adds at
  most log(1 + 1/(Mμ)).)
- a rating's presence, Σuuᵀ and Σur both noisy: ‖u‖² <= 1 (Frobenius) and |r|‖u‖ <= c, see
  `statistics_loss`.

What a user costs over noisy iterations is `accounting.iterations`. The noise is one of three
(`accounting.additive_noise`): "laplace" (Lemma 1), "l2_laplace" (Theorem 1), or "gaussian". What a
release promises at these prices, and what of the paper's own claims does not hold, stands beside
the mechanisms.
"""

import math

from accounting import gaussian, guards
from accounting.additive_noise import (
    Noise,
    as_fraction,
    check_noise,
    float_up,
    loss_of_rounds,
    root_up,
    scale_for,
)
from accounting.loss import Gaussian, Loss

# --------------------------------------------------------------------------------------------------


def value_sensitivity(noise: Noise, *, range_width: float, rank: int) -> float:
    """How far one changed rating moves 2Σur, in the norm that the noise is measured in.

    The rating enters as 2u·r, changes by at most Δ = `range_width`, and ‖u‖₂ <= 1: 2Δ in L2, for
    "l2_laplace" and "gaussian" (proof of Theorem 1), and at most √d times that in L1, for "laplace"
    (Lemma 1). Other items do not move.

    Args:
      range_width: Δ, width of the declared range of ratings, or the largest change that is to be
        hidden.
      rank: d.

    Raises:
      ValueError: Δ is not positive and finite, d is not an integer of at least 1, or the noise has
        another name.
    """
    width = as_fraction("range_width", range_width)
    rank = guards.count("rank", rank, 1)
    if check_noise(noise) == "laplace":
        return root_up(4 * width**2 * rank)
    return float_up(2 * width)


def value_change_loss(*, noise: Noise, scale: float, range_width: float, rank: int) -> Loss:
    """What V spends on one rating's value: ε = 2Δ√d/b, ε = 2Δ/b, or a Gaussian step of z = σ/(2Δ).

    It holds where U and who rated what do not depend on what is protected, every ‖u_i‖ <= 1, M is a
    public constant, and V is the exact minimiser or comes from it. A user with m ratings has rated
    m items, whose noises are
    independent: m·ε, or m·ρ.

    Args:
      scale: b of the Laplace noises, σ of each coordinate of the Gaussian, in units of η (2Σur, not
        Σur).
      range_width, rank: see `value_sensitivity`.

    Raises:
      ValueError: as `value_sensitivity`, or the scale is not positive and finite.
    """
    sensitivity = value_sensitivity(noise, range_width=range_width, rank=rank)
    return loss_of_rounds(noise, scale, sensitivity, 1, user_rho=(0.0, 1.0))


def value_change_scale(
    *, noise: Noise, epsilon: float, range_width: float, rank: int, delta: float | None = None
) -> float:
    """The smallest scale (to 1e-11 relative) whose `value_change_loss` costs at most ε.

    At δ for Gaussians; the others take no δ.

    Raises:
      ValueError: as `value_change_loss`; ε is not positive and finite; δ is given for a noise that
        has none, or is not in (0, 1) for the Gaussian.
    """
    return scale_for(
        noise, epsilon, delta, value_sensitivity(noise, range_width=range_width, rank=rank), 1
    )


def squared_noise(noise: Noise, *, scale: float, rank: int) -> float:
    """E‖η‖² of one item's noise, what accuracy pays: 2d·b², d(d + 1)·b², d·σ².

    At equal ε, L2-Laplace needs (d + 1)/(2d) of Lemma 1's: 0.51 at d = 50.
    """
    b, d = guards.positive("scale", scale), guards.count("rank", rank, 1)
    weight = {"laplace": 2 * d, "l2_laplace": d * (d + 1), "gaussian": d}[check_noise(noise)]
    return weight * b * b


# --------------------------------------------------------------------------------------------------


def statistics_loss(*, matrix_scale: float, vector_scale: float, rating_bound: float) -> Gaussian:
    """What noisy Σuuᵀ and Σur of every item spend on one rating's presence: one Gaussian step.

    One rating more adds uuᵀ, of Frobenius norm ‖u‖² <= 1, and r·u, of norm at most c; both attain
    their bounds at once. So 1/z² = 1/σ_A² + c²/σ_b². The d × d noise on Σuuᵀ has independent
    entries of standard deviation σ_A, or is their symmetric part (E + Eᵀ)/2: σ_A on the diagonal,
    σ_A/√2 off it, the same in both triangles. That has the same price, for Σ_i u_i⁴/σ_A² + Σ_{i<j}
    u_i²u_j²/(σ_A²/2) = ‖u‖⁴/σ_A². A mirrored triangle with σ_A everywhere costs no more. U is
    public with ‖u_i‖ <= 1, and noise is on all items of a declared catalogue. A user with m
    ratings: m·ρ.

    Args:
      matrix_scale, vector_scale: σ_A and σ_b.
      rating_bound: c, every rating is clipped to [−c, c] after a public centre is subtracted.

    Raises:
      ValueError: a number is not positive and finite.
    """
    z_matrix = guards.positive("matrix_scale", matrix_scale)
    z_vector = guards.positive("vector_scale", vector_scale) / guards.positive(
        "rating_bound", rating_bound
    )
    return Gaussian(
        noise_multiplier=1 / math.hypot(1 / z_matrix, 1 / z_vector),
        num_steps=1,
        user_rho=(0.0, 1.0),
    )


def statistics_scales(
    *, epsilon: float, delta: float, rating_bound: float, matrix_share: float = 0.5
) -> tuple[float, float]:
    """(σ_A, σ_b) at which `statistics_loss` costs at most ε at δ; `matrix_share` of ρ goes to Σuuᵀ.

    Raises:
      ValueError: ε, δ or c is out of range, or the share is not strictly between 0 and 1.
    """
    matrix_share = guards.probability("matrix_share", matrix_share)
    bound = guards.positive("rating_bound", rating_bound)
    z = gaussian.solve_noise_multiplier(epsilon, delta, 1)
    return z / math.sqrt(matrix_share), bound * z / math.sqrt(1 - matrix_share)
