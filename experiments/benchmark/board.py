"""The rows of the benchmark: every setting with its repeats, each fit kept when it is done."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.errors import DataError
from experiments.benchmark.protocol import Contender, Setting, Split, settings
from experiments.benchmark.scores import NUMBERS
from experiments.cli import console
from experiments.reproduce import store

KIND = "row"  # how the files of a store begin
AUDITS = Path(__file__).parents[2] / "docs" / "audits"  # the registry, in a checkout
CONFIDENCE = 0.95


def run_settings(setting: Setting, seed: int) -> dict[str, Any]:
    """What tells a fit from others. seed: of the split and of the noise."""
    data, split, contender, epsilon = setting
    return {
        "data": data,
        "split": split,
        "kind": contender.kind,
        "name": contender.name,
        "flags": dict(contender.flags),
        "tried": {name: list(values) for name, values in contender.tried},
        "rounds": contender.rounds,
        "epsilon": epsilon,
        "seed": seed,
    }


def collect(
    scale: str,
    folder: Path,
    *,
    data: Sequence[str] = (),
    split: Sequence[Split] = (),
    repeats: int | None = None,
    again: bool = False,
    data_dir: Path | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[dict[str, Any]]:
    """The rows of a scale, each as it is done. Fits that the folder holds are read from it.

    A data set that is not here, and a peer that is not installed, have rows that say so.

    Args:
      data, split: only these; all of the scale by default. repeats: in place of the scale's.
      again: fit also what is kept, and keep what is found now.
    """
    from experiments.benchmark import fits

    absent: dict[str, str] = {}
    with store.locked(folder):
        for setting, usual in settings(scale):
            if (data and setting.data not in data) or (split and setting.split not in split):
                continue
            found = []
            for seed in range(usual if repeats is None else repeats):
                run = run_settings(setting, seed)
                kept = None if again else store.read(folder, KIND, run)
                if package := fits.missing(setting.contender):
                    absent[setting.contender.label] = f"{package} is not installed"
                elif kept is None and setting.data not in absent:
                    report(run_label(setting, seed))
                    try:
                        kept = console.plain(fits.fitted(setting, seed, data_dir=data_dir))
                        store.write(folder, KIND, run, kept)
                    except DataError as error:
                        absent[setting.data] = str(error)
                found += [] if kept is None else [kept]
            why = absent.get(setting.data) or absent.get(setting.contender.label, "")
            yield row_of(setting, found, "" if found else why)


def run_label(setting: Setting, seed: int) -> str:
    price = "" if setting.epsilon is None else f", ε = {setting.epsilon:g}"
    return f"{setting.data}, {setting.split}, {setting.contender.label}{price}, seed {seed}"


def row_of(setting: Setting, found: Sequence[Mapping[str, Any]], absent: str) -> dict[str, Any]:
    """A setting and what its fits gave. absent: why there is none."""
    contender = setting.contender
    groups = [one["rmse_by_activity"] for one in found if one["rmse_by_activity"] is not None]
    return {
        "data": setting.data,
        "split": setting.split,
        "contender": contender.label,
        "kind": contender.kind,
        "epsilon": setting.epsilon,
        "repeats": len(found),
        "diverged": sum(one["diverged"] for one in found),
        "promise": found[0]["promise"] if found else None,
        "audits": audits_of(contender),
        "numbers": {name: interval([one[name] for one in found]) for name in NUMBERS},
        "rmse_by_activity": _group_means(groups),
        "seconds": float(np.median([one["seconds"] for one in found])) if found else None,
        "memory_mib": max((one["memory_mib"] or 0.0 for one in found), default=0.0) or None,
        "commits": sorted({one["commit"] for one in found}),
        "devices": sorted({one["device"] for one in found}),
        "absent": absent,
    }


def interval(values: Sequence[float | None]) -> dict[str, Any] | None:
    """{mean, half, each}: half of the interval over repeats, None of a single one.

    None where one of them has no number: a mean over those that did not diverge would flatter.
    """
    from scipy import stats

    if not values or any(value is None for value in values):
        return None
    each = np.asarray(values, float)
    half = None
    if len(each) > 1:
        quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(each) - 1)
        half = float(quantile * each.std(ddof=1) / math.sqrt(len(each)))
    return {"mean": float(each.mean()), "half": half, "each": each.tolist()}


def _group_means(groups: Sequence[Sequence[float | None]]) -> list[float | None] | None:
    """The mean of each group over repeats."""
    if not groups:
        return None
    columns = [
        [value for value in column if value is not None] for column in zip(*groups, strict=True)
    ]
    return [float(np.mean(column)) if column else None for column in columns]


def audits_of(contender: Contender) -> dict[str, Any] | None:
    """What the audits said of the mechanism, from the registry: its counts of verdicts.

    None where it was not audited, or the registry is not here.
    """
    path = AUDITS / f"{contender.name}.json"
    if contender.kind != "mechanism" or not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    return {name: record["counts"][name] for name in ("violated", "inconclusive", "consistent")}
