"""Calls side by side: the results are those of one call after the other, in their order."""

import threading
import time

import pytest

from audits import side_by_side

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_results_come_in_the_order_of_the_parts():
    """The first part waits for the second one where there are two cores, and so ends last."""
    second = threading.Event()

    def slow_first(part: int) -> int:
        if part == 0:
            second.wait(0.5)
            time.sleep(0.2)
        second.set()
        return 10 * part

    assert side_by_side.calls(slow_first, [0, 1, 2]) == [0, 10, 20]


def test_an_error_in_a_part_is_raised():
    def fails(part: int) -> int:
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"):
        side_by_side.calls(fails, [0, 1])


@pytest.mark.seconds
@pytest.mark.parametrize("size", [3, 16])
def test_a_stack_in_pieces_measures_what_it_measures_whole(size):
    """Eight neighbours in pieces of 3 and 16, the last piece padded: no distance changes, and
    none is added.
    """
    from audits import neighbours
    from audits.mechanism import sensitivity
    from dpmf_jax import layout
    from dpmf_jax.data import synthetic
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
    from dpmf_jax.noise import keys

    ratings = synthetic.generate(num_users=20, num_items=10, num_ratings=80, rank=2)
    data = layout.make(ratings, num_devices=1)
    made = gaussian.joint_noise(
        gaussian.Config(rating_range=ratings.rating_range, noise_multiplier=2.0, rank=2)
    )
    tried = neighbours.choose(keys.from_seed(0), ratings, data, unit="rating value", num=8)

    def distances(stacked, batch):
        options = {"unit": tried.unit, "num_steps": 2, "batch": batch}
        return sensitivity.distances(made, keys.from_seed(1), data, stacked, **options).largest

    whole = distances(tried.stacked, 8)
    pieces = [
        float(one)
        for part in neighbours.parts(tried.stacked, size)
        for one in distances(part, size)
    ]
    assert len(pieces) == -(-8 // size) * size
    assert pieces[:8] == pytest.approx([float(one) for one in whole], rel=1e-6)
