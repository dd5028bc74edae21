"""Do some values of the noise come too often: on a coarse grid, or now and then none at all?

Floats repeat as 2^23 equally likely values do. Whole numbers of a wide law are smooth: each comes
about as often as its neighbours, and all residues of a small modulus equally often.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from audits.finding import ALPHA, Finding, Verdict, not_applicable

NAME = "noise: repeated values"
CLAIM = "values of the noise repeat no more often than 2^23 equally likely ones do"
CLAIM_OF_WHOLE = (
    "the noise is a smooth law's whole numbers: none comes oftener than those around it, and all"
    " residues come equally often"
)
GRID = 2**23
CLOSER = 1.25  # erf^-1 and the product with σ round a few values together
KEPT = 1 << 20  # numbers that are compared with those around them, at most
AROUND = 8  # on either side
# How much oftener than those around it the middle of a law comes: of a normal, and of any.
UNEVEN, UNEVEN_OF_ANY = 1.01, 1.15
WIDE = 64.0  # its deviation, at least
MODULI = (2, 3, 4, 5, 7, 8, 10, 16, 32, 64, 256)
# A modulus is tried where the deviation is so many times as large: residues of a normal are then
# even but for e^-79 of them, those of a Laplace law but for 10^-7.
TIMES, TIMES_OF_ANY = 2.0, 1024.0


def of_floats(noise: np.ndarray, replay: dict[str, Any]) -> Finding:
    """Repeated sizes of float noise, against a Poisson law."""
    from scipy.stats import poisson

    values = np.abs(noise).ravel()[: 1 << 18]
    _, counts = np.unique(values, return_counts=True)
    repeats = float(np.sum(counts * (counts - 1.0) / 2))
    # Sizes, not signed values: the noise of a pair may have the opposite sign.
    expected = CLOSER * 2 * math.comb(len(values), 2) / GRID
    zeros, zeros_expected = int(np.sum(values == 0)), max(1e-3, 2 * len(values) / GRID)
    p_value = min(
        1.0,
        2 * float(min(poisson.sf(repeats - 1, expected), poisson.sf(zeros - 1, zeros_expected))),
    )
    verdict: Verdict = "violated" if p_value <= ALPHA else "consistent"
    return Finding(
        audit=NAME,
        claim=CLAIM,
        measured=repeats,
        claimed=expected,
        verdict=verdict,
        details={
            "numbers": len(values),
            "exact_zeros": zeros,
            "p_value": p_value,
            "alpha": ALPHA,
            "unit_of_measurement": "pairs of equal sizes; claimed is the most that is expected",
            "power": (
                f"{poisson.isf(ALPHA / 2, expected) + 1.65 * math.sqrt(expected):.0f} such pairs"
                " would be seen with probability 0.95"
            ),
            "replay": replay,
        },
    )


class Whole:
    """What whole numbers have been seen, leaf by leaf."""

    def __init__(self, deviation: float, *, normal: bool) -> None:
        """deviation: of the noise, about. normal: whether a normal law is promised."""
        self.deviation, self.numbers = deviation, 0
        times = TIMES if normal else TIMES_OF_ANY
        self.moduli = [modulus for modulus in MODULI if deviation >= times * modulus]
        self.residues: dict[
            int, np.ndarray
        ] = {}  # by leaf: [256] and [210] counts, one after another
        self.kept: list[np.ndarray] = []
        self.uneven = (UNEVEN if normal else UNEVEN_OF_ANY) / (2 * AROUND + 1)
        self.zeros = np.zeros(2, int)  # and those around them, of all numbers

    def add(self, leaves: list[np.ndarray]) -> None:
        """Counts numbers in: int64[draws, entries] of each leaf."""
        for place, leaf in enumerate(leaves):
            if not leaf.size:
                continue
            values = leaf.ravel()
            counts = np.concatenate(
                [np.bincount(values % size, minlength=size) for size in (256, 210)]
            )
            self.residues[place] = self.residues.get(place, 0) + counts
            if sum(map(len, self.kept)) < KEPT:
                self.kept.append(values[:KEPT])
            self.numbers += len(values)
            near = values[np.abs(values) <= AROUND]
            self.zeros += np.sum(near == 0), len(near)

    def finding(self, entries: list[np.ndarray], replay: dict[str, Any]) -> Finding:
        """entries: int64[draws, entries] of each leaf, whose entries are also looked at alone."""
        if self.deviation < WIDE:
            why = f"the noise is of whole numbers, and narrow: it deviates by {self.deviation:.3g}"
            return not_applicable(NAME, CLAIM_OF_WHOLE, why)
        tests = [*self._value_tests(), *self._residue_tests(), *self._entry_tests(entries)]
        p_value, ratio, worst = min(tests)
        p_value = min(1.0, len(tests) * p_value)
        verdict: Verdict = "violated" if p_value <= ALPHA else "consistent"
        moduli = ", ".join(map(str, self.moduli)) or "none"
        return Finding(
            audit=NAME,
            claim=CLAIM_OF_WHOLE,
            measured=ratio,
            claimed=1.0,
            verdict=verdict,
            details={
                "numbers": self.numbers,
                "moduli": self.moduli,
                "p_value": p_value,
                "alpha": ALPHA,
                "worst": worst,
                "unit_of_measurement": "how often the worst comes, in how often it should",
                "power": (
                    f"numbers without noise, {self._needed():.2g} of all, would be seen; so would"
                    f" multiples in a leaf or an entry (moduli: {moduli})"
                ),
                "replay": replay,
            },
        )

    def _needed(self) -> float:
        """About the share of equal numbers that is seen."""
        usual = self.numbers * min(1.0, 0.4 / self.deviation)
        return (8 + 8 * math.sqrt(usual)) / self.numbers

    def _value_tests(self) -> list[tuple[float, float, str]]:
        """(p-value, ratio, what) of 0, and of the number that comes most often."""
        values, counts = np.unique(np.concatenate(self.kept)[:KEPT], return_counts=True)
        most = int(values[np.argmax(counts)])
        near = counts[(values >= most - AROUND) & (values <= most + AROUND)].sum()
        tried, name = len(values), "the number that comes most often"
        return [
            _too_often(*map(int, self.zeros), self.uneven, 1, "0"),
            _too_often(int(counts.max()), int(near), self.uneven, tried, name),
        ]

    def _residue_tests(self) -> list[tuple[float, float, str]]:
        from scipy.stats import chi2

        found = []
        for place, both in self.residues.items():
            for modulus in self.moduli:
                counts = both[:256] if 256 % modulus == 0 else both[256:]
                counts = counts.reshape(-1, modulus).sum(axis=0)
                even = counts.sum() / modulus
                p_value = float(chi2.sf(np.sum((counts - even) ** 2) / even, modulus - 1))
                found.append((p_value, float(counts.max() / even), f"mod {modulus}, leaf {place}"))
        return found

    def _entry_tests(self, entries: list[np.ndarray]) -> list[tuple[float, float, str]]:
        found = []
        for modulus in (2, 5, 16):
            if modulus not in self.moduli:
                continue
            for place, leaf in enumerate(entries):
                if not leaf.size:
                    continue
                rest = leaf % modulus
                most = max(int(np.sum(rest == at, axis=0).max()) for at in range(modulus))
                tried, name = modulus * leaf.shape[1], f"mod {modulus}, an entry of leaf {place}"
                found.append(_too_often(most, len(leaf), 1 / modulus, tried, name))
        return found


def _too_often(
    count: int, total: int, chance: float, tried: int, name: str
) -> tuple[float, float, str]:
    from scipy.stats import binom

    p_value = min(1.0, tried * float(binom.sf(count - 1, total, chance))) if total else 1.0
    return p_value, count / max(total * chance, 1e-9), name
