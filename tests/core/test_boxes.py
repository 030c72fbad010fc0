"""Which cells of a grid lie in boxes on the image."""

from __future__ import annotations

import pytest

from eadp.core.boxes import cells_in_boxes

QUARTER = (0.0, 0.0, 0.5, 0.5)


def test_a_quarter():
    expected = [[True, True, False, False], [True, True, False, False], [False] * 4, [False] * 4]
    assert cells_in_boxes((4, 4), [QUARTER]).view(4, 4).tolist() == expected


def test_centres_count():
    assert cells_in_boxes((4, 1), [(0.3, 0, 0.8, 1)]).tolist() == [False, True, True, False]


def test_boxes_unite():
    assert cells_in_boxes((2, 2), [(0, 0, 0.5, 0.5), (0.5, 0.5, 1, 1)]).tolist() == [True, False, False, True]


def test_a_tiny_box_has_the_cell_it_lies_in():
    assert cells_in_boxes((2, 2), [(0.9, 0.1, 0.95, 0.15)]).tolist() == [False, False, True, False]


def test_top_comes_first():
    assert cells_in_boxes((2, 1), [(0.5, 0, 1, 1)]).tolist() == [False, True]


@pytest.mark.parametrize("box", [(0, 0, 120, 80), (0.5, 0, 0.2, 1), (-0.1, 0, 1, 1)])
def test_pixels_and_corners_in_the_wrong_order_are_refused(box):
    with pytest.raises(ValueError, match="as shares of the image's height and width"):
        cells_in_boxes((4, 4), [box])
