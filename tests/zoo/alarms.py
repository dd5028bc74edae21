"""False alarms: sound mechanisms, strangers' among them, under many keys.

`python -m tests.zoo alarms 2000` audits each of them as `dpmf audit --quick` does, on tiny ratings,
so many times in all, and prints the table, in markdown.
"""

from collections import Counter
from collections.abc import Iterator

import jax

import audits
from tests.zoo import processes
from tests.zoo.sound import RATINGS, SOUND, sound, steps
from tests.zoo.strangers import STRANGERS

PUBLISHED = "gaussian, published"  # whose claim is not proved
# The attacks on whole runs, the tables of lookups and the list of keys take longer than all else.
LEFT_OUT = ("membership", "lookup", "keys")
FAMILIES = [name for name in audits.families(quick=True) if name not in LEFT_OUT]
MECHANISMS = (*(name for name in SOUND if name != PUBLISHED), *STRANGERS)


def counts(name: str, seeds: range) -> Counter[str]:
    """What the audits of one mechanism said under these seeds; each false alarm by its name."""
    made, num = STRANGERS[name]() if name in STRANGERS else (sound(name), steps(name))
    told: Counter[str] = Counter()
    for seed in seeds:
        found = audits.audit(
            made,
            RATINGS,
            key=jax.random.key(seed),
            num_steps=num,
            quick=True,
            only=FAMILIES,
            layout_kind="dense",
        )
        for finding in found:
            told[finding.verdict] += 1
            if finding.verdict == "violated":
                told[f"{finding.audit}, key {seed}"] += 1
    return told


def rows(runs: int) -> Iterator[str]:
    """The table, row by row: as many runs of each mechanism, at least so many in all.

    No key is used for two mechanisms: many of them draw the same noise from the same key.
    """
    each = -(-runs // len(MECHANISMS))
    asked = [(name, range(at * each, (at + 1) * each)) for at, name in enumerate(MECHANISMS)]
    yield "| sound mechanism | runs | consistent | inconclusive | violated |"
    yield "| --- | --- | --- | --- | --- |"
    whole: Counter[str] = Counter()
    for name, told in zip(MECHANISMS, processes.in_order(_counts, asked), strict=True):
        whole += told
        yield _row(name, each, told)
    yield _row("all", each * len(MECHANISMS), whole)


def _counts(asked: tuple[str, range]) -> Counter[str]:
    return counts(*asked)


def _row(name: str, runs: int, told: Counter[str]) -> str:
    which = [words for words in told if ", key " in words]
    violated = "; ".join([str(told["violated"]), *which])
    return f"| {name} | {runs:,} | {told['consistent']:,} | {told['inconclusive']:,} | {violated} |"
