"""Many runs at once: each is what it would be alone, one program serves all, and a run that is done
takes no step.
"""

import jax
import numpy as np
import pytest

from dpmf_jax import layout
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.protocol import train
from dpmf_jax.training import sweep
from tests.cases.processes import python
from tests.cases.sweep import LENGTHS, RATINGS, finished, job


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, num_devices=1)


@pytest.mark.seconds
def test_each_run_is_what_it_would_be_alone(data):
    jobs = [job(data, position, steps) for position, steps in enumerate(LENGTHS)]
    states, losses, _ = finished(jobs, data, chunk_steps=4)
    for index, (mechanism, key, state, num_steps) in enumerate(jobs):
        alone, info = train(mechanism, key, state, data, num_steps)
        assert losses[index] == info.loss.tolist()
        jax.tree.map(np.testing.assert_array_equal, states[index], jax.device_get(alone))
        assert int(states[index].step) == num_steps


def test_runs_of_any_length_and_setting_share_one_program_and_take_no_step_too_many(data):
    jobs = [job(data, position, steps) for position, steps in enumerate(LENGTHS)]
    sweep.train_many.clear_cache()
    _, _, taken = finished(jobs, data, chunk_steps=4)
    assert sweep.train_many._cache_size() == 1
    assert taken == {0: [4, 1], 1: [4] * 5 + [3], 2: [4, 4, 3], 3: [4, 4]}


@pytest.mark.seconds
def test_runs_of_another_structure_get_their_own_program(data):
    jobs = [
        job(data, 1, 6),
        job(data, 2, 6, gaussian.non_private),
        job(data, 3, 6, gaussian.joint_noise),
    ]
    sweep.train_many.clear_cache()
    states, _, _ = finished(jobs, data, chunk_steps=3)
    assert sweep.train_many._cache_size() == 3
    assert sorted(states) == [0, 1, 2]


def test_a_run_goes_on_from_where_it_stands_and_one_that_is_done_is_left_alone(data):
    jobs = [job(data, 1, 9), job(data, 2, 0)]
    half, _, _ = finished([jobs[0]._replace(num_steps=5)], data, chunk_steps=4)
    states, _, taken = finished([jobs[0]._replace(state=half[0]), jobs[1]], data, chunk_steps=4)
    whole, _, _ = finished(jobs, data, chunk_steps=50)
    jax.tree.map(np.testing.assert_array_equal, states[0], whole[0])
    assert taken == {0: [4], 1: []}


@pytest.mark.seconds
def test_two_devices_give_the_same_runs_whoever_gets_them():
    """In a process of its own: the number of devices is set before jax starts."""
    code = """
import jax, numpy as np
from dpmf_jax import layout
from dpmf_jax.training import sweep
from tests.cases.sweep import LENGTHS, RATINGS, finished, job
data = layout.make(RATINGS, num_devices=1)
jobs = [job(data, position, steps) for position, steps in enumerate(LENGTHS[:3])]
one = finished(jobs, data, chunk_steps=4, num_devices=1)
sweep.train_many.clear_cache()
two = finished(jobs, data, chunk_steps=4, num_devices=2)
assert sweep.train_many._cache_size() == 1
assert one[1] == two[1] and one[2] == two[2], (one, two)
jax.tree.map(np.testing.assert_array_equal, one[0], two[0])
print("equal")
"""
    assert python(code, devices=2).stdout == "equal\n"


def test_a_job_that_has_seen_enough_ends_early_and_the_next_takes_its_place(data):
    jobs = [job(data, position, 23) for position in range(3)]
    _, losses, _ = finished(jobs, data, chunk_steps=4)
    enough: set[int] = set()
    taken = {0: 0, 1: 0, 2: 0}
    seen = {index: [] for index in taken}
    for chunk in sweep.run(jobs, data, chunk_steps=4, finished=enough):
        taken[chunk.job] += len(chunk.info.loss)
        seen[chunk.job] += chunk.info.loss.tolist()
        if chunk.job == 0 and taken[0] == 8:
            enough.add(0)
    assert taken == {0: 8, 1: 23, 2: 23}
    assert seen == {0: losses[0][:8], 1: losses[1], 2: losses[2]}
