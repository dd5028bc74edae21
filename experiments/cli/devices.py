"""How many devices a program uses, and which processes it belongs to.

Called before jax computes anything. XLA runs a blocked scan on little more than one thread of a
CPU, so jax is told to show each core as a device. Accelerators are shown as they are.
"""

import dataclasses
import faulthandler
import inspect
import os
import socket
import subprocess
import threading
from contextlib import suppress
from typing import Any, ClassVar

from dpmf_jax.devices import hosts
from dpmf_jax.errors import PrivacyError, UsageError
from experiments.cli import console

# Item gradients are summed across the devices. Beyond some number the sum costs more than a core
# gains.
MOST_CPU_DEVICES = 16
GRACE = 30  # seconds before jax's own timeout, so that our message prints first
LAST_WORDS = """
IFS= read -r first || exit 0
case $first in
    *Aborted*) printf '%s\\n' "$0" ;;
    *) printf '%s\\n' "$first"; cat ;;
esac >&2
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessFlags:
    """Whether the command is one of several processes that train together."""

    HEADING: ClassVar = "several processes"

    distributed: bool = False
    """Train with several processes: start the same command for each, with another --process-id. A
    process reads and holds the ratings of its own users; the first one prints and writes. What they
    exchange is not encrypted.
    """
    coordinator: str | None = None
    """HOST:PORT at which the first process waits. [what the cluster's manager says]"""
    processes: int | None = None
    """Number of processes, likewise."""
    process_id: int | None = None
    """Number of this process, from 0, likewise."""
    lost_after: int = 60
    """Seconds of silence after which a process counts as lost and the run ends."""


def cores() -> int:
    """The number of cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return max(1, len(affinity(0)) if affinity else os.cpu_count() or 1)


def join(flags: ProcessFlags, settings: str) -> None:
    """Makes this process one of several, if the flags say so, and silences all but the first.

    Args:
      settings: all other settings of the command, which must be the same in all processes.

    Raises: UsageError for flags that contradict each other, here or between processes; hosts.Lost
      where the others do not come.
    """
    named = {
        "--coordinator": flags.coordinator,
        "--processes": flags.processes,
        "--process-id": flags.process_id,
    }
    given = [flag for flag, value in named.items() if value is not None]
    if not flags.distributed:
        if given:
            raise UsageError(
                f"{given[0]} means nothing without --distributed", fix="add --distributed"
            )
        return
    if flags.lost_after < 1:
        raise UsageError(f"--lost-after {flags.lost_after}", fix="give a second or more")
    if flags.processes == 1:
        return
    if given and len(given) < 3:
        left = ", ".join(flag for flag, value in named.items() if value is None)
        raise UsageError(
            f"--distributed with {', '.join(given)} needs {left} too", fix="give all three, or none"
        )
    if flags.processes is not None and not 0 <= (flags.process_id or 0) < flags.processes:
        raise UsageError(
            f"--process-id {flags.process_id} of {flags.processes} processes",
            fix=f"number them from 0 to {flags.processes - 1}",
        )
    if flags.coordinator is not None:
        _check_address(flags.coordinator, listens=flags.process_id == 0)
    import jax

    console.own_stdout()
    console.abrupt = True  # whoever fails leaves at once, so that the others notice
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    waiting = threading.Timer(flags.lost_after, _leave, [flags])
    waiting.daemon = True
    waiting.start()
    known = inspect.signature(jax.distributed.initialize).parameters
    # jax 0.8 has no such argument
    at_the_end: Any = (
        {"shutdown_timeout_seconds": flags.lost_after}
        if "shutdown_timeout_seconds" in known
        else {}
    )
    try:
        jax.distributed.initialize(
            flags.coordinator,
            flags.processes,
            flags.process_id,
            initialization_timeout=flags.lost_after + GRACE,
            heartbeat_timeout_seconds=flags.lost_after,
            **at_the_end,
        )
    except ValueError as error:
        raise UsageError(
            f"no cluster manager says who the processes are: {error}",
            fix="--distributed --coordinator HOST:PORT --processes N --process-id K",
        ) from None
    except jax.errors.JaxRuntimeError as error:
        raise _apart(flags, (str(error).splitlines() or [""])[0][:200]) from None
    finally:
        waiting.cancel()
    leave_last_words(flags)
    if not hosts.first():
        console.mute()
    with hosts.watched("at the start"):
        if len(set(hosts.gather(settings.encode()))) > 1:
            raise UsageError(
                "the processes were started with different flags", fix="give all of them the same"
            )


def _check_address(coordinator: str, *, listens: bool) -> None:
    """Raises: UsageError for what is no HOST:PORT, or a port that the first process cannot listen
    at.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UsageError(
            f"--coordinator {coordinator!r} is no HOST:PORT",
            fix="such as --coordinator 127.0.0.1:9876",
        )
    if not listens:
        return
    try:
        with socket.create_server(("", int(port))):
            pass
    except OSError as error:
        raise UsageError(
            f"the first process cannot listen at port {port}: {error.strerror}",
            where=f"--coordinator {coordinator}",
            fix="give all of them another port",
        ) from None


def _apart(flags: ProcessFlags, where: str) -> hosts.Lost:
    number = "all" if flags.processes is None else f"{flags.processes}"
    return hosts.Lost(
        f"the {number} processes did not come together",
        where=where,
        fix="start all of them, with one --coordinator whose port is free and can be reached",
    )


def _leave(flags: ProcessFlags) -> None:
    """Ends the process with a message, where jax would end it with a stack trace."""
    at = f" at {flags.coordinator}" if flags.coordinator else ""
    error = _apart(flags, f"process {flags.process_id} waited {flags.lost_after} s{at}")
    console.print_error(error.what, where=error.where, fix=error.fix)
    os._exit(error.exit_code)


def leave_last_words(flags: ProcessFlags) -> None:
    """Prepares a message for the end of this process by jax, where another process hangs.

    jax then aborts with a stack trace, and no Python runs any more. Python's fault handler still
    does: it writes to a shell that waits for it. The shell prints the message after an abort, and
    what the handler wrote after a fault of another kind; at any other end it reads nothing. jax 0.8
    leaves without aborting (exit code 1), with its own words alone.
    """
    if os.name != "posix":
        return
    words = console.error_text(
        "jax has ended this process: another one of the run gave no sign of life (--lost-after"
        f" {flags.lost_after})",
        where="unless the lines above name another reason",
        fix=hosts.GO_ON,
    )
    shell = subprocess.Popen(
        ["/bin/sh", "-c", LAST_WORDS, words], stdin=subprocess.PIPE, start_new_session=True
    )
    assert shell.stdin is not None
    faulthandler.enable(shell.stdin)


def use(num_devices: int | None = None) -> int:
    """Makes the devices and returns the number of them that a layout should be cut over.

    Args:
      num_devices: the command's ``--devices``; None takes every accelerator or, without one, one
        device per core, at most `MOST_CPU_DEVICES`.

    Raises:
      UsageError: fewer than one, or more accelerators than there are.
      PrivacyError: an environment precondition: jax has already started, with fewer CPU devices
        than asked for.
    """
    if num_devices is not None and num_devices < 1:
        raise UsageError(f"{num_devices} devices", where="--devices", fix="give 1 or more")
    import jax

    wanted = num_devices or min(cores(), MOST_CPU_DEVICES)
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with suppress(RuntimeError):  # jax has started: what there is must do
            jax.config.update("jax_num_cpu_devices", wanted)
    here = jax.local_device_count()
    if num_devices is None:
        return here if jax.default_backend() != "cpu" else min(here, wanted)
    if num_devices > here:
        kind = jax.local_devices()[0].device_kind
        if jax.default_backend() == "cpu":
            raise PrivacyError(
                f"{num_devices} devices asked for, jax has already started with {here}",
                where="--devices",
                fix=(
                    "call experiments.cli.devices.use before anything else uses jax, and unset"
                    " XLA_FLAGS"
                ),
            )
        raise UsageError(
            f"{num_devices} devices asked for, this machine has {here} ({kind})",
            where="--devices",
            fix=f"give {here} or fewer",
        )
    return num_devices
