"""`dpmf fit` in several processes of one run, over loopback."""

import os
import socket
import subprocess
import sys

from tests.cases.compilation import QUICK

SECONDS = 240  # a process that is still there then hangs


def start(
    number: int,
    *words: str,
    of: int,
    port: int,
    program: tuple[str, ...] = ("-m", "experiments.cli", "fit"),
    quick: bool = False,
):
    flags = ["--distributed", "--processes", str(of), "--process-id", str(number)]
    flags += ["--coordinator", f"127.0.0.1:{port}"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))
    }
    return subprocess.Popen(
        [sys.executable, *program, *words, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment
        | {"PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu"}
        | (QUICK if quick else {}),
    )


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def ended(processes) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each; none is left behind."""
    try:
        said = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *words) for process, words in zip(processes, said, strict=True)]


def together(number: int, *words: str, each: dict[int, list[str]] | None = None, **options):
    port = free_port()
    own = each or {}
    return ended(
        [start(k, *words, *own.get(k, []), of=number, port=port, **options) for k in range(number)]
    )
