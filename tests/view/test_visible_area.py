"""The part of an image that a model sees."""

from __future__ import annotations

from types import SimpleNamespace

from helpers.comparisons import noise

from eadp.view.visible_area import visible_area


def test_a_centre_crop_shows_the_centre():
    clip = SimpleNamespace(
        do_center_crop=True, size={"shortest_edge": 50}, crop_size={"width": 50, "height": 50}, image_mean=[0.5] * 3
    )
    image = noise(200, 100)
    assert (
        visible_area(image, SimpleNamespace(image_processor=clip)).tobytes() == image.crop((50, 0, 150, 100)).tobytes()
    )
    llava = type("LlavaImageProcessorPil", (SimpleNamespace,), {})(**vars(clip), do_pad=True)
    assert visible_area(image, llava).size == (200, 200)
    whole = SimpleNamespace(do_center_crop=False, size={"height": 64, "width": 64})
    assert visible_area(image, whole) is image
