"""How fast a shuffled ratings.csv becomes checked ratings and a layout, and its peak of memory."""

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.errors import UsageError
from experiments.bench import measure, process

RANGE = (0.5, 5.0)
STAGES = ("jax read + checks", "jax read + checks + layout", "pyarrow parse only")


def run(
    num_ratings: int = 20_000_000,
    repeats: int = 7,
    *,
    num_users: int = 138_493,
    num_items: int = 26_744,
    seed: int = 0,
    folder: str | None = None,
) -> dict[str, Any]:
    """Times `datasets.load` on a shuffled file like MovieLens-20M's, each in a fresh process.

    Args:
      repeats: interleaved rounds, of one process for each contender; the file is in the page cache.

    Returns: a JSON-able object; `rows` is a list of {contender, ms, spread_ms, fastest_ms, ratio,
      cpu_ms, peak_mb}: times as of `measure.summary`, from after the imports of NumPy and jax on;
      ratio is to the time in which pyarrow parses the three columns without a check; peak_mb is the
      largest peak of resident memory of the whole process. Writing the file is not timed; the file
      (about 25 bytes a rating) is deleted afterwards.

    Raises: UsageError for numbers below 1.
    """
    if min(num_ratings, repeats) < 1:
        raise UsageError("ratings and repeats must be at least 1", fix="dpmf bench read")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "ratings.csv"
        write(path, num_ratings, num_users=num_users, num_items=num_items, seed=seed)
        size = path.stat().st_size
        results: dict[str, list[dict[str, Any]]] = {stage: [] for stage in STAGES}

        def fresh(stage: str) -> measure.Spent:
            results[stage].append(process.run("experiments.bench.read", path, stage))
            return measure.Spent(results[stage][-1]["ms"] / 1e3, results[stage][-1]["cpu_ms"] / 1e3)

        rounds = measure.interleaved({stage: partial(fresh, stage) for stage in STAGES}, repeats)
    found = rounds.summary
    rows = [
        {
            "contender": stage,
            **found[stage],
            "ratio": found[stage]["ms"] / found[STAGES[-1]]["ms"],
            "cpu_ms": rounds.least_cpu_ms(stage),
            "peak_mb": max(result["peak_mb"] for result in results[stage]),
        }
        for stage in STAGES
    ]
    return {
        "benchmark": "read",
        "data": (
            f"generated, shuffled ratings.csv, {num_ratings:,} ratings, {num_users:,} x"
            f" {num_items:,}"
        ),
        "file_mb": size / 2**20,
        "repeats": repeats,
        "goal": {"ms": 20_000, "peak_mb": 3_000, "contender": STAGES[1]},
        "layout": results[STAGES[1]][-1]["layout"],
        "rows": rows,
        "others": rounds.others,
        **measure.machine(1),
    }


def write(path: Path, num_ratings: int, *, num_users: int, num_items: int, seed: int) -> None:
    """A generated ratings.csv in the layout of MovieLens 20M, in random order."""
    import pyarrow as pa
    import pyarrow.csv

    from dpmf_jax.data import synthetic

    ratings = synthetic.generate(
        num_users=num_users,
        num_items=num_items,
        num_ratings=num_ratings,
        seed=seed,
        rating_range=RANGE,
        rating_step=0.5,
    )
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_ratings)
    types = [
        ("userId", pa.int64()),
        ("movieId", pa.int64()),
        ("rating", pa.float32()),
        ("timestamp", pa.int64()),
    ]
    schema = pa.schema(types)
    options = pyarrow.csv.WriteOptions(quoting_header="none")
    with pyarrow.csv.CSVWriter(str(path), schema, write_options=options) as writer:
        for start in range(0, num_ratings, 1 << 20):
            rows = order[start : start + (1 << 20)]
            stamps = rng.integers(800_000_000, 1_500_000_000, len(rows))
            columns = [
                ratings.users[ratings.user[rows]],
                ratings.items[ratings.item[rows]],
                ratings.value[rows],
                stamps,
            ]
            writer.write_table(pa.table([pa.array(column) for column in columns], schema=schema))


def _measure(path: Path, stage: str) -> dict[str, Any]:
    """One stage in this process: wall and CPU time, peak memory, and the layout in words."""
    import resource

    layout = None
    if stage == "pyarrow parse only":
        import pyarrow as pa
        import pyarrow.csv

        types = {"userId": pa.int64(), "movieId": pa.int64(), "rating": pa.float32()}
        start, start_cpu = time.perf_counter(), time.process_time()
        pyarrow.csv.read_csv(
            str(path),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=list(types), column_types=types
            ),
        )
    else:
        import jax

        from dpmf_jax.data import datasets
        from dpmf_jax.layout import describe, make

        start, start_cpu = time.perf_counter(), time.process_time()
        ratings = datasets.load(path, rating_range=RANGE)
        if stage == "jax read + checks + layout":
            data = jax.block_until_ready(make(ratings))
            layout = describe(data)
    elapsed, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    peak_mb = peak / (2**20 if sys.platform == "darwin" else 2**10)
    return {"ms": 1e3 * elapsed, "cpu_ms": 1e3 * cpu, "peak_mb": peak_mb, "layout": layout}


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]), sys.argv[2])))
