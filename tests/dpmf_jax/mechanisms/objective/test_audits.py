"""Objective perturbation under every structural audit: what is claimed and false is found, what is
proved is not.
"""

import pytest

import audits
from dpmf_jax.noise import keys
from tests.cases.audits import STRUCTURAL
from tests.cases.objective import RATINGS, every

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.seconds
@pytest.mark.parametrize(
    "name",
    [
        "published",
        pytest.param("passes", marks=pytest.mark.slow),
        "public users",
        "gaussian",
        "statistics",
    ],
)
def test_the_audits_find_what_there_is_to_find(name):
    """The published mechanism moves by more than its Δ; the sound ones by no more; every density is
    its sampler's.
    """
    found = audits.audit(
        every()[name],
        RATINGS,
        key=keys.from_seed(0),
        num_steps=1,
        only=STRUCTURAL,
        quick=True,
        num_neighbours=12,
    )
    by_name = {finding.audit: finding.verdict for finding in found}
    published = name in ("published", "passes")
    assert by_name.pop("sensitivity: largest step") == (
        "violated" if published else "consistent"
    ), found
    by_name.pop("sensitivity: root mean square over steps")
    assert "violated" not in by_name.values(), by_name
    for audit in ("init", "post-processing", "release", "density: log_ratio", "density: sampler"):
        assert by_name[audit] == "consistent", by_name
