"""Compiled programs, and the mappings of memory that hold them.

Linux lets a process have 65,530 mappings. Every compiled program takes dozens, and jax keeps them
all: a process that fits in a loop, on data of other sizes each time, would be ended by its
compiler.
"""

from __future__ import annotations

import gc
from pathlib import Path

import jax

SHARE = 0.37  # of the mappings that a process may have; one fit takes up to 4% more
USUAL = 65_530  # where the system does not say how many it may have


def make_room() -> None:
    """Forgets compiled programs where they hold many of the mappings that the process may have.

    What is called again is compiled again, with the same results.
    """
    if _num_mappings() > SHARE * _largest_number():
        jax.clear_caches()
        gc.collect()


def _num_mappings() -> int:
    """How many this process has; 0 on systems that do not list them."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def _largest_number() -> int:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return USUAL
