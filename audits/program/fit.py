"""A program that fits, as a black box: what it leaves for others to see on neighbouring data sets.

It runs with the same key on both. Outside `private/` a run may show noisy numbers, and nothing else
that differs: not how long it ran, not a name, a shape, an id, a bound or a mean. Noisy is what
another key changes on the same ratings.

Beside random pairs there are pairs that tempt (`pairs`): a single rating holds the largest value,
or an item, or a user, has but one rating. The program is the caller's; of a mechanism alone it is
the project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from audits.finding import Finding, Verdict, inconclusive, not_applicable
from audits.program import pairs
from audits.program.compare import compare
from audits.program.pairs import TEMPTING, Pair
from audits.program.runs import Program, Run, run
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.models.model import Model
from dpmf_jax.protocol import Mechanism, Phase
from dpmf_jax.training import fit as fitting

MakePhases = Callable[[Ratings], tuple[Sequence[Phase], Mapping[str, Any]]]

CLAIMS = {
    "fit: steps": "as many steps are done as are priced, whatever the ratings",
    "fit: files": (
        "files, their rights, arrays and shapes outside private/ are those of the release, whatever"
        " the ratings; what is private is its owner's alone"
    ),
    "fit: public words": (
        "settings, ids, ranges, prices and words outside private/ do not depend on the ratings"
    ),
    "fit: released numbers": (
        "no released number moves with the ratings unless it moves with the noise"
    ),
    "fit: logs": (
        "what is printed says the same words, whatever the ratings; its numbers are the curator's"
    ),
}


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    earlier: Sequence[Phase] = (),
    make_phases: MakePhases | None = None,
    steps_paid: Callable[[Mapping[str, Any], int], int] | None = None,
    num_pairs: int = 1,
    tempting: Collection[str] = TEMPTING,
) -> list[Finding]:
    """The findings of `audit_program` on `dpmf_jax.fit` with this mechanism, saved to a folder.

    Runs are seeded, and on one device.

    Args:
      earlier: phases that run before, as in `fitting.fit`.
      make_phases: ratings -> (phases, settings to write down). They are made of each data set anew,
        so that what they take from the ratings is seen; as many phases and steps run as are given
        here. None: the phases are those given here, whatever the ratings.
      steps_paid: (settings, steps that the guarantee prices) -> steps of training that these pay
        for, where a user takes part in a few of them. None: as many.
    """
    phases = (*earlier, (mechanism, num_steps))

    def priced(model: Model) -> int:
        steps = model.guarantee.steps
        return steps if steps_paid is None else max(steps, steps_paid(model.settings, steps))

    def program(ratings: Ratings, folder: Path, key: jax.Array) -> Model:
        own, settings = (phases, {}) if make_phases is None else make_phases(ratings)
        *before, (last, _) = own[: len(phases)]
        return fitting.fit(
            ratings,
            last,
            num_steps=num_steps,
            earlier=before,
            seed=int(jax.random.bits(key)),
            out=folder,
            settings=settings,
            layout_kind=data.kind,
            num_devices=1,
            chunk_steps=num_steps,
        )

    return audit_program(
        program, ratings, key=key, priced=priced, num_pairs=num_pairs, tempting=tempting
    )


def audit_program(
    program: Program,
    ratings: Ratings,
    *,
    key: jax.Array,
    priced: Callable[[Model], int] = lambda model: model.guarantee.steps,
    num_pairs: int = 1,
    tempting: Collection[str] = TEMPTING,
) -> list[Finding]:
    """Five findings: steps, files, public words, released numbers, logs.

    Compares bits. It has no false alarms, unless noise leaves a number as it is under dozens of
    keys (`compare`). `consistent` covers these pairs and keys. Noise that is too small, and ratings
    that a run changes before a mechanism sees them, are for audits of the mechanism.

    A program that ends in an error on one data set of a pair tells them apart. Where it ends so on
    `ratings`, all five are `inconclusive`. Where no privacy is claimed, released numbers may move.

    Args:
      program: (ratings, a folder that does not exist yet, key) -> Model; may write into the folder.
      priced: model -> how many steps of training its guarantee pays for.
      num_pairs, tempting: the pairs, see `pairs`. On both data sets of a pair the program runs with
        one key, and on the first with others too.
    """
    choose_key, run_key, other_key = jax.random.split(key, 3)
    try:
        # First the run with the other key: what a process says once, such as a warning, is in it.
        again = run(program, ratings, other_key, priced)
        own = run(program, ratings, run_key, priced)
    except Exception as error:  # any error of a stranger's program: how it ends is on trial
        why = f"the program ended in an error on the ratings themselves ({type(error).__name__})"
        return [inconclusive(name, claim, why, error=str(error)) for name, claim in CLAIMS.items()]
    random = np.random.default_rng(np.asarray(jax.random.bits(choose_key, (4,))))
    guarantee = own.model.guarantee
    tried = pairs.choose(
        random, ratings, guarantee.unit, num_pairs, tempting, guarantee.largest_change
    )
    broken: dict[str, list[tuple[Pair, str]]] = {name: [] for name in CLAIMS}
    for pair in tried:
        differences = _differences(program, pair, run_key, other_key, (own, again), ratings, priced)
        for name, differing in differences.items():
            broken[name] += [(pair, what) for what in differing]
    replay = {"key": np.asarray(jax.random.key_data(key)).tolist(), "data_sha256": ratings.sha256()}
    findings = {name: _finding(name, of, len(tried), own, replay) for name, of in broken.items()}
    if own.model.guarantee.status == "none":
        numbers = "fit: released numbers"
        why = "the guarantee claims no privacy"
        findings[numbers] = not_applicable(numbers, CLAIMS[numbers], why)
    return list(findings.values())


def _differences(
    program: Program,
    pair: Pair,
    run_key: jax.Array,
    other_key: jax.Array,
    known: tuple[Run, Run],
    ratings: Ratings,
    priced: Callable[[Model], int],
) -> dict[str, list[str]]:
    """What `compare` says of one pair. known: the runs on `ratings` with either key."""

    def end(world: Ratings, spent: jax.Array) -> Run | Exception:
        try:
            return run(program, world, spent, priced)
        except Exception as error:  # any: how a stranger's program ends is on trial, see `compare`
            return error

    own, again = (
        known if pair.first is ratings else (end(pair.first, run_key), end(pair.first, other_key))
    )
    there = end(pair.second, run_key)

    def others(place: int) -> Run | Exception:
        further = jax.random.fold_in(other_key, place)
        return again if place == 0 else end(pair.first, further)

    if isinstance(own, Run) and isinstance(again, Run) and isinstance(there, Run):
        return compare(own, others, there)
    if isinstance(own, Exception) == isinstance(there, Exception):
        return {}
    error = own if isinstance(own, Exception) else there
    return {
        "fit: steps": [
            f"ended in an error on one data set, not on the other ({type(error).__name__})"
        ]
    }


def _finding(
    name: str, broken: list[tuple[Pair, str]], num: int, start: Run, replay: dict[str, Any]
) -> Finding:
    details: dict[str, Any] = {
        "pairs": num,
        "steps_done": start.taken,
        "steps_priced": start.priced,
        "files": sorted(start.public),
        "unit_of_measurement": "things that differ or should not be there, over all pairs",
        "power": (
            "exact for these pairs and keys: a single bit of what is public, or one step more,"
            " would be seen"
        ),
    }
    if broken:
        details["found"] = sorted({what for _, what in broken})[:8]
        replay = replay | {"pair": broken[0][0].words}
    verdict: Verdict = "violated" if broken else "consistent"
    return Finding(
        audit=name,
        claim=CLAIMS[name],
        measured=float(len(broken)),
        claimed=0.0,
        lower=float(len(broken)),
        verdict=verdict,
        details=details | {"replay": replay},
    )
