"""Private factorisation of a ratings matrix: mechanisms, their training, and what they release.

    import dpmf_jax
    train, test = dpmf_jax.load("ml-100k", split="u1")
    mechanism = dpmf_jax.gaussian.joint_noise(dpmf_jax.gaussian.Config(rating_range=(1, 5), noise_multiplier=40.0))
    model = dpmf_jax.fit(train, mechanism, num_steps=50, test=test)
    print(model.guarantee)

Names are imported when they are first used, so that reading ratings does not start JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmf_jax import (
        controls,
        count_sketch,
        federated,
        gaussian,
        langevin,
        layout,
        local,
        metrics,
        noisy_means,
        objective,
        online,
        ordered,
        preprocessing,
        protocol,
        ratings,
        sketch,
        sketch_dpsgd,
        splits,
        synthetic,
    )
    from dpmf_jax.datasets import load
    from dpmf_jax.fitting import fit
    from dpmf_jax.model import Model
    from dpmf_jax.model import load as load_model
    from dpmf_jax.ratings import Ratings

__all__ = [
    "Model",
    "Ratings",
    "controls",
    "count_sketch",
    "federated",
    "fit",
    "gaussian",
    "langevin",
    "layout",
    "load",
    "load_model",
    "local",
    "metrics",
    "noisy_means",
    "objective",
    "online",
    "ordered",
    "preprocessing",
    "protocol",
    "ratings",
    "sketch",
    "sketch_dpsgd",
    "splits",
    "synthetic",
]

_HOMES = {
    "Model": ("dpmf_jax.model", "Model"),
    "Ratings": ("dpmf_jax.ratings", "Ratings"),
    "fit": ("dpmf_jax.fitting", "fit"),
    "load": ("dpmf_jax.datasets", "load"),
    "load_model": ("dpmf_jax.model", "load"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        value = getattr(importlib.import_module(module), attribute)
    elif name in __all__:
        value = importlib.import_module(f"dpmf_jax.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
