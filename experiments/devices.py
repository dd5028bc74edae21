"""How many devices a program uses; called before jax computes anything.

XLA runs a blocked scan on little more than one thread of a CPU, so further cores are reached by telling jax to show
each of them as a device. Accelerators are shown as they are.
"""

import os
from contextlib import suppress

from dpmf_jax.errors import PrivacyError, UsageError

# Item gradients are summed across the devices: at some number that sum costs more than a core gives.
MOST_CPU_DEVICES = 16


def cores() -> int:
    """The number of cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return max(1, len(affinity(0)) if affinity else os.cpu_count() or 1)


def use(num_devices: int | None = None) -> int:
    """Makes the devices and returns how many a layout should be sharded over.

    Args:
      num_devices: the command's ``--devices``; None takes every accelerator or, without one, one device per core, at
        most `MOST_CPU_DEVICES`.

    Raises:
      UsageError: fewer than one, or more accelerators than there are.
      PrivacyError: an environment precondition: jax has already started, with fewer CPU devices than asked for.
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
                fix="call experiments.devices.use before anything else uses jax, and unset XLA_FLAGS",
            )
        raise UsageError(
            f"{num_devices} devices asked for, this machine has {here} ({kind})",
            where="--devices",
            fix=f"give {here} or fewer",
        )
    return num_devices
