"""Text in any script, in images."""

from __future__ import annotations

import pytest
from helpers.comparisons import comparison, noise
from PIL import Image, ImageDraw, ImageFont

from eadp.view import draw_figure
from eadp.view.text import Pen, fonts, has


@pytest.mark.parametrize("sign", ["你", "好", "🐱", "é", "β", "×"])
def test_signs_of_other_scripts_are_found_in_some_font(sign):
    assert any(has(font, sign) for font in fonts(30)), f"no font at hand draws {sign}; `make browser` installs some"


def test_what_no_font_has_is_written_as_its_code_point():
    plain = (ImageFont.load_default(20),)
    image = Image.new("RGB", (400, 60), "white")
    pen = Pen(ImageDraw.Draw(image), 20)
    pen.fonts = plain
    assert pen.width("你") == pytest.approx(pen.width("[U+4F60]"))
    assert pen.width("a\u200d\ufe0f") == pen.width("a")


def test_a_question_in_chinese_with_emoji_is_drawn():
    made = comparison([(4, 4)], [noise(40, 40)], 4, question="红色 的 猫 🐱 在 哪里 ？")
    pen = Pen(ImageDraw.Draw(Image.new("RGB", (10, 10))), 30)
    assert pen.width("猫🐱") < pen.width("[U+732B]")
    assert draw_figure(made).size[0] == 1760


def test_text_is_cut_to_its_room():
    pen = Pen(ImageDraw.Draw(Image.new("RGB", (10, 10))), 20)
    assert pen.width(pen.fitted("a very long word " * 9, 200)) <= 200
    assert all(pen.width(line) <= 150 for line in pen.lines("some words and averyveryverylongwordindeed too", 150))
    assert pen.lines("one two", 1000) == ["one two"]
