"""A program as XLA prints it: the kernels of a step, what they read, write and exchange; and sums
of floats that have no order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_INSTRUCTION = re.compile(
    r"(?:ROOT )?%(?P<name>[\w.-]+) = (?P<shape>.*?) (?P<op>[a-z][\w-]*)\((?P<operands>.*)"
)
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]+(\d+)\w*)\[([\d,]*)\]")


class Kernel(NamedTuple):
    """An instruction that a device runs.

    times: how often in a step; None where that depends on the data.
    bytes: of its operands and results.
    exchanged: bytes of its operands, where it passes them between devices.
    """

    name: str
    times: int | None
    bytes: int
    exchanged: int


def kernels(text: str, num_steps: int) -> Iterator[Kernel]:
    """The kernels of one step of a program of `num_steps`, as XLA prints it.

    A program of several steps is a loop, whose body is a step. A program of one step is one whole.
    """
    computations, entry = _computations(text)
    body = entry
    for line in computations[entry]:
        if " while(" in line and num_steps > 1 and _trips(line) == num_steps:
            body = _called(line, "body")[0]
    yield from _walk(computations, body, 1)


def unordered(text: str) -> list[str]:
    """The instructions of a program that add floats in whatever order a GPU comes to them.

    These are scatters, whose threads add one after the other, and sums over devices. All other sums
    of a compiled program have an order of their own.
    """
    computations, _ = _computations(text)
    found = []
    for lines in computations.values():
        for line in lines:
            match = _INSTRUCTION.match(line)
            if not match or not match["op"].startswith(("scatter", "all-reduce", "reduce-scatter")):
                continue
            adds = any(
                re.search(r" add\(", inner)
                for name in _called(line, "to_apply", "calls")
                for inner in computations.get(name, ())
            )
            if adds and re.search(r"\b(f|bf)\d+\[", match["shape"]):
                found.append(match["name"])
    return found


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    found: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if begun := re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{\s*$", line):
            name = begun[2]
            found[name] = []
            entry = name if begun[1] else entry
        elif line.startswith("}"):
            name = ""
        elif name:
            found[name].append(line.strip())
    return found, entry


def _walk(computations: Mapping[str, list[str]], name: str, times: int | None) -> Iterator[Kernel]:
    sizes: dict[str, int] = {}
    for line in computations[name]:
        if not (found := _INSTRUCTION.match(line)):
            continue
        op, size = found["op"], size_of(found["shape"])
        sizes[found["name"]] = size
        if op in FREE or op.endswith("-done"):
            continue
        if op == "while":
            trips = _trips(line)
            for inner in _called(line, "body"):
                yield from _walk(
                    computations, inner, None if trips is None or times is None else times * trips
                )
        elif op in ("call", "conditional", "async-start"):
            for inner in _called(
                line, "to_apply", "calls", "branch_computations", "true_computation"
            ):
                yield from _walk(computations, inner, times)
        else:
            operands = re.findall(r"%([\w.-]+)", found["operands"].split("), ")[0])
            read = sum(sizes.get(operand, 0) for operand in operands)
            yield Kernel(
                found["name"], times, read + size, read if op.startswith(COLLECTIVES) else 0
            )


def _called(line: str, *fields: str) -> list[str]:
    named = "|".join(fields)
    lists = re.findall(rf"(?:{named})=(?:\{{([^}}]*)\}}|(%[\w.-]+))", line)
    return [
        name.strip().lstrip("%") for several, one in lists for name in (several or one).split(",")
    ]


def _trips(line: str) -> int | None:
    found = re.search(r'known_trip_count":\s*\{"n":"(\d+)"', line)
    return int(found[1]) if found else None


def size_of(shape: str) -> int:
    """Bytes of an array or a tuple of arrays, as XLA prints its shape."""
    total = 0
    for kind, bits, sides in _ARRAY.findall(shape):
        size = 1 if kind == "pred" else int(bits or 16) / 8
        total += math.ceil(size * math.prod(int(side) for side in sides.split(",") if side))
    return total
