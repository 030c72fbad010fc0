"""The image at another resolution: what `downsample` sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.prompts import CLIPS, IMAGES, Sizes
from PIL import Image
from torch import Tensor

import eadp
from eadp.core import Grid, Selection, TextGuide, VisualTokens
from eadp.methods import BeforeMethod
from eadp.models import ImageLayout, adapter_of
from eadp.models.pixels import patches_from_pixels, pixels_from_patches
from eadp.models.vision_call import VisionCall


@dataclass(frozen=True)
class Again(BeforeMethod):
    """Wants every block at the grid that it has, and keeps what it is given for inspection."""

    name = "test_again"
    needs = frozenset({"pixels"})
    given: ClassVar[list[VisualTokens]] = []

    def choose_resolutions(self, grids: Sequence[Grid], square: bool) -> list[Grid]:
        return list(grids)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        self.given.append(tokens)
        return Selection(torch.arange(len(tokens)), len(tokens), self.name)


CROPPED: Sizes = [[(56, 56)], [(28, 56)]]
UNPADDED = {family: CROPPED if family.startswith("llava_") else sizes for family, sizes in IMAGES.items()}
EVEN = {family: sizes for family, sizes in CLIPS.items() if family != "llava_onevision"}


@pytest.mark.parametrize(
    ("family", "sizes"), [*UNPADDED.items(), *EVEN.items()], ids=[*UNPADDED, *(f"{family}-video" for family in EVEN)]
)
def test_at_its_own_resolution_an_image_is_seen_as_it_was(family: str, sizes: Sizes) -> None:
    """Every block goes through the tower again, at the size that it had: the same tokens. Not so where padding was cut
    off, nor for LLaVA-OneVision's frames, whose 4×4 tokens come of 7×7 patches here and of 8×8 when seen anew."""
    model = tiny.model(family)
    Again.given.clear()
    with eadp.attach(model, method=Again()):
        model(**tiny.inputs(family, sizes))
    assert len(Again.given) == sum(map(len, sizes))
    for tokens in Again.given:
        assert tokens.downsampled is not None
        torch.testing.assert_close(tokens.downsampled, tokens.features, rtol=1e-3, atol=1e-3)


def only_layout(family: str, size: tuple[int, int]) -> ImageLayout:
    """The layout of the image of a prompt with one image."""
    model = tiny.model(family)
    with eadp.attach(model, method="downsample", keep=1) as pruned:
        model(**tiny.inputs(family, [[size]]))
    (one,) = pruned.images
    return one


def test_blocks_show_their_part_of_a_crop() -> None:
    """30×50 pixels on 2×2 crops of 28×28: the image fills the lower half of the upper crops, and the other way round.
    LLaVA-OneVision joins 16 crops of 100×100 pixels to one block, which has no padding here."""
    geometry = adapter_of(tiny.model("llava_next")).geometry
    one = only_layout("llava_next", (30, 50))
    values = torch.arange(5 * 3 * 28 * 28.0).view(5, 3, 28, 28)
    call = VisionCall("image", {}, (1, 5, 3, 28, 28), [one.length], pixels=values[None])
    (blocks,) = geometry.block_pixels(call, [one])
    assert [block.shape[1:] for block in blocks] == [(28, 28), *[(14, 28)] * 4]
    for crop, block in enumerate(blocks):
        rows = slice(0, 28) if crop == 0 else slice(14, 28) if crop < 3 else slice(0, 14)
        assert torch.equal(block, values[crop][:, rows])

    geometry = adapter_of(tiny.model("llava_onevision")).geometry
    one = only_layout("llava_onevision", (100, 100))
    values = torch.arange(17.0)[:, None, None, None].expand(17, 3, 28, 28)
    call = VisionCall(
        "image", {"image_sizes": torch.tensor([[100, 100]])}, (1, 17, 3, 28, 28), [one.length], pixels=values[None]
    )
    ((whole, joined),) = geometry.block_pixels(call, [one])
    assert torch.equal(whole, values[0])
    assert joined.shape == (3, 112, 112)
    assert torch.equal(joined[0, ::28, ::28], torch.arange(1.0, 17).view(4, 4))


def test_qwens_patches_are_the_pixels() -> None:
    """Against the stock processor: the rebuilt image is the picture, and cutting it up again gives the same patches."""
    noise = torch.randint(0, 256, (24, 40, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    process = hf.models.qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, do_resize=False, do_normalize=False, do_rescale=False
    )
    batch = process(Image.fromarray(noise.numpy()), return_tensors="pt")
    assert batch["image_grid_thw"].tolist() == [[1, 6, 10]]
    patches = torch.as_tensor(batch["pixel_values"]).float()
    pixels = pixels_from_patches(patches, 1, (6, 10), merge=2, size=4, depth=2)
    assert pixels.shape == (1, 2, 3, 24, 40)
    for frame in pixels[0]:
        assert torch.equal(frame, noise.permute(2, 0, 1).float())
    assert torch.equal(patches_from_pixels(pixels[0], merge=2, size=4), patches)


def test_downsampled_pixels_reach_the_language_model() -> None:
    """A LLaVA of 4×4 tokens at 2×2: an image of 14×14 pixels, by the tower with interpolated positions."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", [[(28, 28)]])
    received: list[Tensor] = []
    with eadp.attach(model, method="downsample", keep=4) as pruned:
        handle = model.base_model.language_model.register_forward_pre_hook(
            lambda _, args, kwargs: received.append(kwargs["inputs_embeds"]), with_kwargs=True
        )
        model(**inputs)
        handle.remove()
    small = torch.nn.functional.interpolate(inputs["pixel_values"], size=(14, 14), mode="bicubic", antialias=True)
    alone = model.base_model.get_image_features(small, interpolate_pos_encoding=True, return_dict=True)
    first = int((inputs["input_ids"][0] == model.config.image_token_id).nonzero()[0])
    torch.testing.assert_close(received[0][0, first : first + 4], alone.pooler_output[0], rtol=1e-4, atol=1e-4)
    assert pruned.last[0].indices.tolist() == [0, 2, 8, 10]
