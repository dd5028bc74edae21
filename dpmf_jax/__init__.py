"""Private factorisation of a ratings matrix: mechanisms, their training, and what they release.

    import dpmf_jax

    model = dpmf_jax.fit("ml-100k", "als", epsilon=4)  # or a DataFrame, a sparse matrix, a file
    print(model.guarantee)
    model.recommend(196, k=10)

The names that most programs need:

    fit          a Model of ratings in any form, by a mechanism's name or a mechanism
    Model        recommend, predict, explain, similar_items, evaluate, save; its guarantee
    load_model   a Model that was saved
    load         checked Ratings of a named data set, or of a file
    Ratings      who rated what; from_table and from_columns check it
    splits       what is trained on, and what is held out
    metrics      errors and rankings
    controls     what a model is measured beside
    gaussian     a family of mechanisms, with its Config; the others are listed below
    protocol     what a mechanism is made of, and the loop that trains it

A mechanism in place of its name is trained as it is:

    train, test = dpmf_jax.load("ml-100k", split="u1")
    config = dpmf_jax.gaussian.Config(rating_range=(1, 5), noise_multiplier=40.0)
    mechanism = dpmf_jax.gaussian.joint_noise(config)
    model = dpmf_jax.fit(train, mechanism, num_steps=50, test=test)

Names are imported when they are first used, so that reading ratings does not start JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmf_jax import layout, protocol
    from dpmf_jax.data import ratings, splits, synthetic
    from dpmf_jax.data.datasets import load
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.kernels import count_sketch
    from dpmf_jax.layout import ordered
    from dpmf_jax.mechanisms.federated import published as federated
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
    from dpmf_jax.mechanisms.gaussian import noisy_means
    from dpmf_jax.mechanisms.local import gd as local
    from dpmf_jax.mechanisms.objective import mechanisms as objective
    from dpmf_jax.mechanisms.sampled import langevin
    from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
    from dpmf_jax.mechanisms.sketch import means as preprocessing
    from dpmf_jax.mechanisms.sketch import online
    from dpmf_jax.mechanisms.sketch import published as sketch
    from dpmf_jax.models import metrics
    from dpmf_jax.models.model import Model
    from dpmf_jax.models.model import load as load_model
    from dpmf_jax.training import controls
    from dpmf_jax.training.by_name import fit
    from dpmf_jax.training.cross_validation import cross_validate
    from dpmf_jax.training.tune import tune

from dpmf_jax.installed import refuse_others

refuse_others("accounting")

__all__ = [
    "Model",
    "Ratings",
    "__version__",
    "controls",
    "count_sketch",
    "cross_validate",
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
    "tune",
]

_HOMES = {
    "Model": ("dpmf_jax.models.model", "Model"),
    "Ratings": ("dpmf_jax.data.ratings", "Ratings"),
    "cross_validate": ("dpmf_jax.training.cross_validation", "cross_validate"),
    "fit": ("dpmf_jax.training.by_name", "fit"),
    "load": ("dpmf_jax.data.datasets", "load"),
    "load_model": ("dpmf_jax.models.model", "load"),
    "tune": ("dpmf_jax.training.tune", "tune"),
}

# Modules by the names that users know.
_MODULES = {
    "controls": "dpmf_jax.training.controls",
    "count_sketch": "dpmf_jax.kernels.count_sketch",
    "federated": "dpmf_jax.mechanisms.federated.published",
    "gaussian": "dpmf_jax.mechanisms.gaussian.mechanisms",
    "langevin": "dpmf_jax.mechanisms.sampled.langevin",
    "local": "dpmf_jax.mechanisms.local.gd",
    "metrics": "dpmf_jax.models.metrics",
    "noisy_means": "dpmf_jax.mechanisms.gaussian.noisy_means",
    "objective": "dpmf_jax.mechanisms.objective.mechanisms",
    "online": "dpmf_jax.mechanisms.sketch.online",
    "ordered": "dpmf_jax.layout.ordered",
    "preprocessing": "dpmf_jax.mechanisms.sketch.means",
    "ratings": "dpmf_jax.data.ratings",
    "sketch": "dpmf_jax.mechanisms.sketch.published",
    "sketch_dpsgd": "dpmf_jax.mechanisms.sketch.dpsgd",
    "splits": "dpmf_jax.data.splits",
    "synthetic": "dpmf_jax.data.synthetic",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        value = metadata.version("dpmf-jax")
    elif name in _HOMES:
        module, attribute = _HOMES[name]
        value = getattr(importlib.import_module(module), attribute)
    elif name in __all__:
        value = importlib.import_module(_MODULES.get(name, f"dpmf_jax.{name}"))
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
