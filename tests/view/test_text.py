"""Text in any script, in images."""

from __future__ import annotations

import pytest
from helpers.comparisons import comparison, noise
from PIL import Image, ImageDraw, ImageFont

from eadp.view import draw_figure
from eadp.view.text import TextWriter, has_glyph, load_fonts


@pytest.mark.parametrize("character", ["你", "好", "🐱", "é", "β", "×"])
def test_some_font_has_characters_of_other_scripts(character):
    found = any(has_glyph(font, character) for font in load_fonts(30))
    assert found, f"no installed font has {character}; `make browser` installs some"


def test_a_character_that_no_font_has_is_written_as_its_code_point():
    plain = (ImageFont.load_default(20),)
    image = Image.new("RGB", (400, 60), "white")
    writer = TextWriter(ImageDraw.Draw(image), 20)
    writer.fonts = plain
    assert writer.width("你") == pytest.approx(writer.width("[U+4F60]"))
    assert writer.width("a\u200d\ufe0f") == writer.width("a")


def test_a_question_in_chinese_with_emoji_is_drawn():
    made = comparison([(4, 4)], [noise(40, 40)], 4, question="红色 的 猫 🐱 在 哪里 ？")
    writer = TextWriter(ImageDraw.Draw(Image.new("RGB", (10, 10))), 30)
    assert writer.width("猫🐱") < writer.width("[U+732B]")
    assert draw_figure(made).size[0] == 1760


def test_text_is_truncated_and_wrapped_to_a_width():
    writer = TextWriter(ImageDraw.Draw(Image.new("RGB", (10, 10))), 20)
    assert writer.width(writer.truncate("a very long word " * 9, 200)) <= 200
    assert all(writer.width(line) <= 150 for line in writer.wrap("some words and averyveryverylongwordindeed too", 150))
    assert writer.wrap("one two", 1000) == ["one two"]
