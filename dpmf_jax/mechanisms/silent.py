"""The same program without noise: the control that an attack on a mechanism is compared with."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.tree_util import Partial

from dpmf_jax.noise import laws as noise
from dpmf_jax.noise import whole
from dpmf_jax.protocol import Mechanism


def silent(mechanism: Mechanism) -> Mechanism:
    """The mechanism without noise; with a scale of 0, where its noise has one.

    At scale 0 it is the same program on other numbers, so nothing is compiled for it, and its
    densities are still those of the noise. Other noise is replaced by `noise.none`. It protects
    nothing; `guarantee` stays that of the mechanism.
    """
    sample = noise.silenced(whole.silenced(_at_scale_0(mechanism.noise.sample)))
    known = sample is not mechanism.noise.sample
    return mechanism._replace(
        init=_at_scale_0(mechanism.init),
        noise=mechanism.noise._replace(sample=sample) if known else noise.none(),
        update=_at_scale_0(mechanism.update),
    )


def _at_scale_0(part: Any) -> Any:
    """A Partial whose first argument is a dataclass, its `scale` and `spread` of noise set to 0.

    Anything else comes back as it is.
    """
    params, *rest = getattr(part, "args", None) or (None,)
    names = [name for name in ("scale", "spread") if hasattr(params, name)]
    if not dataclasses.is_dataclass(params) or isinstance(params, type) or not names:
        return part
    still = {name: jnp.zeros_like(jnp.asarray(getattr(params, name))) for name in names}
    return Partial(part.func, dataclasses.replace(params, **still), *rest, **part.keywords)
