"""What the Gaussian mechanisms promise: their zCDP price, and what it rests on."""

from __future__ import annotations

import accounting
from accounting import words
from accounting.guarantee import Guarantee
from accounting.loss import Gaussian
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.mechanisms.gaussian.config import Params

_ITEMS = "the item factors that were given were not computed from these ratings"


def _steps(params: Params, num_steps: int, user_rho: tuple[float, float]) -> Gaussian:
    return Gaussian(
        noise_multiplier=float(params.noise_scale) / float(params.sensitivity),
        num_steps=num_steps,
        user_rho=user_rho,
        distance=0.0 if params.grid is None else grid.STEP_DISTANCE,
    )


def published(params: Params, num_steps: int) -> Guarantee:
    assumptions = [
        (
            "the item factors are the same in both worlds at every step; they are not, since they"
            " follow the raw ratings"
        ),
        words.MASK,
        *claims.ALWAYS,
    ]
    if params.centering != "constant":
        assumptions.append(
            f"the {params.centering} mean that centres the ratings is the same in both worlds; it"
            " is computed from them"
        )
    return accounting.priced(
        mechanism="gaussian",
        losses=(_steps(params, num_steps, (1.0, 0.0)),),
        delta=float(params.delta),
        sensitivity=float(params.sensitivity),
        unit="rating value",
        relation=claims.neighbours("rating value", float(params.span)),
        released=("user factors",),
        trust_model=words.CURATOR,
        status="claimed",
        claimed_by="paper 001",
        real_number_noise=True,
        assumptions=tuple(assumptions),
        not_covered=(
            "the item factors and the centre, which stay with the curator",
            "the presence of a rating",
        ),
    )


def _sound(
    params: Params,
    num_steps: int,
    mechanism: str,
    released: tuple[str, ...],
    user_rho: tuple[float, float],
) -> Guarantee:
    presence = params.relation == "rating presence"
    return accounting.priced(
        mechanism=mechanism,
        losses=(_steps(params, num_steps, user_rho),),
        delta=float(params.delta),
        sensitivity=float(params.sensitivity),
        unit=params.relation,
        relation=claims.neighbours(params.relation, float(params.span)),
        released=released,
        trust_model=words.CURATOR,
        status="proved",
        assumptions=(
            words.DECLARED if presence else words.MASK,
            *claims.WHOLE,
            *(() if params.item_factors is None else (_ITEMS,)),
        ),
        not_covered=(claims.not_covered(params.relation),),
    )


def joint_noise(params: Params, num_steps: int) -> Guarantee:
    return _sound(
        params, num_steps, "gaussian-joint-noise", ("user factors", "item factors"), (0.5, 0.5)
    )


def public_items(params: Params, num_steps: int) -> Guarantee:
    released = ("user factors", "item factors, which were public")
    return _sound(params, num_steps, "gaussian-public-items", released, (1.0, 0.0))


def nothing(num_steps: int) -> Guarantee:
    return accounting.no_guarantee(mechanism="non-private", num_steps=num_steps, released=())
