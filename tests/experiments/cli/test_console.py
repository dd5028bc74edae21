"""What a result looks like: JSON, text, progress."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from experiments.cli import console
from tests.cases.program import start


def test_json_is_one_object(dpmf):
    code, out, err = dpmf("try", "ml-1m", "--json", "--rating-range", "1", "5", "--center", "3.5")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "data": "ml-1m",
        "center": 3.5,
        "rating_range": [1.0, 5.0],
        "steps": 10,
        "end": "",
        "json": True,
        "epsilon": "inf",
    }
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_terminal_without_greek_letters_ends_no_run(folder, encoding):
    process = start(folder, "try", "ε", "--json", encoding=encoding)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err, json.loads(out)["data"]) == (0, "", "ε")
    assert ("ε" in out) == (encoding == "utf-8")
    process = start(folder, "try", "a", "--end", "σ", encoding=encoding)
    _, err = process.communicate(timeout=60)
    assert err.startswith(
        "error: RuntimeError: two lines of " + ("σ" if encoding == "utf-8" else "\\u03c3")
    )


def test_without_json_the_result_is_rendered(dpmf):
    assert dpmf("try", "a") == (0, "plain text\n", "")


class Pair(NamedTuple):
    left: float
    right: np.ndarray


@dataclass(frozen=True)
class Row:
    path: Path
    pair: Pair


def test_plain_reaches_into_everything_that_results_are_made_of():
    row = Row(Path("runs/a"), Pair(math.nan, np.arange(3)))
    assert console.plain(
        {"row": row, 1: np.float32(0.5), "set": {2, 1}, "none": None, "yes": np.bool_(True)}
    ) == {
        "row": {"path": "runs/a", "pair": {"left": "nan", "right": [0, 1, 2]}},
        "1": 0.5,
        "set": [1, 2],
        "none": None,
        "yes": True,
    }
    with pytest.raises(TypeError, match="no place in a result"):
        console.plain({"x": object()})


@hypothesis.given(st.floats())
def test_a_number_survives_json(number):
    back = json.loads(json.dumps(console.plain(number), allow_nan=False))
    assert isinstance(back, float) == math.isfinite(number)
    assert float(back) == number or math.isnan(number)


@pytest.mark.parametrize(("every", "shown"), [("0", (1, 2, 3)), ("1e9", (3,))])
def test_progress_is_plain_lines_where_there_is_no_terminal(dpmf, every, shown):
    code, out, err = dpmf("try", every, "--end", "progress")
    assert (code, out) == (0, "")
    assert err == "".join(f"fit: {done}/3 rmse 0.9  steps {done}\n" for done in shown)
