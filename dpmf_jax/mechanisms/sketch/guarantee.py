"""Paper 002's sketch as published: it promises nothing, and why."""

from accounting import guarantee
from accounting.guarantee import Guarantee


def sketch_published_guarantee(*, num_steps: int, clip_threshold: float | None = None) -> Guarantee:
    """Paper 002 as published: no guarantee.

    Its theorem needs an exact draw from the posterior. Count-sketch SGD is deterministic given
    hashes, initial table and order of the ratings, so with these public the loss is infinite as
    soon as a prediction moves with one rating.
    """
    threshold = "" if clip_threshold is None else f" (here {clip_threshold:g})"
    return guarantee.no_guarantee(
        mechanism="sketch",
        num_steps=num_steps,
        released=("sketch",),
        unit="rating presence",
        reason=(
            f"ε here is a clipping threshold of the log-likelihood{threshold}, not a privacy"
            " parameter: given the hashes, the initial table and the order of the ratings,"
            " training adds no noise, and no draw from a posterior is made"
        ),
    )
