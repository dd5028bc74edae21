"""Runs of paper 001: their names, what each costs, and that the variants are what they say."""

import dataclasses

import pytest

from accounting.gaussian import epsilon_exact, rho
from experiments.reproduce.paper001 import (
    plans,
    work,
)
from experiments.reproduce.paper001.figures import FIGURES, NON_PRIVATE, Request
from tests.cases import reproduce as cases
from tests.cases.reproduce import small_runs


def test_names_tell_runs_apart(tiny):
    (run,) = small_runs(tiny, series=("0.15",), seeds=(0,))
    assert run.name.startswith("published-rank5-eps0.15-mu0.0005-seed0-")
    others = [
        run._replace(variant="joint-noise", config=dataclasses.replace(run.config, center=3.0)),
        run._replace(seed=1),
        run._replace(part="held-out"),
        *(
            run._replace(config=dataclasses.replace(run.config, **change))
            for change in (
                {"rank": 6},
                {"learning_rate": 1e-3},
                {"regularization": 0.1},
                {"clip_norm": 2.0},
                {"noise_multiplier": 21.0},
                {"tau": 6.0},
                {"center": 3.0},
                {"delta": 1e-6},
            )
        ),
    ]
    assert len({one.name for one in [run, *others]}) == len(others) + 1
    assert run._replace(num_steps=1, series="x", rule="patience").name == run.name


DELTA = plans.SETTINGS["delta"]


GOLDEN = "published-rank20-eps0.15-mu0.0005-seed0-21c6cde1"  # stored runs go by it


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["001/fig1", "001/fig3", "001/fig7"])
def test_variants_cost_what_the_published_run_costs(name):
    figure, low_high = FIGURES[name], (1.0, 10.0) if name == "001/fig3" else (1.0, 5.0)
    plan = plans.plan(figure, Request(beside="auto", ranks=(20,) if name == "001/fig7" else None))
    for setting in plan.beside:
        if setting.series == NON_PRIVATE:
            continue
        (run, *_), steps = work.runs_of(figure, setting, low_high), setting.num_steps
        paper, *_ = work.runs_of(figure, setting._replace(beside=None), low_high)
        assert run.num_steps == paper.num_steps == steps
        assert run.guarantee(steps).delta == paper.guarantee(steps).delta == DELTA
        price, published = (
            epsilon_exact(
                sum(loss.num_steps / loss.noise_multiplier**2 / 2 for loss in guarantee.losses),
                DELTA,
            )
            for guarantee in (run.guarantee(steps), paper.guarantee(steps))
        )
        assert price <= published * (1 + 1e-14), setting
        assert price == pytest.approx(published, rel=1e-6)
        # Whole-number noise takes its share of δ, which is all of it at an ε above 60.
        exact = run.guarantee(steps).accountants["exact"]
        assert exact >= price if price > 40 else exact == pytest.approx(price, rel=1e-9)


def test_what_is_priced_is_what_runs(tiny):
    """The noise of every phase over its sensitivity is the multiplier in the guarantee; the means
    take their share.
    """
    for run in cases.beside_runs(tiny, plans.BESIDE, steps=40):
        earlier, mechanism = run.phases
        parts = [phase.guarantee(steps).losses[0] for phase, steps in earlier]
        losses = [*parts, mechanism.guarantee(40).losses[0]]
        assert run.guarantee(40).rho == pytest.approx(
            sum(rho(one.noise_multiplier, one.num_steps) for one in losses)
        )
        assert run.guarantee(40).seeded
        if run.variant == "public-items":
            assert rho(losses[0].noise_multiplier, 1) == pytest.approx(
                0.1 * run.guarantee(40).rho, rel=1e-6
            )
            assert run.guarantee(40).status == "proved"


def test_the_sound_ones_are_sound_and_the_rest_is_the_paper_s(tiny):
    published, joint, public, none = (run.config for run in cases.beside_runs(tiny))
    assert (published.center, published.tau, published.residual_clip) == ("item", 5.0, None)
    for sound in (joint, public):
        assert (sound.center, sound.span, sound.residual_clip) == (3.0, 4.0, 1.0)
    for one in (joint, public, none):
        for name in ("rank", "learning_rate", "regularization", "clip_norm", "delta", "relation"):
            assert getattr(one, name) == getattr(published, name)
    assert none.noise_multiplier is None
    statuses = [run.guarantee(9).status for run in cases.beside_runs(tiny)]
    assert statuses == [
        "claimed",
        "proved",
        "proved",
        "none",
    ]


def test_the_runs_of_the_paper_keep_their_names_and_public_items_have_their_steps(tiny):
    setting = plans.plan(cases.FIGURE, Request()).settings[0]
    run, *_ = work.runs_of(cases.FIGURE, setting, (1.0, 5.0))
    assert run.name == GOLDEN
    assert set(run.agreed) == {"variant", "config", "seed", "part"}
    short, long = (cases.beside_runs(tiny, ("public-items",), steps=steps)[0] for steps in (13, 14))
    assert short.name != long.name
    assert "steps13" in short.name
    for variant in ("published", "joint-noise", NON_PRIVATE):
        names = {cases.beside_runs(tiny, (variant,), steps=steps)[0].name for steps in (13, 14)}
        assert len(names) == 1
