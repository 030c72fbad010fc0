"""Write docs/guides/gallery.md and draw its images: `make gallery`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from rich.progress import track
from transformers import (
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
)

from eadp.evaluate.photo_data import GET_SKIMAGE, package_data
from eadp.pocket.names import CLIPS, PHOTO, THINGS
from eadp.pocket.things import clip_samples, scene_samples
from eadp.pocket.things.questions import make_question
from eadp.pocket.things.render import render
from eadp.pocket.things.scene import LARGE_SIDE, make_scene
from eadp.pocket.things.view import View
from eadp.utils.images import read_image
from eadp.view.comparer import MethodComparer
from eadp.view.comparison import Comparison
from eadp.view.figure import coverages, draw_figure

DOCS = Path("docs")
KEEP, CLIP_KEEP = 64, 128
METHODS = ("eadp", "cdpruner", "topk")
SCENES = ((11, "nearest", 0.0), (40, "several", 0.0), (29, "group", 1.0), (9, "between", 0.0))
"""The number of a test scene, the kind of the question about it, and the share of questions that get instructions."""

LARGE_SCENE, CLIP = 0, 2
"""The numbers of the test scene that is read as crops, and of the clip."""

CROPS = "crops"

PHOTOGRAPHS = (
    ("chelsea.png", "Is there a cat in the photo?", "Stéfan van der Walt, CC0"),
    ("coffee.png", "Is there a cup in this picture?", "Rachel Michetti, CC0"),
    ("coffee.png", "Please look at the whole picture with care. Does this photograph show a spoon?", ""),
    ("motorcycle_left.png", "Can you see a motorcycle here?", "Daniel Scharstein, CC0"),
    ("astronaut.png", "Is there a space shuttle in the photo?", "NASA, public domain"),
    ("camera.png", "Is there a tripod in the photo?", "Lav Varshney, CC0"),
    ("flower.jpg", "What does this photograph show?", "vultilion on Flickr, CC BY 2.0"),
    ("china.jpg", "Is there a palace in this picture?", "danielbuechele on Flickr, CC BY 2.0"),
    ("", "Is there a cat in the photo?", ""),
    ("", "Is there a motorcycle in the photo?", ""),
)
"""Photographs of scikit-image and scikit-learn, the questions, and who made them. An empty name is `TOGETHER`."""

TOGETHER = ("chelsea.png", "coffee.png", "motorcycle_left.png", "china.jpg")
"""Four photographs that are put together in one."""

GET_SKLEARN = "run `pip install --no-deps scikit-learn`"

HEAD = """# Gallery

`make gallery` draws these figures. The model of the first ones is [things](things.md), a toy that ships with the
package; photographs are shown to [photo](photographs.md). They keep {keep} of 576 visual tokens, if the text says no
other number. Each figure shows the words of the question with their entropies (words that are struck through are not
used), then the image, then one column per method: its relevance map on top, and the tokens it kept below. Coverage is
computed in the same way for every method: facility location with EADP's weights. `eadp show` draws the same figure for
your images and models; `eadp report` and `eadp view` make it interactive ([Visualize](visualize.md)).
"""


@dataclass(frozen=True)
class GalleryItem:
    """One section of the gallery.

    Attributes:
        name: The name of the image file.
        title: The title of the section.
        text: The text of the section.
        images: One image, or the frames of a clip.
        question: The question.
        keep: Number of visual tokens that stay.
        model: The model: THINGS, CLIPS, PHOTO, or one that splits images into crops (CROPS).
    """

    name: str
    title: str
    text: str
    images: list[Image.Image]
    question: str
    keep: int = KEEP
    model: str = THINGS


def with_crops(comparer: MethodComparer) -> MethodComparer:
    """Build a LLaVA-NeXT with the same weights, which encodes the whole image and four crops."""
    model, processor = comparer.model, comparer.processor
    config, images, side = model.config, processor.image_processor, model.config.vision_config.image_size
    same = (
        "vision_config",
        "text_config",
        "image_token_index",
        "vision_feature_layer",
        "vision_feature_select_strategy",
        "projector_hidden_act",
        "multimodal_projector_bias",
        "tie_word_embeddings",
    )
    pinpoints = [[2 * side, 2 * side]]
    next_model = LlavaNextForConditionalGeneration(
        LlavaNextConfig(**{name: getattr(config, name) for name in same}, image_grid_pinpoints=pinpoints)
    ).eval()
    newline = {"model.image_newline": torch.zeros(config.text_config.hidden_size)}
    next_model.load_state_dict(model.state_dict() | newline)
    next_model.generation_config = model.generation_config
    image_processor = LlavaNextImageProcessorPil(
        size=images.size,
        crop_size=images.crop_size,
        image_mean=images.image_mean,
        image_std=images.image_std,
        image_grid_pinpoints=pinpoints,
    )
    same_text = {name: getattr(processor, name) for name in ("patch_size", "chat_template", "image_token")}
    options = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    next_processor = LlavaNextProcessor(image_processor, processor.tokenizer, **same_text, **options)
    return MethodComparer(next_model, next_processor, comparer.guide)


def drawn_items() -> list[GalleryItem]:
    """Collect the sections with what is drawn: scenes, crops, a clip."""
    found = []
    for number, (index, kind, wrapped) in enumerate(SCENES, start=1):
        (sample,) = scene_samples("test", index, 1, (kind,), wrapped)
        text = f"The right answer: {sample.answer}."
        found.append(GalleryItem(f"scene-{number}", f"Scene {number}", text, [sample.image], sample.question))
    scene = make_scene("test", LARGE_SCENE, LARGE_SIDE)
    drawing = render(scene)
    asked = make_question(View(scene, drawing.visible), np.random.default_rng(0), "reading", wrapped=0.0)
    if asked is None:
        raise ValueError(f"large scene {LARGE_SCENE} has no sign to read")
    text = (
        "A LLaVA-NeXT with the same weights sees a scene twice as large: the whole image, and four crops. It was never "
        f"trained on crops, so ignore its answer (the right one is: {asked.answer}); the maps are meaningful."
    )
    found.append(GalleryItem("crops", "Crops", text, [drawing.image], asked.text, 5 * KEEP, CROPS))
    *_, moving = clip_samples("test", CLIP + 1)
    text = (
        f"The model for clips sees {len(moving.frames)} frames of 144 tokens, which share a budget by importance. The "
        f"right answer: {moving.answer}."
    )
    found.append(GalleryItem("clip", "A clip", text, list(moving.frames), moving.question, CLIP_KEEP, CLIPS))
    return found


def photographs() -> list[GalleryItem]:
    """Collect the sections with photographs."""
    skimage = package_data("skimage", "chelsea.png", GET_SKIMAGE)
    sklearn = package_data("sklearn", "china.jpg", GET_SKLEARN, "datasets/images")

    def read(file: str) -> Image.Image:
        folder = skimage if (skimage / file).is_file() else sklearn
        return read_image(folder / file).convert("RGB")

    found = []
    for number, (file, question, author) in enumerate(PHOTOGRAPHS, start=1):
        image = read(file) if file else put_together([read(each) for each in TOGETHER])
        text = f"Photograph: {author}." if author else "The same photograph." if file else "Four photographs in one."
        found.append(GalleryItem(f"photo-{number}", f"Photograph {number}", text, [image], question, KEEP, PHOTO))
    return found


def put_together(images: list[Image.Image]) -> Image.Image:
    """Put four images together, each cut to a square."""
    side = min(min(image.size) for image in images)
    whole = Image.new("RGB", (2 * side, 2 * side))
    for number, image in enumerate(images):
        whole.paste(ImageOps.fit(image, (side, side)), (number % 2 * side, number // 2 * side))
    return whole


def format_section(item: GalleryItem, comparison: Comparison) -> str:
    covered_text = ", ".join(
        f"{result.name} {covered:.1%}"
        for result, covered in zip(comparison.results, coverages(comparison), strict=True)
        if covered is not None
    )
    image = f"![{item.question}](../img/gallery-{item.name}.webp)"
    return f"\n## {item.title}: “{item.question}”\n\n{item.text} Coverage: {covered_text}.\n\n{image}\n"


def main() -> None:
    torch.set_num_threads(1)
    comparers = {name: MethodComparer.from_name(name) for name in (THINGS, CLIPS, PHOTO)}
    comparers[CROPS] = with_crops(comparers[THINGS])
    for comparer in comparers.values():
        comparer.notes = ()
    text = HEAD.format(keep=KEEP)
    for item in track(drawn_items() + photographs(), "gallery"):
        comparison = comparers[item.model].compare(item.images, item.question, METHODS, item.keep, rounds=1)
        draw_figure(comparison).save(DOCS / "img" / f"gallery-{item.name}.webp", quality=90, method=6)
        text += format_section(item, comparison)
    (DOCS / "guides" / "gallery.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
