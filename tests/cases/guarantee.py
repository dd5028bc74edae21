"""Guarantees to make tests of: proved, claimed, by hand."""

import dataclasses
import re
from typing import Any

from accounting import priced
from accounting.loss import Gaussian

DELTA = 1e-5

COMMON: dict[str, Any] = {
    "mechanism": "gaussian-joint-noise",
    "delta": DELTA,
    "sensitivity": 2.5,
    "unit": "rating value",
    "relation": "one rating changes its value within the declared range; who rated what is public",
    "released": ("user factors", "item factors"),
    "trust_model": "the curator sees all ratings and is trusted",
    "status": "proved",
    "assumptions": ("the number of steps was fixed beforehand",),
    "not_covered": ("the time that training took",),
}


def proved(*, noise_multiplier=20.0, num_steps=300, user_rho: Any = (0.5, 0.5), **changes) -> Any:
    steps = Gaussian(noise_multiplier=noise_multiplier, num_steps=num_steps, user_rho=user_rho)
    return priced(**{**COMMON, "losses": (steps,), **changes})


def claimed(**changes) -> Any:
    return proved(
        **{"mechanism": "gaussian", "status": "claimed", "user_rho": (1.0, 0.0), **changes}
    )


def proved_by_hand(**changes) -> Any:
    return dataclasses.replace(proved(user_rho=None), **{"accountants": {}, **changes})


def plain(text):
    """The text with its line breaks undone."""
    return re.sub(r"\s+", " ", text)


def steps_for_users(weights):
    return {"kind": "gaussian", "noise_multiplier": 20.0, "num_steps": 300, "user_rho": weights}
