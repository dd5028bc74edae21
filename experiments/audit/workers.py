"""Many trials on all cores: each runs in one of several processes.

Nearly all of the time goes into tracing and compiling, and tracing holds Python's lock: threads
would wait for each other. What one process compiles, the others take from the folder of
`experiments.cli.program_cache`.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from typing import Any

from experiments.audit.trial import Sizes, Told
from experiments.cli import console, devices, program_cache

OBJECTS = 50_000  # that are made before the collector looks: traced programs are many, and stay


@dataclasses.dataclass(frozen=True)
class Task:
    """What all trials of a command have in common, as it goes to another process.

    source: the command that asks for them, as a trial keeps it.
    The others: as in `trial.run`.
    """

    source: Mapping[str, Any]
    families: Sequence[str]
    seed: int
    sizes: Sizes
    useful: bool


def run_all(task: Task, labels: Sequence[str], *, report: Callable[..., None]) -> list[Told]:
    """What `trial.run` says of each trial, in their order.

    report: called with how many parts are done, and the name of what begins.

    Raises: what a trial raises; the other trials are ended.
    """
    context = multiprocessing.get_context("spawn")
    words = context.Queue()
    listener = threading.Thread(target=_listen, args=(words, report), daemon=True)
    listener.start()
    num = min(devices.cores(), len(labels))
    pool = ProcessPoolExecutor(num, context, _start_worker, (words,))
    try:
        # those with the most phases stand last in the table, and take longest
        futures = {label: pool.submit(_run, task, label) for label in reversed(labels)}
        for future in as_completed(futures.values()):
            _say(future.result())
        return [futures[label].result() for label in labels]
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        words.put(None)
        words.cancel_join_thread()  # a process that was ended may hold its lock
        listener.join(timeout=1)


def _say(told: Told) -> None:
    trial, found = told
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in trial["seconds"].items())
    console.say(f"{trial['label']}: {len(found)} findings; {spent}")


def _listen(words: Any, report: Callable[..., None]) -> None:
    """Passes on what the processes say that they begin, until the end is said."""
    begun = 0
    with suppress(EOFError, OSError):
        for now in iter(words.get, None):
            report(begun, now=now)
            begun += 1


# --- in a process of the pool

_words: Any = None  # where the process says what it begins


def _start_worker(words: Any) -> None:
    global _words
    _words = words
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    gc.set_threshold(OBJECTS)
    program_cache.keep()


def _end_with_the_first() -> None:
    """Ends this process where the first one is killed, and could not end it."""
    first = multiprocessing.parent_process()
    if first is not None:
        first.join()
        os._exit(1)


@functools.lru_cache(maxsize=1)
def _makers(source: str) -> dict[str, Any]:
    import json

    from experiments.audit import replay, subjects
    from experiments.audit.flags import Command

    return subjects.trials(replay.restored(Command, json.loads(source)))


def _run(task: Task, label: str) -> Told:
    import json

    from dpmf_jax.devices import programs
    from experiments.audit import compilation, trial

    made = _makers(json.dumps(task.source))[label]()
    with compilation.compiling(quickly=task.sizes.quick):
        told = trial.run(
            made,
            task.families,
            seed=task.seed,
            sizes=task.sizes,
            useful=task.useful,
            report=lambda what: _words.put(f"{label}: {what}"),
        )
    programs.make_room()
    return told
