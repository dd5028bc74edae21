"""Paper 003's protocol: what T noisy iterations before an untrusted recommender cost.

Each iteration releases a noisy sum Σ_i g_i over users. The paper claims the price of one iteration
for all of them. A price per user is sound: his whole message is clipped to C, so it moves the sum
by 2C where it is replaced, and by C where it is removed. `accounting.objective` has the same
paper's single release.
"""

from typing import Literal, get_args

from accounting import guards
from accounting.additive_noise import Noise, as_fraction, float_up, loss_of_rounds, scale_for
from accounting.loss import Loss, Pure

Change = Literal["replace", "remove"]


def iterations_claimed(epsilon: float, num_iterations: int) -> Pure:
    """T·ε: what T published iterations spend on one rating, if the paper's claim held in each.

    The paper states ε for the whole run. Each iteration is a release of its own, so the claim is ε
    per iteration: 10.0 at ε = 0.1, T = 100. The η of (6) is not paid again, since V is
    post-processing. Even this is not proved: u_i follows the user's own ratings and moves all of
    his messages, and the residual has no bound.

    Raises:
      ValueError: ε is not positive and finite, or T is not an integer of at least 1.
    """
    rounds = guards.count("num_iterations", num_iterations, 1)
    return Pure(epsilon=float_up(rounds * as_fraction("epsilon", epsilon)), num_rounds=rounds)


def message_sensitivity(clip_norm: float, change: Change) -> float:
    """How far one user moves Σ_i g_i: 2C if all of his data are replaced, C if they are removed.

    C is the clip of a user's message: all that he sends in an iteration, over all items. Its norm
    is that of the noise: Σ_j‖g_ij‖₁ for "laplace", Σ_j‖g_ij‖₂ for "l2_laplace" of scale b on every
    item, √(Σ_j‖g_ij‖₂²) for "gaussian". Rounding towards zero after the clip raises none of these
    norms, so fixed point costs nothing here.

    Raises:
      ValueError: C is not positive and finite, or the change has another name.
    """
    if change not in get_args(Change):
        raise ValueError(f"change must be one of {', '.join(get_args(Change))}, got {change!r}")
    return float_up((2 if change == "replace" else 1) * as_fraction("clip_norm", clip_norm))


def iterations_per_user(
    *, noise: Noise, clip_norm: float, scale: float, num_iterations: int, change: Change = "replace"
) -> Loss:
    """ε = T·2C/b, or ρ = T·2C²/σ²: what T iterations spend on a user whose messages are clipped.

    That is where his data are replaced.

    A removed user costs half the ε, a quarter of the ρ. u_i may be anything computed from the
    user's own data and public V, and what is sent may change from iteration to iteration. T = 1 is
    one release of clipped statistics.

    Args:
      noise: see `message_sensitivity` for the norm that goes with it.
      clip_norm: C.
      scale: b or σ, of the sum over users, in every iteration.
      num_iterations: T, fixed beforehand.
      change: "replace" hides what all of a user's data are, "remove" that he takes part.

    Raises:
      ValueError: a number is out of range, or the noise or the change has another name.
    """
    return loss_of_rounds(
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
    """The smallest scale (to 1e-11 relative) at which `iterations_per_user` costs at most ε.

    At δ for Gaussians, without one otherwise.

    Raises:
      ValueError: as `iterations_per_user` and `value_change_scale`.
    """
    sensitivity = message_sensitivity(clip_norm, change)
    return scale_for(
        noise, epsilon, delta, sensitivity, guards.count("num_iterations", num_iterations, 1)
    )
