"""Which points decide, the tolerance, and the verdict."""

import numpy as np
import pytest

from experiments.reproduce import comparison
from experiments.reproduce.paper001.figures import Point


def point(x: float, kind: str, y: float = 0.9, series: str = "0.15") -> Point:
    return Point(series, x, y, "rmse", kind, "iteration")


def test_which_points_decide():
    points = [
        point(0.002, "line_start"),
        point(0.002, "marker"),
        point(99.4, "marker"),
        point(99.6, "marker"),
        point(100.005, "marker"),
        point(110.0, "line_vertex"),
        point(119.99, "line_end"),
        point(30.0, "line_end", series="0.20"),
    ]
    rows = comparison.compare(points, {"0.15": [np.full(121, 0.9)], "0.20": [np.full(31, 0.9)]})
    decide = [(row.series, row.step, row.kind) for row in rows if row.result != "informative"]
    assert decide == [
        ("0.15", 100, "marker"),
        ("0.15", 100, "marker"),
        ("0.15", 120, "line_end"),
        ("0.20", 30, "line_end"),
    ]
    assert all((row.tolerance is None) == (row.result == "informative") for row in rows)


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (0.905, "inside"),
        (0.895, "inside"),
        (0.9050001, "outside"),
        (0.8949999, "outside"),
        (float("nan"), "outside"),
        (float("inf"), "outside"),
    ],
)
def test_the_edge_of_the_tolerance(value, result):
    curve = np.full(201, 0.9)
    curve[200] = value
    (row,) = comparison.compare([point(200.0, "line_end")], {"0.15": [curve]})
    assert row.result == result
    assert comparison.verdict([row]) == result
    assert comparison.worst([row]) == row


def test_every_decimal_edge_counts_as_inside():
    """0.83893 + 0.005 - 0.83893 is above 0.005 in floating point for some decimals; all of them are
    inside.
    """
    for paper in np.round(np.arange(0.69, 0.91, 0.00001), 5):
        (row,) = comparison.compare(
            [point(1.0, "line_end", paper)], {"0.15": [[0.0, float(paper) + 0.005]]}
        )
        assert row.result == "inside"


def test_the_mean_over_seeds_is_compared():
    curves = {
        "0.15": [[0.0, 0.91], [0.0, 0.89], [0.0, 0.903]]
    }  # two of three are outside, their mean is not
    (row,) = comparison.compare([point(1.0, "line_end")], curves)
    assert row.value == pytest.approx(0.901)
    assert row.result == "inside"


def test_one_point_outside_is_outside_and_no_point_is_not_inside():
    rows = comparison.compare(
        [point(1.0, "line_end"), point(1.0, "line_end", series="0.20")],
        {"0.15": [[0.0, 0.9]], "0.20": [[0.0, 0.906]]},
    )
    assert comparison.verdict(rows) == "outside"
    assert comparison.worst(rows).series == "0.20"
    assert comparison.verdict([]) == "no points to compare"
    assert comparison.worst([]) is None
