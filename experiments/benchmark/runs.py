"""Fits of the benchmark: one for each case and split, each kept as soon as it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dpmf_jax.errors import DataError
from experiments.benchmark.cases import Case
from experiments.cli import provenance
from experiments.fit.command import Command, fit
from experiments.fit.flags import with_flags_of
from experiments.fit.tune import parsed
from experiments.reproduce import store

KIND = "fit"  # how the files of a store begin


def settings(case: Case, seed: int) -> dict[str, Any]:
    """What tells a run from others. seed: of the split and of the noise."""
    found = {
        "data": case.data,
        "mechanism": case.mechanism,
        "epsilon": case.epsilon,
        "flags": dict(case.flags),
        "seed": seed,
    }
    return found | ({"tried": list(case.tried)} if case.tried else {})


def fitted(case: Case, seed: int, *, data_dir: Path | None, devices: int | None) -> dict[str, Any]:
    """One fit, of which no model is kept: its errors, what it costs, and where it was computed.

    Raises: as `dpmf fit` and `dpmf tune` do.
    """
    if case.tried:
        return tuned(case, seed, data_dir=data_dir)
    kind = with_flags_of(Command, case.mechanism)
    flags = {name: Path(value) if name == "item_features" else value for name, value in case.flags}
    with TemporaryDirectory() as folder:
        command = kind(
            data=case.data,
            data_dir=data_dir,
            epsilon=case.epsilon,
            seed=seed,
            split_seed=seed,
            controls="simple",
            out=Path(folder) / "model",
            devices=devices,
            **flags,
        )
        started = time.perf_counter()
        result = fit(command)
        seconds = time.perf_counter() - started
    guarantee = result["guarantee"]
    return {
        "rmse": result["rmse_test"],
        "ndcg_at_10": result["ndcg_at_10"],
        "controls": {
            name: {key: values[key] for key in ("rmse_test", "ndcg_at_10")}
            for name, values in result["controls"].items()
        },
        "promise": {
            name: guarantee[name] for name in ("status", "unit", "relation", "epsilon", "delta")
        },
        "chosen": result["settings"],
        "seconds": seconds,
        "commit": provenance.commit(),
        "device": provenance.device(),
    }


def tuned(case: Case, seed: int, *, data_dir: Path | None) -> dict[str, Any]:
    """The same of a private choice among settings, fitted on the same part of the ratings: of them
    it holds a tenth out once more.
    """
    import dpmf_jax
    from dpmf_jax.training.ratings import read
    from dpmf_jax.training.resolve import flags_of, spec_named

    spec = spec_named(case.mechanism)
    flags = flags_of(spec, {})
    train, test = read(spec, flags, case.data, data_dir=data_dir, split_seed=seed, seeded=True)
    assert test is not None
    started = time.perf_counter()
    model = dpmf_jax.tune(
        train, case.mechanism, parsed(case.tried), epsilon=case.epsilon, seed=seed
    )
    seconds = time.perf_counter() - started
    found, guarantee = model.evaluate(test, k=10), model.guarantee.to_dict()
    return {
        "rmse": found["rmse"],
        "ndcg_at_10": found["ndcg_at_k"],
        "controls": {},
        "promise": {
            name: guarantee[name] for name in ("status", "unit", "relation", "epsilon", "delta")
        },
        "chosen": dict(model.settings),
        "seconds": seconds,
        "commit": provenance.commit(),
        "device": provenance.device(),
    }


def collect(
    cases: Iterable[Case],
    repeats: int,
    folder: Path,
    *,
    again: bool = False,
    data_dir: Path | None = None,
    devices: int | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[Case, list[dict[str, Any]], str]]:
    """(case, what each split gave, why there is nothing) of every case, as each is done.

    Runs that the folder holds are read from it. A data set that is not here has no runs.

    Args:
      again: fit also what is kept, and keep what is found now.
    """
    missing: dict[str, str] = {}
    with store.locked(folder):
        for case in cases:
            rows = []
            for seed in range(repeats):
                run = settings(case, seed)
                row = None if again else store.read(folder, KIND, run)
                if row is None and case.data not in missing:
                    report(f"{case.data}, {case.label}, ε = {case.epsilon:g}, split {seed}")
                    try:
                        row = fitted(case, seed, data_dir=data_dir, devices=devices)
                        store.write(folder, KIND, run, row)
                    except DataError as error:
                        missing[case.data] = str(error)
                if row is not None:
                    rows.append(row)
            yield case, rows, "" if rows else missing.get(case.data, "")


def summary(case: Case, rows: Sequence[Mapping[str, Any]], absent: str) -> dict[str, Any]:
    """A case in a row of the table: mean and standard deviation over splits."""
    errors = [row["rmse"] for row in rows]
    ranks = [row["ndcg_at_10"] for row in rows if row["ndcg_at_10"] is not None]
    mean = float(np.mean(errors)) if errors else None
    return {
        **{name: value for name, value in settings(case, 0).items() if name != "seed"},
        "label": case.label,
        "splits": len(rows),
        "rmse": mean,
        "rmse_deviation": float(np.std(errors, ddof=1)) if len(errors) > 1 else None,
        "rmse_each": errors,
        "ndcg_at_10": float(np.mean(ranks)) if ranks else None,
        "item_means": _mean(rows, "item_means", "rmse_test"),
        "popularity_ndcg_at_10": _mean(rows, "popularity", "ndcg_at_10"),
        "promise": rows[0]["promise"] if rows else None,
        "must": case.must,
        "stretch": case.stretch,
        "met": None if mean is None or case.must is None else mean <= case.must,
        "seconds": float(np.median([row["seconds"] for row in rows])) if rows else None,
        "commits": sorted({row["commit"] for row in rows}),
        "devices": sorted({row["device"] for row in rows}),
        "absent": absent,
    }


def _mean(rows: Sequence[Mapping[str, Any]], control: str, name: str) -> float | None:
    found = [row["controls"].get(control, {}).get(name) for row in rows]
    found = [value for value in found if value is not None]
    return float(np.mean(found)) if found else None
