"""The pictures of an audit's report: where lines and marks lie, and that a page may hold them."""

import re

import numpy as np
import pytest

from experiments.audit import pictures
from experiments.audit.blocks import Picture

CURVE = Picture(
    "curve",
    "t",
    "a",
    {"claimed": [[1.0, 0.1], [4.0, 1e-5]], "measured": [[2.0, 1e-2], [-0.5, 1e-5]]},
)


def lines(picture):
    """(the axes, their lines by label)."""
    (axes,) = pictures.figure(picture).axes
    return axes, {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def test_the_curve_and_its_bounds_lie_where_the_axes_say():
    axes, drawn = lines(CURVE)
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 4), (1e-5, 1))
    np.testing.assert_allclose(drawn["claimed"], [[1, 0.1], [4, 1e-5]])
    marks = drawn["measured: ε is at least this"]
    np.testing.assert_allclose(marks, [[2, 1e-2], [0, 1e-5]])  # a bound below 0 says nothing


def test_no_point_of_a_roc_that_keeps_the_claim_lies_above_its_line():
    axes, drawn = lines(Picture("roc", "t", "a", {"own": [[0.0, 0.0], [1.0, 1.0]]}, (1.0, 0.01)))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    np.testing.assert_array_equal(drawn["measured"], [[pictures.LEAST] * 2, [1, 1]])
    np.testing.assert_array_equal(drawn["guessing"], drawn["measured"])
    rates, allowed = drawn["most that the claim allows"].T
    expected = np.minimum(2.71828 * rates + 0.01, 1 - (0.99 - rates) / 2.71828)
    np.testing.assert_allclose(allowed, np.minimum(expected, 1), rtol=1e-4)
    assert len(lines(Picture("roc", "t", "a", {"own": [[0.0, 0.0]]}))[1]) == 2


def test_a_control_is_drawn_otherwise_and_named_once():
    series = {"own": [[0.1, 0.2]], "control: a": [[0.1, 0.9]], "control: b": [[0.1, 0.8]]}
    (axes,) = pictures.figure(Picture("roc", "t", "a", series)).axes
    labels = [line.get_label() for line in axes.get_lines() if line.get_label()[0] != "_"]
    assert labels == ["guessing", "the same without noise", "measured"]
    assert len(axes.get_lines()) == 4


@pytest.mark.parametrize("name", ["<script>", "a name"])
def test_a_picture_in_a_page_says_no_word_that_anybody_chose(name):
    roc = Picture("roc", "t", "a", {name: [[0.0, 0.1]], f"control {name}": [[0.5, 0.6]]}, (1, 0.1))
    assert name not in pictures.svg(roc, 1)


def test_pictures_are_the_same_bytes_with_ids_of_their_own():
    one, two = (pictures.svg(CURVE, number) for number in (1, 2))
    assert one == pictures.svg(CURVE, 1)
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert set(re.findall(r'href="#([^"]+)"', one)) <= ids[0]
    assert "url(" not in one
    assert "http" not in one
    assert "#0000" not in one  # every colour is the page's own
