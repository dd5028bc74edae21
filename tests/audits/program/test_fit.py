"""The audit of a program that fits: the project's own shows noise and nothing else; what leaks is
told apart.
"""

import dataclasses
import functools
import os
import sys
import threading

import jax
import numpy as np
import pytest
from jax.tree_util import Partial

import audits
from audits.program import fit as fit_audit
from audits.program import pairs
from dpmf_jax.kernels import descent
from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.sketch import published as sketch
from tests.zoo.sound import RATINGS, fit, joint

pytestmark = pytest.mark.usefixtures("quick_compilation")

NAMES = ["fit: steps", "fit: files", "fit: public words", "fit: released numbers", "fit: logs"]


def audit(program, **options):
    found = fit_audit.audit_program(program, RATINGS, key=jax.random.key(0), **options)
    assert [finding.audit for finding in found] == NAMES
    return {finding.audit: finding for finding in found}


def violated(found):
    return {name for name, finding in found.items() if finding.verdict == "violated"}


def of_values(ratings, folder, key):
    return fit(
        ratings, folder, key, mechanism=joint(), settings={"mechanism": "gaussian-joint-noise"}
    )


@pytest.mark.seconds
@pytest.mark.parametrize("program", [fit, pytest.param(of_values, marks=pytest.mark.slow)])
def test_the_project_s_own_program_is_consistent(program):
    found = audit(program)
    assert violated(found) == set()
    steps = found["fit: steps"].details
    assert steps["steps_done"] == steps["steps_priced"] == 5
    assert steps["files"] == ["PRIVACY.md", "model.json", "release.safetensors"]
    assert steps["pairs"] == (4 if program is fit else 2)
    for finding in found.values():
        assert finding.details["power"]
        assert finding.to_dict()


# --- one leak each, planted into a program that is quick: no training at all


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A real model, which the quick programs write again with one thing changed."""
    return fit(RATINGS, None, jax.random.key(1))


def quick(model):
    """Noise in place of training, and the files of a model: sound."""

    def program(ratings, folder, key, **change):
        random = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
        noisy = random.normal(size=(ratings.num_users, 3)).astype(np.float32) + ratings.num_ratings
        made = dataclasses.replace(
            model,
            release=model.release._replace(user_factors=noisy.astype(np.float32)),
            users=ratings.users,
            items=ratings.items,
            rating_range=ratings.rating_range,
            **change,
        )
        return made.save(folder)

    return program


def longer(program, ratings, folder, key):
    made = program(ratings, folder, key)
    return dataclasses.replace(made, metrics={**made.metrics, "steps": 6})


def as_long_as_it_takes(program, ratings, folder, key):
    made = program(ratings, folder, key)
    return dataclasses.replace(made, metrics={**made.metrics, "steps": 4 + ratings.num_ratings % 2})


def only_rated(program, ratings, folder, key):
    return program(
        dataclasses.replace(ratings, items=ratings.items[np.unique(ratings.item)]), folder, key
    )


def own_range(program, ratings, folder, key):
    ends = (float(ratings.value.min()), float(ratings.value.max()))
    return program(dataclasses.replace(ratings, rating_range=ends), folder, key)


def public_words(program, ratings, folder, key):
    return program(ratings, folder, key, settings={"ratings": ratings.num_ratings})


def mean(program, ratings, folder, key):
    made = program(ratings, folder, key)
    release = made.release._replace(center=np.float32(ratings.value.mean()))
    return dataclasses.replace(made, release=release)


def coarse(program, ratings, folder, key):
    """Noisy numbers on a grid so wide that one other key leaves many of them as they are."""
    made = program(ratings, folder, key)
    random = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    sums = np.bincount(ratings.item, ratings.value, ratings.num_items)
    center = np.round((sums + 4 * random.normal(size=ratings.num_items)) / 4)
    release = made.release._replace(center=center.astype(np.float32))
    return dataclasses.replace(made, release=release)


def coarse_but_for_one(program, ratings, folder, key):
    made = coarse(program, ratings, folder, key)
    center = np.array(made.release.center)
    center[3] = np.float32(ratings.value.sum())
    return dataclasses.replace(made, release=made.release._replace(center=center))


@pytest.mark.seconds
def test_numbers_of_a_coarse_grid_are_noisy_and_one_free_of_noise_is_found(model):
    sound, planted = (
        audit(functools.partial(how, quick(model)), num_pairs=12)["fit: released numbers"]
        for how in (coarse, coarse_but_for_one)
    )
    assert sound.verdict == "consistent"
    assert planted.verdict == "violated"
    assert planted.details["found"] == [f"1 of {RATINGS.num_items} entries of .center"]


def open_file(program, ratings, folder, key):
    made = program(ratings, folder, key)
    np.save(folder / "seen.npy", ratings.item)
    return made


def open_factors(program, ratings, folder, key):
    made = program(ratings, folder, key)
    np.save(folder / "factors.npy", np.asarray(made.release.user_factors)[:, :2] ** 2)
    return made


def open_text(program, ratings, folder, key):
    made = program(ratings, folder, key)
    (folder / "notes.txt").write_text(f"{ratings.num_ratings} ratings")
    return made


def open_private(program, ratings, folder, key):
    made = program(ratings, folder, key)
    os.chmod(folder / "private" / "curator.json", 0o644)
    return made


def file_for_some(program, ratings, folder, key):
    made = program(ratings, folder, key)
    if ratings.num_ratings % 2:
        (folder / "odd").write_text("")
    return made


def chatty(program, ratings, folder, key):
    print("odd" if ratings.num_ratings % 2 else "even", ratings.num_ratings)
    return program(ratings, folder, key)


LEAKS = {
    longer: {"fit: steps"},
    as_long_as_it_takes: {"fit: steps"},
    only_rated: {"fit: public words"},
    own_range: {"fit: public words"},
    public_words: {"fit: public words"},
    mean: {
        "fit: released numbers",
        "fit: files",
    },  # files: what was saved is not what is said to be released
    open_file: {"fit: files"},
    open_factors: {"fit: files"},
    open_text: {"fit: public words"},
    open_private: {"fit: files"},
    file_for_some: {"fit: files"},
    chatty: {"fit: logs"},
}


@pytest.mark.seconds
def test_the_quick_program_leaks_nothing(model):
    assert violated(audit(quick(model), num_pairs=3)) == set()


@pytest.mark.one_case
@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_a_leak_is_told_apart(leak, model):
    found = audit(lambda *args: leak(quick(model), *args), num_pairs=2)
    assert violated(found) == LEAKS[leak], {
        name: finding.details.get("found") for name, finding in found.items()
    }
    broken = found[min(LEAKS[leak])]
    assert broken.measured >= 1
    assert broken.details["found"]
    assert broken.details["replay"]["pair"]["change"]


@pytest.mark.parametrize("which", ["both", "first", "second"])
def test_a_program_that_ends_in_an_error_on_one_data_set_tells_them_apart(which, model):
    """On both it says nothing; where it ends so on the ratings themselves, nothing was audited."""
    few = {
        "both": RATINGS.num_ratings,
        "first": RATINGS.num_ratings + 1,
        "second": RATINGS.num_ratings,
    }[which]

    def program(ratings, folder, key):
        if ratings.num_ratings < few:
            raise FloatingPointError("too few")
        return quick(model)(ratings, folder, key)

    found = audit(program)
    if which == "first":
        assert {finding.verdict for finding in found.values()} == {"inconclusive"}
        assert "FloatingPointError" in found["fit: steps"].details["why"]
        return
    tried = pairs.choose(np.random.default_rng(0), RATINGS, "rating presence", 1)
    assert {pair.first.num_ratings < few for pair in tried} == {
        True,
        False,
    }  # some pairs end so on both
    assert violated(found) == {"fit: steps"}
    assert "FloatingPointError" in found["fit: steps"].details["found"][0]


def test_what_other_threads_print_meanwhile_is_not_the_program_s(model, capsys):
    def program(ratings, folder, key):
        print("one line")
        other = threading.Thread(
            target=lambda: print(ratings.num_ratings % 2 or "even", file=sys.stderr)
        )
        other.start()
        other.join()
        return quick(model)(ratings, folder, key)

    assert violated(audit(program)) == set()
    said = capsys.readouterr()
    assert "even" in said.err
    assert said.out == ""


# --- of a mechanism alone: the project's own program


def of(mechanism, **options):
    """The findings of the family, as `audits.audit` runs it."""
    found = audits.audit(
        mechanism,
        RATINGS,
        key=jax.random.key(0),
        num_steps=5,
        only=["fit"],
        options={"fit": options},
        layout_kind="dense",
    )
    assert [finding.audit for finding in found] == NAMES
    return {finding.audit: finding for finding in found}


def _with_means(release, state):
    return release(state)._replace(center=state.private)


def _private_means(init, key, data, previous):
    return init(key, data, previous)._replace(private=descent.item_means(data)[0])


@pytest.mark.seconds
def test_a_mechanism_alone_is_fitted_by_the_project_s_own_program():
    sound = joint()
    found = of(sound)
    assert violated(found) == set()
    assert found["fit: steps"].details["files"] == [
        "PRIVACY.md",
        "model.json",
        "release.safetensors",
    ]
    leaking = sound._replace(
        init=Partial(_private_means, sound.init), release=Partial(_with_means, sound.release)
    )
    assert violated(of(leaking)) == {"fit: released numbers"}


@pytest.mark.seconds
def test_where_nothing_is_claimed_released_numbers_may_move():
    found = of(sketch.mechanism(sketch.Config(rank=2, num_epochs=5)), tempting=())
    assert found["fit: released numbers"].verdict == "not applicable"
    assert {finding.verdict for finding in found.values()} == {"consistent", "not applicable"}


@pytest.mark.seconds
def test_what_settings_take_from_the_ratings_is_seen_where_it_is_said_how_they_are_made():
    def phases_of(ratings):
        center = float(ratings.value.mean()) if centred else 3.0
        return [(joint(center=center), 99)], {"center": center}

    for centred, broken in ((False, set()), (True, {"fit: public words", "fit: released numbers"})):
        found = of(joint(), make_phases=phases_of, tempting=())
        assert found["fit: steps"].details["steps_done"] == 5  # as many as the claim is for
        assert violated(found) <= broken
        assert ("fit: public words" in violated(found)) == centred


@pytest.mark.seconds
def test_users_who_take_part_in_one_of_several_rounds_are_priced_for_that_one():
    """k groups of users, one round each: the guarantee counts a user's reports, and k rounds are
    paid for.
    """
    settings = {"mechanism": "local", "schedule": "partition", "num_rounds": 5}
    partition = local.gd(
        local.Config(epsilon=1.6, num_rounds=5, rank=2, center=3.0, schedule="partition")
    )
    made = lambda ratings: ([(partition, 5)], settings)  # noqa: E731
    found = of(partition, make_phases=made, steps_paid=table()["local"].num_steps, tempting=())
    assert violated(found) == set()
    assert (
        found["fit: steps"].details["steps_done"],
        found["fit: steps"].details["steps_priced"],
    ) == (5, 5)
    fewer = of(
        partition, make_phases=made, steps_paid=lambda settings, priced: 4 * priced, tempting=()
    )
    assert violated(fewer) == {"fit: steps"}
