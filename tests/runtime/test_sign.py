"""`diagnose_sign` finds the better sign, and says how sure that is."""

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    CLIPImageProcessorPil,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

import eadp
from eadp.core import TextGuide, VisualTokens
from eadp.core.boxes import cells_in_boxes
from eadp.models.guides import EmbeddingGuide
from eadp.runtime.sign import SIGNS, Localisation, localise, report_of

BOX = (0.0, 0.0, 0.5, 0.5)


def scene(sign, *, words=3, noise=0.1, seed=0, grid=(4, 6)):
    """Cells inside BOX are aligned with the text (sign=+1) or opposed to it (−1)."""
    torch.manual_seed(seed)
    inside = cells_in_boxes(grid, [BOX])
    meaning = torch.randn(16)
    visual = noise * torch.randn(len(inside), 16) + torch.randn(16)
    visual[inside] += sign * meaning
    text = TextGuide(meaning + noise * torch.randn(words, 16), meaning + noise * torch.randn(16), sign=-1.0)
    return text, VisualTokens(visual, visual, [grid])


class TestLocalise:
    @pytest.mark.parametrize(("boxes", "message"), [([], "no boxes"), ([(0, 0, 1, 1)], "cover the whole image")])
    def test_there_must_be_cells_inside_and_outside(self, boxes, message):
        with pytest.raises(ValueError, match=message):
            localise(*scene(+1), boxes, +1)

    @pytest.mark.parametrize("true_sign", SIGNS)
    def test_the_right_sign_finds_the_box_and_the_other_avoids_it(self, true_sign):
        right = localise(*scene(true_sign), [BOX], true_sign)
        wrong = localise(*scene(true_sign), [BOX], -true_sign)
        assert set(right.auc) == {"global", "dense"}
        assert right.quality == 1.0
        assert wrong.quality == 0.0
        assert min(right.ratio.values()) > 2 > 0.5 > max(wrong.ratio.values())

    def test_the_guides_own_sign_plays_no_part(self):
        text, tokens = scene(+1)
        flipped = TextGuide(text.tokens, text.pooled, sign=+1.0)
        assert localise(text, tokens, [BOX], +1) == localise(flipped, tokens, [BOX], +1)

    def test_a_map_that_ignores_the_box_guesses(self):
        torch.manual_seed(3)
        visual = torch.randn(2000, 8)
        tokens = VisualTokens(visual, visual, [(40, 50)])
        assert localise(TextGuide(torch.randn(2, 8), torch.randn(8)), tokens, [BOX], +1).quality == pytest.approx(
            0.5, abs=0.05
        )

    def test_equal_scores_are_half_a_win(self):
        visual = torch.eye(2).repeat(2, 1)
        text = TextGuide(torch.zeros(0, 2), torch.tensor([1.0, 0.5]))
        found = localise(text, VisualTokens(visual, visual, [(2, 2)]), [(0, 0, 0.5, 1)], +1)
        assert found.auc == {"global": 0.5}

    def test_a_text_without_words_has_only_the_global_map(self):
        text, tokens = scene(+1, words=0)
        assert set(localise(text, tokens, [BOX], +1).auc) == {"global"}

    def test_crops_do_not_count(self):
        text, tokens = scene(+1)
        visual = torch.cat([tokens.features, torch.randn(4, 16)])
        cropped = VisualTokens(visual, visual, [*tokens.grids, (2, 2)], layout=(1, 1))
        assert localise(text, cropped, [BOX], +1) == localise(text, tokens, [BOX], +1)

    def test_frames_are_refused(self):
        visual = torch.randn(8, 4)
        with pytest.raises(ValueError, match="2 blocks with no layout"):
            localise(TextGuide(None, torch.randn(4)), VisualTokens(visual, visual, [(2, 2), (2, 2)]), [BOX], +1)

    def test_without_a_shared_space(self):
        with pytest.raises(ValueError, match="aligned is missing"):
            localise(TextGuide(None, torch.randn(4)), VisualTokens(torch.randn(4, 4), None, [(2, 2)]), [BOX], +1)


def pair(plus, minus):
    return Localisation({"global": plus}, {"global": 2.0}), Localisation({"global": minus}, {"global": 0.5})


class TestReport:
    @pytest.mark.parametrize("true_sign", SIGNS)
    def test_many_images_that_agree_make_sure(self, true_sign):
        scenes = [scene(true_sign, noise=1.0, seed=seed) for seed in range(12)]
        report = report_of([tuple(localise(*each, [BOX], sign) for sign in SIGNS) for each in scenes])
        assert report.sign == true_sign
        assert report.sure
        assert report.agreement == 1.0
        assert f"use sign {true_sign:+d}" in str(report)

    def test_images_that_disagree_do_not(self):
        report = report_of([pair(0.9, 0.1), pair(0.2, 0.8)] * 6)
        assert report.sign == +1
        assert report.margin == pytest.approx(0.1)
        low, high = report.interval
        assert low < 0 < high
        assert not report.sure
        assert "not sure: the interval contains 0" in str(report)

    def test_few_images_do_not(self):
        report = report_of([pair(0.9, 0.1)] * 3)
        assert not report.sure
        assert "give at least 8 images" in str(report)

    def test_means_are_over_images(self):
        report = report_of([pair(0.8, 0.2), pair(0.6, 0.4)])
        assert report.by_sign[+1].auc == pytest.approx({"global": 0.7})
        assert report.by_sign[-1].auc == pytest.approx({"global": 0.3})

    def test_it_is_the_same_each_time(self):
        pairs = [pair(0.1 * i, 0.5) for i in range(10)]
        assert report_of(pairs) == report_of(pairs)


class TestDiagnoseSign:
    @pytest.fixture
    def llava(self):
        """A LLaVA with 3×3 tokens per image, and its processor."""
        torch.manual_seed(0)
        size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        words = ["<unk>", "<image>", "USER:", "ASSISTANT:", "the", "red", "cup"]
        tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        config = LlavaConfig(
            vision_config=size | {"model_type": "clip_vision_model", "image_size": 42, "patch_size": 14},
            text_config=size | {"model_type": "llama", "vocab_size": len(words)},
            image_token_id=1,
        )
        processor = LlavaProcessor(
            CLIPImageProcessorPil(size={"shortest_edge": 42}, crop_size={"height": 42, "width": 42}),
            PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", extra_special_tokens=["<image>"]),
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template="USER: <image> {{ messages[0].content[1].text }} ASSISTANT:",
        )
        return LlavaForConditionalGeneration(config).eval(), processor

    @pytest.fixture
    def items(self):
        pixels = torch.randint(256, (4, 42, 42, 3), dtype=torch.uint8).numpy()
        return [(Image.fromarray(each), "the red cup", [BOX]) for each in pixels]

    def test_it_measures_the_models_own_tokens(self, llava, items):
        model, processor = llava
        guide = EmbeddingGuide(model.get_input_embeddings(), processor)
        report = eadp.diagnose_sign(model, processor, items, guide=guide)

        text, pairs = guide.encode("the red cup"), []
        for image, _, boxes in items:
            pixels = processor.image_processor(image, return_tensors="pt").pixel_values
            features = model.get_image_features(pixels).pooler_output[0].detach()
            tokens = VisualTokens(features, features, [(3, 3)])
            pairs.append(tuple(localise(text, tokens, boxes, sign) for sign in SIGNS))
        expected = report_of(pairs)
        assert report.by_sign == expected.by_sign
        assert report.interval == expected.interval
        assert report.guide_sign == -1

    def test_the_model_is_given_back(self, llava, items):
        model, processor = llava
        guide = EmbeddingGuide(model.get_input_embeddings(), processor)
        inputs = processor(images=[items[0][0]], text="USER: <image> the cup ASSISTANT:", return_tensors="pt")
        before = model(**inputs).logits
        eadp.diagnose_sign(model, processor, items, guide=guide)
        assert torch.equal(model(**inputs).logits, before)

    def test_a_prompt_of_ones_own(self, llava, items):
        model, processor = llava
        guide = EmbeddingGuide(model.get_input_embeddings(), processor)
        default = eadp.diagnose_sign(model, processor, items, guide=guide)
        processor.chat_template = None
        with pytest.raises(ValueError, match="pass prompt="):
            eadp.diagnose_sign(model, processor, items, guide=guide)
        own = eadp.diagnose_sign(model, processor, items, guide=guide, prompt=lambda phrase: f"<image> {phrase}")
        assert own == default

    def test_a_processor_that_crops_moves_the_boxes(self, llava):
        model, processor = llava
        guide = EmbeddingGuide(model.get_input_embeddings(), processor)
        with pytest.raises(ValueError, match="84×42 image by cropping or padding"):
            eadp.diagnose_sign(model, processor, [(Image.new("RGB", (84, 42)), "cup", [BOX])], guide=guide)

    def test_no_images(self, llava):
        model, processor = llava
        guide = EmbeddingGuide(model.get_input_embeddings(), processor)
        with pytest.raises(ValueError, match="there are no images"):
            eadp.diagnose_sign(model, processor, [], guide=guide)
