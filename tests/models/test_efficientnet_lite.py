"""EfficientNet-Lite as a vision tower: its padding, its grid of cells, and what it says of each cell."""

from __future__ import annotations

import pytest
import torch
from helpers import tiny
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from eadp.models.efficientnet_lite import EfficientNetLiteConfig, EfficientNetLiteModel, SameConv, place_shares


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return EfficientNetLiteModel(EfficientNetLiteConfig(**tiny.EFFICIENTNET)).eval()


def test_the_default_tower_has_576_tokens_of_1280_channels():
    config = EfficientNetLiteConfig()
    assert config.patch_size == 32
    assert (config.image_size // config.patch_size) ** 2 == 576
    assert config.hidden_size == 1280


def test_transformers_builds_the_tower_from_its_configuration(tmp_path, model):
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is EfficientNetLiteConfig
    again = AutoModel.from_pretrained(tmp_path)
    assert type(again) is EfficientNetLiteModel
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(("side", "kernel", "stride"), [(8, 3, 2), (7, 3, 2), (8, 5, 2), (9, 5, 2), (6, 3, 1)])
def test_padding_is_that_of_tensorflow(side, kernel, stride):
    """The output has ⌈side / stride⌉ rows, and of an odd number of rows of padding the larger half is at the end."""
    conv = SameConv(EfficientNetLiteConfig(), 1, 1, kernel, stride, activation=False).eval()
    torch.nn.init.ones_(conv.conv.weight)
    output = conv(torch.ones(1, 1, side, side))
    rows = -(-side // stride)
    assert output.shape[-2:] == (rows, rows)
    before = max((rows - 1) * stride + kernel - side, 0) // 2
    expected = [sum(0 <= row * stride + step - before < side for step in range(kernel)) for row in range(rows)]
    counted = (output[0, 0, :, rows // 2] / output[0, 0, rows // 2, rows // 2] * expected[rows // 2]).round().tolist()
    assert counted == expected


def test_hidden_states_are_stages_then_cells_then_what_they_show(model):
    pixels = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        output = model(pixels, output_hidden_states=True)
        logits = model.classifier(output.last_hidden_state)
    cells = output.last_hidden_state
    rows, columns = 16 // model.config.patch_size, 24 // model.config.patch_size
    assert cells.shape == (2, rows * columns, model.config.hidden_size)
    assert torch.equal(output.pooler_output, cells.mean(1))
    assert len(output.hidden_states) == len(model.config.strides) + 2
    assert torch.equal(output.hidden_states[-2], cells)
    described, classes = output.hidden_states[-1], model.config.num_classes
    torch.testing.assert_close(described[..., :classes], F.softmax(logits, -1))
    assert torch.equal(described[0, :, classes : classes + 6], place_shares((rows, columns)))
    assert not described[..., classes + 6 :].any()


def test_cells_are_in_the_order_of_rows(model):
    """A change at the top right corner changes cells there."""
    pixels = torch.zeros(1, 3, 32, 32)
    changed = pixels.clone()
    changed[..., :4, -4:] = 1
    with torch.inference_mode():
        difference = (model(changed).last_hidden_state - model(pixels).last_hidden_state).norm(dim=-1)[0]
    assert difference.unflatten(0, (8, 8))[:4, 4:].sum() > 0.9 * difference.sum() > 0


def test_places_are_shares_of_three_words_along_each_side():
    shares = place_shares((3, 5))
    assert shares[0].tolist() == [1, 0, 0, 1, 0, 0]
    assert shares[4].tolist() == [0, 0, 1, 1, 0, 0]
    assert shares[7].tolist() == [0, 1, 0, 0, 1, 0]
    assert shares[11].tolist() == [0.5, 0.5, 0, 0, 0, 1]
    assert place_shares((1, 1)).tolist() == [[0, 1, 0, 0, 1, 0]]


def test_a_tuple_is_returned_on_demand(model):
    assert isinstance(model(torch.zeros(1, 3, 8, 8), return_dict=False), tuple)


def test_classes_must_fit_into_a_hidden_state():
    with pytest.raises(ValueError, match="hidden_size must be at least 26, got 25"):
        EfficientNetLiteModel(EfficientNetLiteConfig(hidden_size=25, num_classes=20))


def test_views_have_a_vote_in_what_cells_show_and_in_nothing_else(model):
    """The logits of a cell are the mean of its own and of those of each view as a whole."""
    pixels = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(2))
    plain = model(pixels, output_hidden_states=True)
    model.config.view_sizes = (32, 16, 8)
    try:
        seen = model(pixels, output_hidden_states=True)
    finally:
        model.config.view_sizes = EfficientNetLiteConfig().view_sizes
    assert all(
        torch.equal(one, two) for one, two in zip(plain.hidden_states[:-1], seen.hidden_states[:-1], strict=True)
    )
    assert torch.equal(plain.pooler_output, seen.pooler_output)
    logits = model.classifier(plain.last_hidden_state)
    # The first size is not smaller than the image.
    for size in ((16, 24), (8, 12)):
        view = F.interpolate(pixels, size, mode="bilinear", antialias=True)
        logits = logits + model.classifier(model(view).pooler_output)[:, None]
    classes = model.config.num_classes
    torch.testing.assert_close(seen.hidden_states[-1][..., :classes], (logits / 3).softmax(-1))
    assert torch.equal(seen.hidden_states[-1][..., classes:], plain.hidden_states[-1][..., classes:])


def test_the_folded_normalisation_is_that_of_training_with_fixed_statistics():
    torch.manual_seed(0)
    conv = SameConv(EfficientNetLiteConfig(), 4, 4, 3, 2, groups=2).eval()
    for values in (conv.norm.weight, conv.norm.bias, conv.norm.running_mean):
        torch.nn.init.normal_(values)
    torch.nn.init.uniform_(conv.norm.running_var, 0.5, 2)
    pixels = torch.randn(2, 4, 8, 8)
    folded = conv(pixels)
    conv.training = True
    torch.testing.assert_close(folded, conv(pixels))
    conv.norm.train()
    assert not torch.allclose(folded, conv(pixels), atol=1e-2)
