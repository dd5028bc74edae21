"""Choosing settings privately: the best of a random number of runs, by a score with noise.

Each run draws its settings from those that are given, each as likely, fits nine tenths of the
ratings, and is scored on the others (`scored_runs`). The scores have noise, and only the run of the
best one is released. `accounting.repetition` prices that, at the same price however many settings
there are.

The score is a sum over users of a part of each user's own: her mean squared error on what is held
out, at most the square of half the range. Her predictions follow from what is released and from her
own ratings alone, so whatever a guarantee hides of one user moves this part and no other.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import accounting
from accounting import gaussian, repetition, words
from accounting.guarantee import Guarantee
from accounting.loss import BestOf, Gaussian
from dpmf_jax.data import frames, splits
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import PrivacyError, UsageError, usage_errors
from dpmf_jax.models.model import Model
from dpmf_jax.noise import whole
from dpmf_jax.protocol import Phase
from dpmf_jax.training import by_name, resolve
from dpmf_jax.training import ratings as training_ratings
from dpmf_jax.training.scored_runs import Score, best

if TYPE_CHECKING:
    from dpmf_jax.mechanisms.spec import Spec

RUNS = 5.0  # on average
SHAPE = 0.0  # of the law of their number: the logarithmic one, whose price is the smallest
SCORE_SHARE = 0.1  # of a run's ρ
HOLDOUT = 0.1  # of the ratings
SPLIT = 211_003_620  # seed of what is held out: public, and none that other splits have
FINEST = 1000  # parts that a user's score is counted in
_ATTEMPTS = 40

SCORED = "the score of the run that was best, with noise"
ASSUMED = (
    "the settings that were tried, and how many runs there are on average, were fixed without"
    " looking at the ratings; the number of runs stays secret, and so do the other runs"
)


class Candidate(NamedTuple):
    """Settings to try: what they change, the phases of a run, and what a model keeps of them."""

    changed: Mapping[str, Any]
    phases: tuple[Phase, ...]
    settings: dict[str, Any]
    guarantee: Guarantee


def tune(
    data: Any,
    mechanism: str | None = None,
    candidates: Mapping[str, Iterable[Any]] | None = None,
    *,
    epsilon: float = 4.0,
    runs: float = RUNS,
    shape: float = SHAPE,
    score_share: float = SCORE_SHARE,
    holdout: float = HOLDOUT,
    rating_range: tuple[float, float] | None = None,
    population: str | None = None,
    seed: int | None = None,
    catalogue_users: Any = None,
    catalogue_items: Any = None,
    out: Any = None,
    report: Callable[[str], None] = lambda what: None,
    **settings: Any,
) -> Model:
    """Fit several settings, and release the best by a noisy score; all of it has one price.

        model = dpmf_jax.tune("ml-100k", "als", {"rank": [0, 3, 5]}, epsilon=4)
        model.settings["tuned"]["chosen"]

    Args:
      data, mechanism, rating_range, population, seed, catalogue_users, catalogue_items, out: as in
        `fit`. Ratings that have no curator, and what users have seen alone, are not tuned.
      candidates: by setting of the mechanism the values to try; all combinations are candidates.
      epsilon: of everything: the runs, their scores, the choice.
      runs: how many there are on average, at least 1. The number is drawn and stays secret.
      shape: of its law, see `accounting.repetition`. 0 is the cheapest and has the longest tail.
      score_share: of what a run spends (ρ), the part that its score takes.
      holdout: share of the ratings that runs are scored on, and that no run fits.
      report: told that a run begins. Whoever counts the calls knows the number of runs.
      settings: of all candidates, and how `data` is read, as in `fit`.

    Returns: the Model of the best run. Its `guarantee` covers the choice, and has the mechanism's
      own unit and relation: ε-δ by theorem 2 of Papernot & Steinke (2022). `settings["tuned"]` says
      what was tried, and what was chosen, which is released.

    Raises: UsageError for settings that the mechanism does not know, or that cannot be tuned;
      PrivacyError where the choice has no price; Diverged where the best run diverged; what `fit`
      raises.
    """
    reading = {name: settings.pop(name) for name in by_name.READING if name in settings}
    reading["rating_range"] = rating_range
    with by_name.words_of_python():
        resolve.check_population(population)
        by_name.check_ledger(seed, data, population)
        if out is not None and (Path(out) / "model.json").exists():
            raise UsageError(
                "there is a model already, and a save never overwrites",
                where=str(out),
                fix="choose another (--out)",
            )
        spec = _tunable(resolve.spec_named(resolve.DEFAULT if mechanism is None else mechanism))
        public = settings.pop(spec.public, None) if spec.public else None
        resolve.check_public(spec, public)
        public = Path(public) if isinstance(public, str) else public
        if spec.weighted and "weight_column" in reading:
            settings["weight_column"] = reading["weight_column"]
        tried = _combinations(candidates)
        for changed in tried:
            resolve.flags_of(spec, settings | changed)
        flags = resolve.flags_of(spec, settings | tried[0])
        ratings, _ = training_ratings.read(
            spec,
            flags,
            data,
            catalogue_users=catalogue_users,
            catalogue_items=catalogue_items,
            test_fraction=0.0,
            seeded=seed is not None,
            **reading,
        )
        _check_share("holdout", holdout)
        _check_share("score_share", score_share)
        train, scored = splits.by_pair(ratings, fraction=holdout, seed=SPLIT)
        if not len(scored):
            raise UsageError("no rating is held out", fix="hold out more (--holdout)")
        make = partial(_candidate, spec, settings, train, public)
        plan = _plan(make, spec, tried, train, epsilon, (runs, shape), score_share)
        tries = [(one.phases, one.settings) for one in plan.candidates]
        law = plan.stop, plan.shape
        model, score = best(tries, plan.score, law, train, scored, seed, report)
        tuned = {
            "epsilon": float(epsilon),
            "run_epsilon": plan.run_epsilon,
            "runs": float(runs),
            "shape": float(shape),
            "holdout": float(holdout),
            "score_share": float(score_share),
            "candidates": [dict(one.changed) for one in plan.candidates],
            "chosen": dict(plan.candidates[score.candidate].changed),
            "score": score.noisy / plan.score.parts * plan.score.largest / train.num_users,
        }
        model = dataclasses.replace(
            model,
            guarantee=_guarantee(plan, score.candidate).with_seed(seed is not None),
            settings={**model.settings, "tuned": tuned},
            frames=frames.kind_of(data),
        )
        if out is not None:
            model = model.save(out)
        by_name.enter(model, train, population, data)
    return model


# --- what is tried, and its price


class _Plan(NamedTuple):
    """What is tried, and its noise.

    run_epsilon: of one run without its score, by itself.
    stop, shape: of the law of the number of runs.
    """

    candidates: tuple[Candidate, ...]
    score: Score
    run_epsilon: float
    stop: float
    shape: float


def _tunable(spec: Spec) -> Spec:
    """Raises: UsageError, PrivacyError for a mechanism whose runs are not scored."""
    if spec.implicit:
        raise UsageError(
            f"{spec.name} predicts no ratings, and a run is scored by its predictions",
            fix=f"take {resolve.DEFAULT}",
        )
    if spec.unsafe:
        raise PrivacyError(
            f"{spec.name} promises nothing, so there is nothing to price a choice by",
            fix=f"take {resolve.DEFAULT}",
        )
    return spec


def _combinations(candidates: Mapping[str, Iterable[Any]] | None) -> list[dict[str, Any]]:
    """Raises: UsageError where there is nothing to choose."""
    values = {name: list(those) for name, those in (candidates or {}).items()}
    found = [dict(zip(values, those, strict=True)) for those in itertools.product(*values.values())]
    if len(found) < 2:
        raise UsageError(
            "there is nothing to choose among",
            fix='name the values of a setting, such as rank=0,3,5 ({"rank": [0, 3, 5]} in Python)',
        )
    if taken := {"epsilon", "delta", "user_budgets"} & set(values):
        raise UsageError(
            f"{', '.join(sorted(taken))}: the price is one for all that is tried",
            fix="give it once, outside the candidates",
        )
    return found


def _check_share(name: str, share: float) -> None:
    if not 0 < share < 1:
        raise UsageError(
            f"{name} is {share:g}", fix=f"give a share between 0 and 1 (--{name.replace('_', '-')})"
        )


def _plan(
    make: Callable[..., Candidate],
    spec: Spec,
    tried: Sequence[Mapping[str, Any]],
    train: Ratings,
    epsilon: float,
    law: tuple[float, float],
    share: float,
) -> _Plan:
    """All candidates with noise so that the price of the whole is at most ε.

    Raises: UsageError, PrivacyError: see `tune`.
    """
    if not 0 < epsilon < math.inf:
        raise UsageError(f"--epsilon must be above 0; got {epsilon:g}", fix="--epsilon 4")
    if not 0 <= law[1] <= 1:
        raise UsageError(f"--shape is {law[1]:g}", fix="give one from 0 to 1")
    with usage_errors(where="--runs", fix="give a mean of at least 1, such as --runs 5"):
        stop, shape = repetition.stop_for(law[0], law[1]), float(law[1])
    delta = _checked(spec, make(tried[0], epsilon).guarantee).delta
    rho = _rho_of_a_run(epsilon, delta, stop, shape)
    for _ in range(_ATTEMPTS):
        each = gaussian.epsilon_exact(rho * (1 - share), delta)
        candidates = tuple(make(changed, each) for changed in tried)
        plan = _Plan(candidates, _score(rho * share, train), each, stop, shape)
        if _guarantee(plan, 0).epsilon <= epsilon:
            return plan
        rho *= 1 - 2.0**-12  # noise in whole numbers costs a little more
    raise PrivacyError(
        f"a choice at epsilon {epsilon:g} and delta {delta:g} has no price",
        fix="give a smaller --epsilon, or a larger --delta",
    )


def _checked(spec: Spec, guarantee: Guarantee) -> Guarantee:
    """Raises: PrivacyError where a choice among runs with this guarantee has no price."""
    if guarantee.status not in ("proved", "proved for real-number noise"):
        raise PrivacyError(
            f"the guarantee of {spec.name} is {guarantee.status}, and the price of a choice is"
            " proved from one that is proved",
            fix=f"take {resolve.DEFAULT}",
        )
    if guarantee.rho is None or guarantee.groups:
        raise PrivacyError(
            f"{spec.name} spends other than equal Gaussian steps, and no choice among its runs is"
            " priced",
            fix=f"take {resolve.DEFAULT}, without budgets of users' own",
        )
    if guarantee.trust_model != words.CURATOR or guarantee.rounds_are_seen:
        raise PrivacyError(
            f"others than a curator see the runs of {spec.name}, also those that are not chosen",
            fix=f"take {resolve.DEFAULT}",
        )
    if spec.fold_in is None and "user factors" not in guarantee.released:
        raise PrivacyError(
            f"a prediction of {spec.name} is not made of its release and one user's ratings, so a"
            " score has no price",
            fix=f"take {resolve.DEFAULT}",
        )
    return guarantee


def _rho_of_a_run(epsilon: float, delta: float, stop: float, shape: float) -> float:
    """ρ of a run, its score included, whose best of several costs about ε at δ.

    By the conversion of one order (Canonne, Kamath & Steinke 2020, proposition 12); `_plan` asks
    for the price itself.
    """
    from scipy.optimize import brentq, minimize_scalar

    def gap(log_rho: float) -> float:
        def price(log_order: float) -> float:
            less = math.exp(log_order)  # the order less one
            divergence = repetition.divergence(math.exp(log_rho), stop, shape, 1 + less)
            return divergence - math.log1p(1 / less) - math.log(delta * (1 + less)) / less

        return minimize_scalar(price, bounds=(-5, 15), method="bounded").fun - epsilon

    most = math.log(gaussian.solve_rho(epsilon, delta))
    return math.exp(float(brentq(gap, most - 12, most, xtol=1e-6)))


def _score(rho: float, train: Ratings) -> Score:
    """A score that spends at most ρ."""
    z = 1 / math.sqrt(2 * rho)
    parts = min(FINEST, 2**30 // max(1, train.num_users), math.floor(whole.LARGEST / z * 0.99))
    if parts < 1:
        raise PrivacyError(
            "so little noise is allowed that no score can be told", fix="give a larger --epsilon"
        )
    scale = float(np.nextafter(np.float32(z * parts), np.float32(np.inf)))
    low, high = train.rating_range
    return Score(parts, scale, ((high - low) / 2) ** 2)


def _candidate(
    spec: Spec,
    settings: Mapping[str, Any],
    train: Ratings,
    public: Any,
    changed: Mapping[str, Any],
    epsilon: float,
) -> Candidate:
    """The settings with these changes, at an ε of one run."""
    flags = resolve.flags_of(spec, {**settings, **changed, "epsilon": epsilon})
    phases, kept = resolve.phases_and_settings(spec, flags, train, public, command="tune")
    promise = accounting.compose(*(one.guarantee(steps) for one, steps in phases), same_groups=True)
    return Candidate(changed, phases, kept, promise)


def _guarantee(plan: _Plan, chosen: int) -> Guarantee:
    """Of the best run, where it has these settings.

    A run draws its settings at random, so it spends what the dearest of them does. The steps are
    those of the settings that were chosen, each at the price of the dearest.
    """
    guarantees = [one.guarantee for one in plan.candidates]
    base = guarantees[chosen]
    _check_alike(guarantees)
    most = max(one.rho or 0.0 for one in guarantees)
    apart = max(accounting.loss.distance(one.losses) for one in guarantees)
    steps = [one for one in base.losses if isinstance(one, Gaussian)]
    number = sum(step.num_steps for step in steps)
    missing = max(0.0, apart - accounting.loss.distance(steps)) / number
    weaker = math.sqrt((base.rho or 0.0) / most) * (1 - 1e-12)
    run = [
        dataclasses.replace(
            step,
            noise_multiplier=step.noise_multiplier * weaker,
            distance=step.distance + missing,
            user_rho=(base.unit != "user" and step.user_rho) or None,
        )
        for step in steps
    ]
    own = None if base.unit == "user" else (0.0, 1.0)
    scored = dataclasses.replace(plan.score.loss, user_rho=own)
    return accounting.priced(
        mechanism=f"the best of several runs of {base.mechanism}",
        losses=(BestOf(run=(*run, scored), stop=plan.stop, shape=plan.shape),),
        delta=base.delta,
        unit=base.unit,
        relation=base.relation,
        released=(*base.released, "the settings that were chosen", SCORED),
        trust_model=base.trust_model,
        status=base.status,
        assumptions=(*base.assumptions, ASSUMED),
        not_covered=tuple(one for one in base.not_covered if one != accounting.guarantee.SELECTION),
        against=base.against,
        real_number_noise=base.real_number_noise,
    )


def _check_alike(guarantees: Sequence[Guarantee]) -> None:
    """Raises: UsageError where candidates promise different things."""
    for name in ("unit", "relation", "delta", "status"):
        if len({str(getattr(one, name)) for one in guarantees}) > 1:
            raise UsageError(
                f"the settings to try differ in what they promise ({name})",
                fix="tune settings that change no promise, such as rank",
            )
