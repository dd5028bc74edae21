"""What the sketch as published promises: nothing."""

import math

from dpmf_jax.mechanisms.sketch.guarantee import sketch_published_guarantee


def test_paper_002_as_published_has_no_guarantee_and_says_why():
    guarantee = sketch_published_guarantee(num_steps=7, clip_threshold=0.5)
    assert (guarantee.status, guarantee.epsilon, guarantee.steps) == ("none", math.inf, 7)
    text = " ".join(guarantee.statement.split())
    assert (
        "ε here is a clipping threshold of the log-likelihood (here 0.5), not a privacy parameter"
        in text
    )
    assert "(here" not in sketch_published_guarantee(num_steps=7).statement
