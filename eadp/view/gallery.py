"""Draws docs/gallery.md and its pictures: `make gallery`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from rich.progress import track

from eadp.pocket.samples import samples
from eadp.pocket.world import clip
from eadp.pocket.world import draw as scene_picture
from eadp.view.asking import Asker
from eadp.view.exhibit import Exhibit
from eadp.view.figure import coverages, draw
from eadp.view.samples import photos

DOCS = Path("docs")
KEEP = 32
METHODS = ("eadp", "cdpruner", "topk")
SCENES = (7, 6, 1, 5)
"""Which of the pocket benchmark's test questions are shown, one that the model gets wrong among them."""

HEAD = """# Gallery

Made by `make gallery`: the pocket model, a toy that ships with the package, with {keep} of its 256 visual tokens. Each
figure shows the question's words with their entropies (struck through: not used), the picture, each method's map above,
and below what it kept. Coverage is measured alike for all: facility location with EADP's weights. `eadp show` draws the
same for your pictures and models, `eadp report` and `eadp view` make it live ([how](look.md)).
"""


@dataclass(frozen=True)
class Piece:
    """title, text: of its section. name: of its file."""

    name: str
    title: str
    text: str
    images: list[Image.Image]
    question: str
    keep: int = KEEP


def pieces() -> list[Piece]:
    found = []
    asked = list(samples("test", max(SCENES) + 1))
    for number, sample in enumerate((asked[each] for each in SCENES), start=1):
        text = f"A scene of the pocket world. The right answer: {sample.answer}."
        found.append(Piece(f"scene-{number}", f"Scene {number}", text, [sample.image], sample.question))
    moving = clip("test", 0, frames=6)
    frames = [scene_picture(frame) for frame in moving.frames]
    text = (
        "Six frames share one budget by importance. The model was trained on single pictures, so its answer to a clip "
        f"means nothing (right: {moving.answer}); the maps and quotas do."
    )
    found.append(Piece("clip", "A clip", text, frames, moving.question, 6 * KEEP))
    for photo in photos():
        text = (
            f"`skimage.data.{photo.name}` ({photo.terms}), its centre, as the model's processor cuts it. The pocket "
            "model knows no photographs: neither its answer nor its map is to be trusted here."
        )
        found.append(Piece(f"photo-{photo.name}", f"Photo: {photo.name}", text, [photo.image], photo.question))
    return found


def section(piece: Piece, exhibit: Exhibit) -> str:
    told = ", ".join(
        f"{take.name} {covered:.1%}"
        for take, covered in zip(exhibit.takes, coverages(exhibit), strict=True)
        if covered is not None
    )
    picture = f"![{piece.question}](img/gallery-{piece.name}.webp)"
    return f"\n## {piece.title}: “{piece.question}”\n\n{piece.text} Coverage: {told}.\n\n{picture}\n"


def main() -> None:
    torch.set_num_threads(1)
    asker = Asker.of("pocket")
    asker.notes = ()
    text = HEAD.format(keep=KEEP)
    for piece in track(pieces(), "gallery"):
        exhibit = asker.look(piece.images, piece.question, METHODS, piece.keep, rounds=1)
        draw(exhibit).save(DOCS / "img" / f"gallery-{piece.name}.webp", quality=90, method=6)
        text += section(piece, exhibit)
    (DOCS / "gallery.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
