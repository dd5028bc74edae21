"""What all benchmarks share: contenders in turns, the spread of their times, the machine."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from experiments.cli import devices

Who = TypeVar("Who", bound=Hashable)
# The keys of a result that hold lists of rows, in the order in which they are shown. The first
# three have titles of their own.
TABLES = (
    *("rows", "iterations", "memory", "guessing", "attacks", "calibration", "power", "products"),
    *("sweep", "curves", "parts", "floors", "growth", "ordered", "plan", "large", "mechanisms"),
    *("tables", "draws", "steps", "bits"),
)
PAUSE = 0.01  # seconds between contenders, in which the thread pools of the last one stop spinning


class Spent(NamedTuple):
    """Seconds.

    wall: on the clock. cpu: of all threads together.
    """

    wall: float
    cpu: float


def timed(call: Callable[[], Any], units: int = 1) -> Spent:
    """Seconds of one unit of a call that does `units` of them."""
    start, start_cpu = time.perf_counter(), time.process_time()
    call()
    return Spent((time.perf_counter() - start) / units, (time.process_time() - start_cpu) / units)


@contextmanager
def one_core() -> Generator[None, None, None]:
    """Keeps the process on its first core, so that contenders of one thread share it (Linux only).

    Also a decorator. A core whose other half is somebody else's may run at half its speed for
    seconds, beside one that does not. Programs of XLA move between cores wherever a part of them is
    shared out; the others hardly ever do.
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


@dataclasses.dataclass(frozen=True)
class Rounds(Generic[Who]):
    """Interleaved rounds of contenders.

    spent: of each contender, in the order of the rounds.
    summary: of each contender, see `summary`.
    others: share of the machine that other processes took meanwhile, see `watch`.
    """

    spent: dict[Who, list[Spent]]
    summary: dict[Who, dict[str, float]]
    others: float | None

    def ratio(self, who: Who, reference: Who) -> float:
        """Median over the rounds of one wall time over another of the same round.

        Bursts of other processes slow both of a round, and leave their ratio.
        """
        pairs = zip(self.spent[who], self.spent[reference], strict=True)
        return statistics.median(one.wall / other.wall for one, other in pairs)

    def least_cpu_ms(self, who: Who) -> float:
        """The least CPU time of a contender, all threads."""
        return 1e3 * min(one.cpu for one in self.spent[who])

    def median_cpu_ms(self, who: Who) -> float:
        """The median CPU time of a contender, all threads."""
        return 1e3 * statistics.median(one.cpu for one in self.spent[who])


def interleaved(contenders: Mapping[Who, Callable[[], Spent]], repeats: int) -> Rounds[Who]:
    """Times every contender once in each round; each round starts with another contender."""
    names = list(contenders)
    spent: dict[Who, list[Spent]] = {name: [] for name in names}
    others = watch()
    for turn in range(repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(PAUSE)
            spent[name].append(contenders[name]())
    summaries = {name: summary([one.wall for one in times]) for name, times in spent.items()}
    return Rounds(spent, summaries, others())


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Of times in seconds: ms, the median; spread_ms, half the quartiles' distance; fastest_ms."""
    low, high = np.percentile(seconds, [25, 75])
    return {
        "ms": 1e3 * statistics.median(seconds),
        "spread_ms": 1e3 * float(high - low) / 2,
        "fastest_ms": 1e3 * min(seconds),
    }


def watch() -> Callable[[], float | None]:
    """() -> the share of the machine that other processes took since; None where it is unknown.

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
    """(seconds of all cores spent on others, seconds of all cores) since the start; Linux only."""
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
    """Bytes by which a call raises the peak of the process over what it holds.

    Too few where the system cannot reset the peak so far.
    """
    before = memory("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        before = memory("VmHWM")
    call()
    return max(0, memory("VmHWM") - before)


def compiling(call: Callable[[], Any]) -> float:
    """Seconds of a call in which jax traced, lowered or compiled, in any thread.

    0 where its programs were compiled before.
    """
    spans = _compile_spans()
    spans.clear()
    call()
    seconds, until = 0.0, float("-inf")
    for begun, ended in sorted(spans):  # threads compile at once
        seconds += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return seconds


@functools.cache
def _compile_spans() -> list[tuple[float, float]]:
    """The (start, end) of each part of compiling that jax reports, from the first call on."""
    import jax

    spans: list[tuple[float, float]] = []

    def note(event: str, duration_secs: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            now = time.perf_counter()
            spans.append((now - duration_secs, now))

    jax.monitoring.register_event_duration_secs_listener(note)
    return spans


def compiled(function: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    """(the program of a function for such arguments, milliseconds of making it)."""
    import jax

    start = time.perf_counter()
    ready = jax.jit(function).lower(*given).compile()
    return ready, 1e3 * (time.perf_counter() - start)


def relative_difference(one: np.ndarray, other: np.ndarray) -> float:
    """Largest difference of two arrays, relative to the largest entry of the second."""
    return float(np.abs(one - other).max() / np.abs(other).max())


def check_same(differences: Mapping[str, float], what: str = "") -> dict[str, float]:
    """The differences themselves.

    Raises: FloatingPointError above 1e-3, where contenders do not compute the same.
    """
    if not max(differences.values(), default=0.0) < 1e-3:
        sentence = f"the contenders differ by {differences}: they do not compute the same {what}"
        raise FloatingPointError(sentence.rstrip())
    return dict(differences)


def machine(num_devices: int) -> dict[str, Any]:
    """The device, cores and versions that stand in every result."""
    import jax

    kind = f"{jax.devices()[0].device_kind} ({jax.default_backend()})"
    here = {"device": f"{num_devices} x {kind}", "processor": processor(), "cores": devices.cores()}
    return here | {"versions": versions()}


def processor() -> str | None:
    """The processor's model, with the family that tells its generation where a cloud hides it.

    None where the system says nothing.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or None
    fields = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if "model name" not in fields:
        return None
    family, model = (fields.get(name, "?") for name in ("cpu family", "model"))
    return f"{fields['model name']}, family {family}, model {model}"


def versions(*more: str) -> dict[str, str]:
    """The versions of Python and of those packages that are installed."""
    installed = {"python": platform.python_version()}
    for name in ("jax", "jaxlib", "numpy", "scipy", "torch", "numba", *more):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
