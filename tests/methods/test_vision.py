"""What methods learn from the vision side, and what reaches the language model. (Merging before the projector:
test_merging.py.)"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.encoded import encoded_images
from helpers.manual_pruning import SPECIAL_IDS, answers, shortened
from helpers.prompts import IMAGES, Sizes, every_prompt
from torch import Tensor
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl

import eadp
from eadp.methods import get_method
from eadp.methods.hiprune import HiPrune
from eadp.models.vision_call import EncodedImage

IMPLEMENTATIONS = ("sdpa", "eager")


def features(model: Any, inputs: dict[str, Tensor]) -> list[Any]:
    base, outputs = model.base_model, []
    for modality, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        if pixels in inputs:
            names = (f"{modality}_grid_thw", *(("image_sizes", "batch_num_images") if modality == "image" else ()))
            arguments = {name: inputs[name] for name in names if name in inputs}
            outputs.append(getattr(base, f"get_{modality}_features")(inputs[pixels], **arguments, return_dict=True))
    return outputs


def images(
    family: str, sizes: Sizes, method: str = "hiprune", attention: str = "sdpa", **settings: Any
) -> list[EncodedImage]:
    model = tiny.model(family, attention=attention)
    with eadp.attach(model, method=method, **{"keep": 1} | settings), encoded_images() as encoded:
        model(**tiny.inputs(family, sizes))
    return encoded


def hooks_of(model: Any) -> list[int]:
    """Some models hang in their own once they have run."""
    return [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()]


@every_prompt
@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
def test_the_probe_changes_no_bit_and_leaves_nothing(family: str, sizes: Sizes, attention: str) -> None:
    model, inputs = tiny.model(family, attention=attention), tiny.inputs(family, sizes)
    plain, hooks = features(model, inputs), hooks_of(model)
    with eadp.attach(model, method="hiprune", keep=2):
        probed = features(model, inputs)
    for before, after in zip(plain, probed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before.pooler_output, after.pooler_output, strict=True))
        assert torch.equal(before.last_hidden_state, after.last_hidden_state)
    assert hooks_of(model) == hooks
    implementations = {module.config._attn_implementation for module in model.modules() if hasattr(module, "config")}
    assert implementations == {attention}


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", ["llava", "paligemma", "internvl"])
def test_attention_is_what_the_tower_computes(family: str, attention: str) -> None:
    """CLIP, SigLIP, and tiles of 2×2 patches a token, the whole image last: against eager attention's matrices."""
    sizes = [[(24, 48)]]
    (one,) = images(family, sizes, attention=attention, object_layer=0, deep_layer=2)
    eager = tiny.model(family, attention="eager").base_model
    matrices = eager.vision_tower(tiny.inputs(family, sizes)["pixel_values"], output_attentions=True).attentions
    has_cls = family != "paligemma"
    for layer, number in zip(one.attention, (0, 2), strict=True):
        assert (layer.layer, layer.depth) == (number, 3)
        matrix = matrices[number].mean(1)
        received, cls = (rows[:, int(has_cls) :] for rows in (matrix.sum(1), matrix[:, 0]))
        if family == "internvl":
            received, cls = (rows.view(3, 3, 2, 3, 2).mean((2, 4))[[2, 0, 1]] for rows in (received, cls))
        torch.testing.assert_close(layer.received, received.flatten() / len(one), rtol=1e-4, atol=1e-6)
        if has_cls:
            assert layer.cls is not None
            assert layer.cls_full_width is not None
            torch.testing.assert_close(layer.cls, cls.flatten(), rtol=1e-4, atol=1e-6)
        else:
            assert layer.cls is None
            assert layer.cls_full_width is None
        assert layer.family == family


def test_keys_are_the_towers_and_its_heads_may_be_one() -> None:
    """From the raw projections of the tower's last layer, which has 2 heads of 16: over the full width, one softmax of
    q·k/√32, of which the row of CLS loses its first column."""
    (one,) = images("llava", [[(28, 28)]], method="prumerge")
    tower, seen = tiny.model("llava").base_model.vision_tower, {}
    attention = tower.encoder.layers[2].self_attn
    handles = [
        getattr(attention, name).register_forward_hook(lambda *call, name=name: seen.update({name: call[-1][0]}))
        for name in ("q_proj", "k_proj")
    ]
    tower(tiny.inputs("llava", [[(28, 28)]])["pixel_values"])
    for handle in handles:
        handle.remove()
    (layer,) = one.attention
    torch.testing.assert_close(layer.keys.flatten(1), seen["k_proj"][1:])
    full = torch.softmax(seen["q_proj"][0] @ seen["k_proj"].T / 32**0.5, 0)[1:]
    torch.testing.assert_close(layer.cls_full_width, full, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(layer.cls_full_width, layer.cls, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_qwens_windows_come_back_in_order(
    family: str, layer: int, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen2.5-VL's layer 1 attends within an image, its layer 2 within windows of 2×2 tokens. The matrices are caught
    on their way through eager attention, and their patches named by sending names through the tower's own
    reordering."""
    sizes = [[(24, 40), (16, 24)]]
    found = images(family, sizes, attention=attention, object_layer=layer, deep_layer=layer)
    inputs = tiny.inputs(family, sizes)
    tower = tiny.model(family, attention="eager").base_model.visual
    module = modeling_qwen2_5_vl if family == "qwen2_5_vl" else modeling_qwen3_vl
    stock, matrices = module.eager_attention_forward, []

    def caught(attending: Any, *args: Any, **kwargs: Any) -> Any:
        output = stock(attending, *args, **kwargs)
        if attending is tower.blocks[layer].attn:
            matrices.append(output[1][0].mean(0))
        return output

    monkeypatch.setattr(module, "eager_attention_forward", caught)
    grid = inputs["image_grid_thw"]
    tower(inputs["pixel_values"], grid_thw=grid)
    sums = torch.cat([matrix.sum(0) for matrix in matrices])
    names = torch.arange(len(sums)).float()[:, None]
    if family == "qwen2_5_vl":
        windows, _ = modeling_qwen2_5_vl.get_vision_window_index(
            grid, spatial_merge_size=2, window_size=16, patch_size=4
        )
        names = tower.permute_input_for_window_attn(names, windows, len(sums))
        assert (len(matrices) > 2) == (layer == 2)
    by_patch = torch.empty(len(sums))
    by_patch[names[:, 0].long()] = sums
    tokens = by_patch.view(-1, 4).mean(1).split([len(one) for one in found])
    for one, expected in zip(found, tokens, strict=True):
        torch.testing.assert_close(one.attention[0].received, expected / len(one), rtol=1e-4, atol=1e-6)


def test_pixtral_sees_several_images_in_one_sequence() -> None:
    """LLaVA's class with Pixtral's tower: attention is masked to each image, so that each image's adds up to 1."""
    vision = dict(tiny.TOWER, model_type="pixtral", image_size=32, patch_size=4, head_dim=16)
    config = hf.LlavaConfig(
        vision_config=vision,
        text_config=tiny.LLAMA,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        **tiny.IMAGE,
    )
    model = hf.LlavaForConditionalGeneration(config).eval().requires_grad_(False)
    ids = torch.tensor([[40, *[config.image_token_id] * 6, 41, *[config.image_token_id] * 4, 42]])
    inputs = {"pixel_values": torch.randn(2, 3, 8, 12), "image_sizes": torch.tensor([[8, 12], [8, 8]])}
    with eadp.attach(model, method="hiprune", keep=2) as pruned, encoded_images() as encoded:
        model(input_ids=ids, **inputs)
        assert [(len(each), each.total) for each in pruned.last] == [(2, 6), (2, 4)]
        for one in encoded:
            torch.testing.assert_close(one.attention[0].received.sum(), torch.tensor(1.0))
    with eadp.attach(model, method="visionzip", keep=2) as pruned, encoded_images() as encoded:
        model(input_ids=ids, **inputs)
        projected = model.base_model.get_image_features(**inputs).pooler_output
        for one, rows in zip(encoded, projected, strict=True):
            torch.testing.assert_close(pruned.adapter.project(one.tower_rows.rows), rows)
        assert [each.merge_space for each in pruned.last] == ["tower"] * 2
    with (
        eadp.attach(model, method="downsample", keep=2),
        pytest.raises(ValueError, match="PixtralVisionModel cannot encode an image at another resolution"),
    ):
        model(input_ids=ids, **inputs)


@pytest.mark.parametrize("name", ["visionzip", "prumerge"])
def test_only_the_row_of_cls_is_computed_where_there_is_one(name: str) -> None:
    (one,) = images("llava", [[(28, 28)]], method=name)
    assert one.attention[0].cls is not None
    assert one.attention[0].received is None
    (one,) = images("paligemma", [[(16, 16)]], method=name)
    assert one.attention[0].cls is None
    assert one.attention[0].received is not None


@every_prompt
def test_every_token_has_its_attention(family: str, sizes: Sizes) -> None:
    """Received attention averages to 1/N, less what CLS gets, whatever was cropped, pooled and reordered."""
    for one in images(family, sizes):
        for layer in one.attention:
            assert len(layer.received) == len(layer.keys) == len(one)
            assert (layer.cls is None) == (family not in ("llava", "llava_next", "llava_next_video", "internvl"))
        if family in ("qwen2_5_vl", "qwen3_vl", "idefics3", "smolvlm", "gemma3", "paligemma"):
            torch.testing.assert_close(one.attention[0].received.sum(), torch.tensor(1.0))


@pytest.mark.parametrize("family", ["llava", "llava_next"])
def test_what_the_language_model_receives(family: str) -> None:
    """Of means of tokens: the weights times the tokens, each where its central token stood."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:1])
    (output,) = features(model, inputs)
    received: list[Tensor] = []
    with eadp.attach(model, method="pool", keep=11) as pruned:
        handle = model.base_model.language_model.register_forward_pre_hook(
            lambda _, args, kwargs: received.append(kwargs["inputs_embeds"]), with_kwargs=True
        )
        model(**inputs)
        handle.remove()
    (selection,), (one,) = pruned.last, pruned.images
    sources = output.pooler_output[0][one.slots]
    placeholders = (inputs["input_ids"][0] == model.config.image_token_id).nonzero().flatten()
    column = placeholders[one.slots[selection.indices]]
    physical = pruned.columns[0].cumsum(0)[column] - 1
    torch.testing.assert_close(received[0][0, physical], selection.merge @ sources, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["pool", "downsample"])
def test_deepstack_merges_with_the_same_weights(name: str) -> None:
    model, inputs = tiny.model("qwen3_vl"), tiny.inputs("qwen3_vl", [[(24, 32)]])
    (output,) = features(model, inputs)
    received: list[list[Tensor]] = []
    with eadp.attach(model, method=name, keep=4) as pruned, encoded_images() as encoded:
        handle = model.base_model.language_model.register_forward_pre_hook(
            lambda _, args, kwargs: received.append(kwargs["deepstack_visual_embeds"]), with_kwargs=True
        )
        model(**inputs)
        handle.remove()
    (selection,), (one,) = pruned.last, encoded
    downsampled = []
    if name == "downsample":
        downsampled = pruned.adapter.encode(one.pixels.call, one.pixels.blocks[0], (2, 2))[1:]
    for number, layer in enumerate(received[0]):
        sources = torch.cat([output.deepstack_features[number][0], *downsampled[number : number + 1]])
        torch.testing.assert_close(layer, selection.merge @ sources, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "name"), [("llava", "visionzip"), ("qwen3_vl", "downsample"), ("qwen2_5_vl", "hiprune")]
)
def test_beams_and_training(family: str, name: str) -> None:
    """What was recorded serves every beam; and a loss reaches the weights before the tokens that stay."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    settings = {"max_new_tokens": 4, "num_beams": 3, "do_sample": False, "suppress_tokens": SPECIAL_IDS}
    with eadp.attach(model, method=name, keep=4):
        beams = model.generate(**inputs, **settings)
        assert torch.equal(model.generate(**inputs, **settings, use_cache=False), beams)
        weight = model.base_model.language_model.embed_tokens.weight.requires_grad_()
        try:
            model(**inputs, labels=inputs["input_ids"]).loss.backward()
            assert weight.grad is not None
            assert bool(weight.grad.isfinite().all())
            assert bool(weight.grad.any())
        finally:
            weight.requires_grad_(False).grad = None


@pytest.mark.parametrize(("family", "name"), [("llava", "visionzip"), ("qwen3_vl", "downsample")])
def test_before_and_inside_in_a_chain(family: str, name: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    with eadp.attach(model, method=[get_method(name, keep=0.7), get_method("dart", keep=2)]) as pruned:
        _, logits = answers(model, **inputs)
        assert {each.method for each in pruned.last} == {f"{name}+dart"}
        _, uncached = answers(model, **inputs, use_cache=False)
    torch.testing.assert_close(uncached, logits, rtol=1e-4, atol=1e-4)


def test_one_budget_over_several_images() -> None:
    """Two images of 16 tokens that share 5: attention, CLS tokens and merges of both together."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", [[(28, 28), (28, 28)]])
    for name in ("visionzip", "prumerge", "hiprune", "downsample"):
        method = get_method(name, keep=5, **({"exact": True} if name == "hiprune" else {}))
        with eadp.attach(model, method=method, budget_over="prompt") as pruned:
            model(**inputs)
            for each in pruned.last:
                if each.rows is not None:
                    assert each.merge.shape == (len(each), 16 + (name == "visionzip"))
                    own = each.rows[each.rows >= 0]
                    assert torch.isin(own, each.indices).all()
                    assert each.merge[each.rows >= 0, own].all(), "weights and rows are of the same image"
        assert [len(each) for each in pruned.last] in ([3, 2], [2, 2])
        assert sum(map(len, pruned.last)) == (4 if name == "downsample" else 5)


@pytest.mark.parametrize(("family", "positions"), [("llava", "renumber"), ("qwen2_5_vl", "keep")])
def test_hiprune_s_positions_are_its_release_s(family: str, positions: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:1])
    with eadp.attach(model, method="hiprune", keep=4) as pruned:
        tokens, logits = answers(model, **inputs)
        columns = pruned.columns
    assert not columns.all()
    expected, by_hand = answers(model, **shortened(model, inputs, columns, positions))
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logits, by_hand, rtol=1e-4, atol=1e-4)


def test_a_layer_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="layer 9, but the vision tower has 3"):
        eadp.attach(tiny.model("llava"), method=HiPrune(keep=4, object_layer=9))
