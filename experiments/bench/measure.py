"""What all benchmarks do alike: contenders in turns, the spread of their times, and a word on the
machine.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from experiments.cli import devices

Who = TypeVar("Who", bound=Hashable)
# Of a result, in the order in which they are shown: lists of rows, the first three under titles of
# their own.
TABLES = (
    *("rows", "iterations", "memory"),
    *(
        "calibration",
        "power",
        "products",
        "sweep",
        "curves",
        "floors",
        "ordered",
        "plan",
        "large",
        "mechanisms",
    ),
)
PAUSE = 0.01  # seconds between contenders: thread pools of the one before stop spinning


class Spent(NamedTuple):
    """Seconds on the clock, and of all threads together."""

    wall: float
    cpu: float


def timed(call: Callable[[], Any], units: int = 1) -> Spent:
    """Of one unit of what a call does, which are so many."""
    start, start_cpu = time.perf_counter(), time.process_time()
    call()
    return Spent((time.perf_counter() - start) / units, (time.process_time() - start_cpu) / units)


@contextmanager
def one_core() -> Generator[None, None, None]:
    """Also as a decorator: for contenders of one thread each, which then have the same core (the
    first; Linux only).

    A core whose other half is somebody else's may run at half its speed for seconds, beside one
    that does not. Programs of XLA move between cores wherever a part of them is shared out, the
    others hardly ever.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def interleaved(
    contenders: Mapping[Who, Callable[[], Spent]], repeats: int
) -> tuple[dict[Who, list[Spent]], float | None]:
    """Every contender once in each round, each round from another one on; and what other processes
    took meanwhile.
    """
    names = list(contenders)
    spent: dict[Who, list[Spent]] = {name: [] for name in names}
    others = watch()
    for turn in range(repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(PAUSE)
            spent[name].append(contenders[name]())
    return spent, others()


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """ms, the median; spread_ms, half the distance of the quartiles; fastest_ms."""
    low, high = np.percentile(seconds, [25, 75])
    return {
        "ms": 1e3 * statistics.median(seconds),
        "spread_ms": 1e3 * float(high - low) / 2,
        "fastest_ms": 1e3 * min(seconds),
    }


def watch() -> Callable[[], float | None]:
    """() -> the share of the machine that other processes took since; None where that is not known.

    Above about 0.1 ratios mean little, since peers with thread barriers lose most.
    """
    before = _busy()

    def others() -> float | None:
        after = _busy()
        if before is None or after is None or after[1] <= before[1]:
            return None
        return max(0.0, (after[0] - before[0]) / (after[1] - before[1]))

    return others


def _busy() -> tuple[float, float] | None:
    """(seconds of all cores spent on others, seconds of all cores) since the machine started; Linux
    only.
    """
    try:
        ticks = [
            int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        ]
    except (OSError, ValueError):
        return None
    user, nice, system, idle, waiting, *interrupts = (
        tick / os.sysconf("SC_CLK_TCK") for tick in ticks
    )
    own = os.times()  # those of processes that it waited for are its own
    busy = user + nice + system + sum(interrupts)
    return (
        busy - own.user - own.system - own.children_user - own.children_system,
        busy + idle + waiting,
    )


def memory(field: str) -> int:
    """Bytes of a field of /proc/self/status; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), 0)


def growth(call: Callable[[], Any]) -> int:
    """Bytes by which a call raises the peak of the process over what it holds; too few where the
    peak so far cannot be forgotten.
    """
    before = memory("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        before = memory("VmHWM")
    call()
    return max(0, memory("VmHWM") - before)


def compiling(call: Callable[[], Any]) -> float:
    """Seconds of a call in which jax traced, lowered or compiled, in any thread; 0 where its
    programs were there.
    """
    told = _told()
    told.clear()
    call()
    seconds, until = 0.0, float("-inf")
    for begun, ended in sorted(told):  # threads compile at once
        seconds += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return seconds


@functools.cache
def _told() -> list[tuple[float, float]]:
    """Where jax writes when it began and ended each part of compiling, from the first call on."""
    import jax

    spans: list[tuple[float, float]] = []

    def note(event: str, duration_secs: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            now = time.perf_counter()
            spans.append((now - duration_secs, now))

    jax.monitoring.register_event_duration_secs_listener(note)
    return spans


def machine(num_devices: int) -> dict[str, Any]:
    """device, cores and versions, as they stand in every result."""
    import jax

    kind = f"{jax.devices()[0].device_kind} ({jax.default_backend()})"
    here = {"device": f"{num_devices} x {kind}", "processor": processor(), "cores": devices.cores()}
    return here | {"versions": versions()}


def processor() -> str | None:
    """The model, and where a cloud hides it the family that tells its generation; None where
    nothing is told.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or None
    told = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    named = told.get("model name")
    return (
        f"{named}, family {told.get('cpu family', '?')}, model {told.get('model', '?')}"
        if named
        else None
    )


def versions(*more: str) -> dict[str, str]:
    """Of Python and of those packages that are there."""
    found = {"python": platform.python_version()}
    for name in ("jax", "jaxlib", "numpy", "scipy", "torch", "numba", *more):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
