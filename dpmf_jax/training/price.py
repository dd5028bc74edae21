"""The price of a run: of its phases together, of stopping early, and of the steps so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import accounting
from accounting import digits, gaussian
from accounting.guarantee import Guarantee
from dpmf_jax.protocol import Phase


def guarantee(phases: Sequence[Phase], *, seeded: bool, patience: int | None) -> Guarantee:
    """The phases' guarantees composed; only claimed where `patience` may stop the run early.

    seeded: whether the noise comes from a seed, so that the result is not to be released.
    """
    composed = accounting.compose(
        *(mechanism.guarantee(num_steps) for mechanism, num_steps in phases), same_groups=True
    ).with_seed(seeded)
    if patience is None or composed.status == "none":
        return composed
    early = (
        f"stopping early (patience {patience}) looks at the training RMSE, which is not priced: not"
        " private"
    )
    # What a claim is stated in.
    stated = composed.accountants.get("closed_form", composed.epsilon)
    return dataclasses.replace(
        composed,
        epsilon=max(composed.epsilon, digits.round_up(stated)),
        status="claimed",
        groups=(),
        assumptions=(
            *composed.assumptions,
            "the stopping step is the same in both worlds; it depends on the ratings",
        ),
        not_covered=(early, *composed.not_covered),
    )


def epsilon_spent(phases: Sequence[Phase], whole: Guarantee, done: int) -> float:
    """ε after `done` steps of the last phase, by the accountant that `whole` is stated in.

    whole: the guarantee of all phases, run to their ends.
    """
    *earlier, (mechanism, num_steps) = phases
    if whole.rho is None:
        return accounting.compose(
            *(phase.guarantee(steps) for phase, steps in (*earlier, (mechanism, done)))
        ).epsilon
    earlier_rho = sum(phase.guarantee(steps).rho or 0.0 for phase, steps in earlier)
    price = gaussian.epsilon_closed_form if whole.status == "claimed" else gaussian.epsilon_exact
    return price(earlier_rho + (whole.rho - earlier_rho) * done / num_steps, whole.delta)
