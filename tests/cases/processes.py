"""A Python script in a process of its own, with as many CPU devices as it needs."""

import subprocess
import sys
import textwrap

from tests.cases.compilation import environment


def python(
    code: str, *arguments: str, devices: int = 1, timeout: float = 300, quick: bool = False
) -> subprocess.CompletedProcess[str]:
    """The finished process, which ran `code` with `arguments` and ended well.

    The script finds this checkout, whatever folder it starts in (`conftest` says so to all that
    tests start). jax sees `devices` CPU devices in it, and no other. quick: `compilation`.
    """
    count = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=environment(count, quick=quick) | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done
