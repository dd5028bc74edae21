"""Paper 003's protocol, T noisy iterations before an untrusted recommender: what they cost a
rating, and a user.

Each iteration releases a noisy sum Σ_i g_i over users. As published the price of one is claimed for
all of them; sound is a price per user, whose whole message is clipped to C and so moves the sum by
2C replaced, by C removed. `accounting.objective` has the same paper's single release; its names and
these are there.
"""

from decimal import Decimal
from fractions import Fraction
from typing import Literal, get_args

from accounting import guards
from accounting.additive_noise import Noise, exactly, root_up, scale_for, spent, up
from accounting.loss import Loss, Pure

Change = Literal["replace", "remove"]


def iterations_claimed(epsilon: float, num_iterations: int) -> Pure:
    """What T iterations of the published protocol spend on one rating, if the paper's claim held in
    each: T·ε.

    The paper states ε for the whole run; each iteration is a release of its own, so the claim is ε
    per iteration: 10.0 at ε = 0.1, T = 100. The η of (6) is not paid again, V is post-processing.
    Even this is not proved: u_i follows the user's own ratings and moves all of his messages, and
    the residual has no bound.

    Raises:
      ValueError: ε is not positive and finite, or T is not an integer of at least 1.
    """
    rounds = guards.count("num_iterations", num_iterations, 1)
    return Pure(epsilon=up(rounds * exactly("epsilon", epsilon)), num_rounds=rounds)


def message_sensitivity(clip_norm: float, change: Change) -> float:
    """How far one user moves Σ_i g_i where messages are clipped to C: 2C if all of his data are
    replaced, C if removed.

    The message is all that the user sends in an iteration, over all items; its norm is the one of
    the noise: Σ_j‖g_ij‖₁ for "laplace", Σ_j‖g_ij‖₂ for "l2_laplace" of scale b on every item,
    √(Σ_j‖g_ij‖₂²) for "gaussian". Rounding towards zero after the clip keeps every one of these
    norms, so fixed point costs nothing here.

    Raises:
      ValueError: C is not positive and finite, or the change has another name.
    """
    if change not in get_args(Change):
        raise ValueError(f"change must be one of {', '.join(get_args(Change))}, got {change!r}")
    return up((2 if change == "replace" else 1) * exactly("clip_norm", clip_norm))


def iterations_per_user(
    *, noise: Noise, clip_norm: float, scale: float, num_iterations: int, change: Change = "replace"
) -> Loss:
    """What T iterations spend on a user who clips his whole message: T·2C/b, or ρ = T·2C²/σ²
    ("replace").

    A removed user costs half the ε, a quarter of the ρ. u_i may be anything computed from the
    user's own data and public V, and what is sent may change from iteration to iteration. T = 1 is
    one release of clipped statistics.

    Args:
      noise: see `message_sensitivity` for the norm that goes with it.
      clip_norm: C. scale: b or σ, of the sum over users, in every iteration. num_iterations: T,
        fixed beforehand.
      change: "replace" hides what all of a user's data are, "remove" that he takes part.

    Raises:
      ValueError: a number is out of range, or the noise or the change has another name.
    """
    return spent(
        noise,
        scale,
        message_sensitivity(clip_norm, change),
        guards.count("num_iterations", num_iterations, 1),
    )


def iterations_scale(
    *,
    noise: Noise,
    epsilon: float,
    clip_norm: float,
    num_iterations: int,
    change: Change = "replace",
    delta: float | None = None,
) -> float:
    """The smallest scale (to 1e-11 relative) at which `iterations_per_user` costs at most ε, at δ
    for Gaussians.

    Raises:
      ValueError: as `iterations_per_user` and `value_change_scale`.
    """
    sensitivity = message_sensitivity(clip_norm, change)
    return scale_for(
        noise, epsilon, delta, sensitivity, guards.count("num_iterations", num_iterations, 1)
    )


def rounded_sensitivity(sensitivity: float, *, rounding_step: float, num_coordinates: int) -> float:
    """The L2 sensitivity after rounding to multiples of h, h√n more: each of n coordinates may end
    one step further.

    Rounding, to the nearest or with coins that are the same in both worlds, moves |x − y| to at
    most |x − y| + h. The noise must be added after it, on the grid. This is for differences;
    `message_sensitivity` bounds each message.

    Args:
      num_coordinates: n that can differ: d for a changed rating, d times the declared catalogue for
        a user.

    Raises:
      ValueError: a number is out of range; a step of 0 is no rounding.
    """
    base = exactly("sensitivity", sensitivity)
    step = Fraction(Decimal(repr(guards.nonnegative("rounding_step", rounding_step))))
    more = (
        Fraction(
            Decimal(repr(root_up(step**2 * guards.count("num_coordinates", num_coordinates, 1))))
        )
        if step
        else 0
    )
    return up(base + more)
