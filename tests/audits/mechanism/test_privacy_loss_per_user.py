"""Privacy loss of a user of `als`: near what the pair costs in every phase, and never above."""

import pytest

from audits.mechanism import privacy_loss
from dpmf_jax import layout, protocol
from dpmf_jax.mechanisms.als import phases as als
from dpmf_jax.noise import keys
from tests.cases import noises
from tests.cases.als_messages import USERS, config, ratings

pytestmark = [pytest.mark.usefixtures("quick_compilation"), pytest.mark.seconds]


def findings(relation, share=1.0, least_signal=0.0):
    """(finding, price) of every phase, with so much of its noise."""
    of = ratings()
    data = layout.make(of, kind="dense", num_devices=1)
    made = als.phases(config(relation=relation, least_signal=least_signal, num_users=USERS))
    linked = protocol.link(made, keys.from_seed(1), data)
    for mechanism, (_, num_steps) in zip(linked, made, strict=True):
        less = mechanism._replace(noise=noises.share_of(mechanism, share))
        [found] = privacy_loss.audit(
            less,
            of,
            data,
            key=keys.from_seed(2),
            num_steps=num_steps,
            num_runs=2_000,
            deltas=(1e-2,),
            density_findings=(),
        )
        yield found


@pytest.mark.parametrize(
    ("relation", "least_signal"),
    [("user added or removed", 0.0), ("user added or removed", 1e9), ("user replaced", 0.0)],
)
def test_the_bound_nears_what_the_pair_costs(relation, least_signal):
    for found in findings(relation, least_signal=least_signal):
        assert found.verdict == "consistent"
        assert found.lower >= 0.95 * found.details["epsilon_of_the_pair"]
        assert found.lower <= found.claimed


def test_less_noise_than_is_priced_is_found():
    verdicts = [found.verdict for found in findings("user added or removed", share=0.8)]
    assert set(verdicts) == {"violated"}
