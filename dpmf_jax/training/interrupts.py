"""Ctrl-C that waits until what is being computed is kept."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from typing import Any


@contextlib.contextmanager
def held_back() -> Generator[None]:
    """A block that a first Ctrl-C does not cut short: KeyboardInterrupt is raised at its end.

    A second one is raised at once, inside it.

    Where Ctrl-C is not Python's own, and outside the main thread, nothing is held back.
    """
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    waiting = False

    def wait(number: int, frame: Any) -> None:
        nonlocal waiting
        if waiting:
            signal.default_int_handler(number, frame)
        waiting = True

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if waiting:
        raise KeyboardInterrupt
