"""`dpmf fit` in several processes of one run, over loopback."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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


# A program joins the others once and then trains several models: starting is most of a small run.
SERIES = """
import json, sys
from experiments.cli import devices, main
join, joined = devices.join, []
def once(flags, settings):
    if not joined:
        join(flags, settings)
    joined.append(settings)
devices.join = once
runs, folder, *own = json.loads(sys.argv[1]), *sys.argv[2:]
number = own[own.index("--process-id") + 1]
codes = [main.main(["fit", *words, *own]) for words in runs]
open(f"{folder}/{number}", "w").write(json.dumps(codes))
"""


def one_after_another(number: int, runs: list[list[str]]) -> list[list[Any]]:
    """Of each run of `dpmf fit --json`: what the first process printed, and all exit codes."""
    with tempfile.TemporaryDirectory() as folder:
        words = json.dumps(runs), folder
        ends = together(number, *words, program=("-c", SERIES), quick=True)
        assert all(code == 0 for code, _, _ in ends), ends
        codes = [json.loads((Path(folder) / str(k)).read_text()) for k in range(number)]
    printed, text, read = [], ends[0][1], json.JSONDecoder()
    while text := text.lstrip():
        result, end = read.raw_decode(text)
        printed.append(result)
        text = text[end:]
    return [list(row) for row in zip(printed, *codes, strict=True)]
