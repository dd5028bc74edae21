"""Normal noise of the kind that a mechanism draws, whole numbers or floats, at another scale."""

import numpy as np

from dpmf_jax.noise import laws, whole
from dpmf_jax.protocol import Mechanism


def is_whole(mechanism: Mechanism) -> bool:
    return isinstance(mechanism.noise.sample.args[0], whole.Law)


def scale_of(mechanism: Mechanism):
    """σ, in the units of its statistics."""
    law = mechanism.noise.sample.args[0]
    return law.scale if is_whole(mechanism) else law


def normal(mechanism: Mechanism, scale) -> laws.Noise:
    """The mechanism's kind of normal noise, of this scale."""
    if is_whole(mechanism):
        return whole.rounded_normal(float(np.float32(scale)))
    return laws.gaussian(scale)


def share_of(mechanism: Mechanism, share: float) -> laws.Noise:
    return normal(mechanism, share * scale_of(mechanism))
