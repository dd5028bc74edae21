"""The audits of a zoo of planted bugs (`planted`).

`python -m tests.zoo` runs every audit on every bug and prints the table, in markdown, of what was
caught by what.
"""

import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax

import audits
from audits.mechanism import (
    coins,
    density,
    enumeration,
    faults,
    lookup,
    noise_law,
    post_processing,
    privacy_loss,
    sampler,
    sensitivity,
    user_price,
)
from audits.mechanism import (
    keys as keys_used,
)
from audits.program import fit as fit_audit
from dpmf_jax import parts
from tests.zoo import processes
from tests.zoo.planted import ALL, ITEMS_PUBLIC, MEANS, PURE, UNSEEN, Bug
from tests.zoo.sound import DATA, RATINGS, fit, sound, steps

# Of each audit the findings' first words; what is named for a bug is looked up here.
AUDITS = {
    "sensitivity": sensitivity.audit,
    "init": post_processing.audit,
    "post-processing": post_processing.audit,
    "release": post_processing.audit,
    "noise: scale": sampler.audit,
    "noise: every entry": sampler.audit,
    "noise: both worlds": sampler.audit,
    "noise: independence": sampler.audit,
    "noise: keys": keys_used.audit,
    "noise: seeds": keys_used.audit,
    "noise: entries apart": noise_law.audit,
    "noise: repeated values": noise_law.audit,
    "noise: tails": noise_law.audit,
    "noise: faults": faults.audit,
    "noise: lookup": lookup.audit,
    "user price": user_price.audit,
    "density": density.audit,
    "enumeration": enumeration.audit,
    "coins": coins.audit,
    "privacy loss": privacy_loss.audit,
    "fit": fit_audit.audit,
}


def named_audit(finding: str):
    return next(audit for first, audit in AUDITS.items() if finding.startswith(first))


# Tried alone, an audit leaves out those that it rests on.
ALONE: dict[Any, dict[str, Any]] = {privacy_loss.audit: {"density_findings": ()}}


def run(audit, mechanism, name: str, key, *, num_steps=None, **options):
    """The findings of one audit of a mechanism, on the tiny ratings; options: of the audit."""
    usual: dict[Any, dict[str, Any]] = {
        privacy_loss.audit: {"num_runs": 256, "num_neighbours": 16},
        sensitivity.audit: {"num_neighbours": RATINGS.num_ratings, "climb": False},
        lookup.audit: audits.QUICK["lookup"],
    }
    options = usual.get(audit, {}) | options
    return audit(
        parts.as_pytree(mechanism),
        RATINGS,
        DATA,
        key=key,
        num_steps=num_steps or steps(name),
        **options,
    )


def findings(bug: Bug, key, *, whole: bool = False, planted: bool = True):
    """Of the audit that is named for a bug, or of all of them; of the sound original where not
    `planted`.
    """
    if bug.kind == "fit":
        return fit_audit.audit_program(bug.plant if planted else fit, RATINGS, key=key)
    if bug.kind == "run":
        first = sound(MEANS)
        program = bug.plant if planted else None
        return keys_used.audit(
            sound(bug.mechanism),
            RATINGS,
            DATA,
            key=key,
            num_steps=3,
            earlier=[(first, 3)],
            run=program,
        )
    mechanism = bug.plant(sound(bug.mechanism)) if planted else sound(bug.mechanism)
    if whole:
        chosen, options = dict.fromkeys(AUDITS.values()), {}
    else:  # a pure price has a finding that needs no δ
        named = named_audit(bug.named)
        chosen = [named]
        options = ALONE.get(named, {}) | ({"deltas": ()} if bug.named == PURE else {})
    return [
        finding
        for audit in chosen
        for finding in run(audit, mechanism, bug.mechanism, key, num_steps=bug.num_steps, **options)
    ]


def rows(words: str = "", seed: int = 0) -> Iterator[str]:
    """Markdown, row by row: every bug, the audit named for it, and all that called it violated."""
    yield "| bug | mechanism | planted | named for it | violated | consistent all the same |"
    yield "| --- | --- | --- | --- | --- | --- |"
    asked = [
        (name, place)
        for name in (*ALL, *UNSEEN)
        for place in range(len(ALL.get(name, [None])))
        if words in name
    ]
    yield from processes.in_order(partial(_row, seed), asked)


def _row(seed: int, asked: tuple[str, int]) -> str:
    """The row of one bug: its name, and which of that name."""
    name, place = asked
    started, key = time.perf_counter(), jax.random.key(seed)
    if name in UNSEEN:
        program, why = UNSEEN[name]
        found = fit_audit.audit_program(program, RATINGS, key=key)
        told = [ITEMS_PUBLIC, "in the program", f"none; {why} would see it"]
    else:
        bug = ALL[name][place]
        found = findings(bug, key, whole=True)
        seen = any(one.audit == bug.named and one.verdict == "violated" for one in found)
        where = bug.words or f"in the {bug.kind}"
        told = [bug.mechanism, where, bug.named if seen else f"{bug.named}: **no**"]
    lists = [
        "; ".join(finding.audit for finding in found if finding.verdict == verdict)
        for verdict in ("violated", "consistent")
    ]
    print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return f"| {' | '.join([name, *told, *lists])} |"
