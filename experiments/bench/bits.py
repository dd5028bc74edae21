"""Which mechanisms give an accelerator's second run, its other layout and a CPU the same bits.

Every mechanism of `dpmf audit --all` trains a few steps with one key, in processes of their own: on
the machine's devices twice, since a compiler chooses kernels anew in every process, and on its CPU.
What it would release then is compared number by number. Two draws of whole numbers stand beside
them, since nothing but integers makes these.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench import generated

MODULE = "experiments.bench.bits"
STEPS = 3  # of the last phase
PARTS = 4  # processes at once on each device
DRAWS = 1 << 20
SCALES = (100.0, 4097.0)  # of one table, of two
SEQUENTIAL = "002 as published: sketch"  # takes one rating after the other
HERE, AGAIN, CPU = "here", "again", "cpu"


def rows(size: str = "ml-100k", parts: int = PARTS, labels: str = "") -> list[dict[str, Any]]:
    """A row of each mechanism and layout, and of each draw.

    Args:
      size: of the generated ratings, one of `generated.SIZES`. parts: processes among which each
        run's mechanisms are divided. labels: of the mechanisms, with semicolons between; all by
        default.

    Returns: rows {label, layout, again, other_layout, as_cpu, apart, digest, failed}. again,
      other_layout, as_cpu: whether every released bit is the same in a second process, in the other
      layout, and on a CPU. apart: the share of released numbers that a CPU has otherwise. digest:
      of the released bits. failed: what XLA said where a mechanism does not run, else None.

    Raises: RuntimeError with what a process printed, if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        jobs = {
            (run, part): subprocess.Popen(
                [sys.executable, "-m", MODULE, size, str(part), str(parts), labels, folder, run],
                env=os.environ | _platform(run),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for run, part in product((HERE, AGAIN, CPU), range(parts))
        }
        failed = [said for job in jobs.values() for said in job.communicate()[1:] if job.returncode]
        if failed:
            raise RuntimeError(failed[0][-2_000:])
        runs = {run: _load(Path(folder), run, parts) for run in (HERE, AGAIN, CPU)}
    return [_row(name, runs) for name in runs[HERE]]


def _platform(run: str) -> dict[str, str]:
    common = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return common | ({"JAX_PLATFORMS": "cpu"} if run == CPU else {})


def _load(folder: Path, run: str, parts: int) -> dict[tuple[str, str], np.ndarray]:
    """(label, layout) -> the released bits, as 32-bit words."""
    found = {}
    for part in range(parts):
        with np.load(folder / f"{run}-{part}.npz") as file:
            found |= {tuple(name.split("|")): file[name] for name in file.files}
    return found


def _row(
    name: tuple[str, str], runs: Mapping[str, Mapping[tuple[str, str], np.ndarray]]
) -> dict[str, Any]:
    label, kind = name
    here, again, cpu = (run.get(name) for run in runs.values())
    row: dict[str, Any] = {"label": label, "layout": kind or None}
    nothing = dict.fromkeys(("again", "other_layout", "as_cpu", "apart", "digest", "failed"))
    if here is None or here.dtype != np.uint32:
        return row | nothing | {"failed": "" if here is None else str(here)}
    other = runs[HERE].get((label, "dense" if kind == "split" else "split"))
    return (
        row
        | nothing
        | {
            "again": _equal(here, again),
            "other_layout": None if other is None else _equal(here, other),
            "as_cpu": _equal(here, cpu),
            "apart": None
            if cpu is None or cpu.shape != here.shape
            else float(np.mean(here != cpu)),
            "digest": hashlib.sha256(here.tobytes()).hexdigest()[:12],
        }
    )


def _equal(one: np.ndarray, other: np.ndarray | None) -> bool:
    return other is not None and np.array_equal(one, other)


def _released(make: Any) -> Iterator[tuple[str, np.ndarray]]:
    """(layout, what is released) in each layout that the mechanism takes."""
    import jax

    from dpmf_jax import layout, protocol
    from dpmf_jax.errors import DpmfError
    from dpmf_jax.noise import keys

    trial = make()
    *earlier, (mechanism, num_steps) = trial.phases
    for kind in ("split", "dense"):
        try:
            data = layout.make(trial.ratings, kind=kind, num_devices=1)
            start, key = jax.random.split(keys.from_seed(0))
            state = protocol.begin(mechanism, start, data, earlier)
            done = protocol.train(mechanism, key, state, data, num_steps=min(num_steps, STEPS))
            yield kind, _released_bits(mechanism.release(done[0]))
        except DpmfError:
            continue  # not for this layout
        except jax.errors.JaxRuntimeError as error:
            yield kind, np.array(str(error).splitlines()[0])


def _drawn() -> Iterator[tuple[str, np.ndarray]]:
    import jax
    import jax.numpy as jnp

    from dpmf_jax.noise import chacha, whole

    generators = {
        "threefry": jax.random.key(0),
        "chacha20": jax.random.wrap_key_data(jnp.arange(8, dtype=jnp.uint32), impl=chacha.IMPL),
    }
    for (name, key), scale in product(generators.items(), SCALES):
        law = whole.Law(*map(jnp.asarray, whole.numbers(scale)))
        draw = jax.jit(lambda law, key: whole.draw(law, key, (DRAWS,)))
        yield f"rounded normal, {name}, sigma {scale:g}", _released_bits(draw(law, key))


def _released_bits(tree: Any) -> np.ndarray:
    """The bits of all leaves, as 32-bit words."""
    import jax

    leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))]
    data = b"".join(leaf.tobytes() for leaf in leaves)
    return np.frombuffer(data + b"\0" * (-len(data) % 4), np.uint32)


def main(size: str, part: str, parts: str, labels: str, folder: str, run: str) -> None:
    """One process: every `parts`-th mechanism from `part` on."""
    from experiments.audit import suite

    makers = suite.makers(generated.ratings(size), {}, small=True)
    wanted = labels.split(";") if labels else [*makers]
    mine = [name for name in makers if name in wanted and name != SEQUENTIAL]
    found = {}
    for label in mine[int(part) :: int(parts)]:
        found |= {f"{label}|{kind}": given for kind, given in _released(makers[label])}
    if int(part) == 0:
        found |= {f"{label}|": given for label, given in _drawn()}
    np.savez(Path(folder) / f"{run}-{part}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
