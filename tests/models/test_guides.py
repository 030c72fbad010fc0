"""Guides bring a question and visual tokens into one space, as their encoders do."""

import json
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from torch import nn
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    SiglipConfig,
    SiglipModel,
)

from eadp.models.guides import CLIPGuide, EmbeddingGuide, SiglipGuide, guide_for
from eadp.models.guides.loading import checkpoint_of
from eadp.models.guides.pieces import MID_WORD, NEW_WORD, Pieces, pieces_of

QUESTION = "Is the red cup left of the dog?"
TINY = {"intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TOWER = TINY | {"hidden_size": 16, "image_size": 28, "patch_size": 14}
LENGTH = 24


@pytest.fixture(scope="module")
def clip_tokenizer():
    """CLIP's tokenizer class with a vocabulary of bytes, a few words, BOS and EOS."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("t", "h"),
        ("th", "e</w>"),
        ("d", "o"),
        ("do", "g</w>"),
        ("c", "u"),
        ("cu", "p</w>"),
        ("r", "e"),
        ("re", "d</w>"),
    ]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges)]
    vocabulary = {token: i for i, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocabulary, merges=merges)


@pytest.fixture(scope="module")
def clip(clip_tokenizer):
    return tiny_clip(clip_tokenizer)


def tiny_clip(tokenizer, eos=None):
    torch.manual_seed(0)
    text = TINY | {
        "hidden_size": 12,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": LENGTH,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id if eos is None else eos,
    }
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=TOWER, projection_dim=10)).eval()
    for module in model.modules():  # Fresh norms are the identity: a forgotten one would not be seen.
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return model


def clip_guide(clip, tokenizer, **options):
    return CLIPGuide(
        text_model=clip.text_model,
        text_projection=clip.text_projection,
        visual_projection=clip.visual_projection,
        post_layernorm=clip.vision_model.post_layernorm,
        tokenizer=tokenizer,
        **options,
    )


@pytest.fixture(scope="module")
def unigram_tokenizer():
    """Bytes with spaces, "</s>" as EOS and padding, no BOS, as in SigLIP."""
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>")


@pytest.fixture(scope="module")
def siglip(unigram_tokenizer):
    torch.manual_seed(1)
    text = TINY | {"hidden_size": 16, "vocab_size": len(unigram_tokenizer), "max_position_embeddings": LENGTH}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=TOWER)).eval()
    nn.init.uniform_(model.vision_model.post_layernorm.weight, 0.5, 1.5)
    return model


def siglip_guide(siglip, tokenizer, **options):
    norm = siglip.vision_model.post_layernorm
    return SiglipGuide(text_model=siglip.text_model, post_layernorm=norm, tokenizer=tokenizer, **options)


@contextmanager
def encoded_shapes(text_model):
    """Collect the shape of the ids in each call of a text encoder."""
    shapes = []
    hook = text_model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        yield shapes
    finally:
        hook.remove()


def as_list(tensors):
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


class TestCLIP:
    @pytest.mark.parametrize("question", ["the dog", "红 🐕", "the", ""])
    def test_pools_as_clip_does(self, clip, clip_tokenizer, question):
        expected = clip.get_text_features(**clip_tokenizer(question, return_tensors="pt")).pooler_output[0]
        torch.testing.assert_close(
            clip_guide(clip, clip_tokenizer).encode(question).pooled, expected, atol=1e-6, rtol=0
        )

    def test_pools_as_clip_does_with_the_legacy_eos(self, clip_tokenizer):
        clip = tiny_clip(clip_tokenizer, eos=2)
        expected = clip.get_text_features(**clip_tokenizer("the dog", return_tensors="pt")).pooler_output[0]
        pooled = clip_guide(clip, clip_tokenizer).encode("the dog").pooled
        torch.testing.assert_close(pooled, expected, atol=1e-6, rtol=0)

    def test_tokens_are_the_projected_last_hidden_state_without_bos_and_eos(self, clip, clip_tokenizer):
        states = clip.text_model(**clip_tokenizer("the red cup", return_tensors="pt")).last_hidden_state[0]
        guide = clip_guide(clip, clip_tokenizer).encode("the red cup")
        assert guide.words == ("the", "red", "cup")
        torch.testing.assert_close(guide.tokens, clip.text_projection(states)[1:-1], atol=1e-6, rtol=0)

    def test_slots_are_the_whole_sequence_filled_with_id_0(self, clip, clip_tokenizer):
        ids = clip_tokenizer("the dog", return_tensors="pt").input_ids
        fill = torch.zeros(1, LENGTH - ids.shape[1], dtype=torch.long)
        mask = torch.cat([torch.ones_like(ids), fill], 1)
        states = clip.text_model(input_ids=torch.cat([ids, fill], 1), attention_mask=mask).last_hidden_state
        guide = clip_guide(clip, clip_tokenizer).encode("the dog", "slots")
        torch.testing.assert_close(guide.tokens[0], clip.text_projection(states)[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(guide.pooled[0], clip_guide(clip, clip_tokenizer).encode("the dog").pooled)
        assert len(guide.words) == LENGTH
        assert guide.words[1:3] == ("the", "dog")
        assert set(guide.words[4:]) == {"·"}

    def test_slots_of_a_long_prompt_are_split_at_the_encoders_length(self, clip, clip_tokenizer):
        question = "the red cup dog " * 9
        guide = clip_guide(clip, clip_tokenizer).encode(question, "slots")
        whole = clip_tokenizer(question).input_ids
        second = torch.tensor([whole[LENGTH:] + [0] * (2 * LENGTH - len(whole))])
        mask = (torch.arange(LENGTH) < len(whole) - LENGTH).long()[None]
        states = clip.text_model(input_ids=second, attention_mask=mask).last_hidden_state
        assert [len(tokens) for tokens in guide.tokens] == [LENGTH, LENGTH]
        torch.testing.assert_close(guide.tokens[1], clip.text_projection(states)[0], atol=1e-6, rtol=0)

    def test_a_truncated_prompt_loses_its_end(self, clip, clip_tokenizer):
        question = "the red cup dog " * 9
        ids = clip_tokenizer(question, truncation=True, max_length=LENGTH, return_tensors="pt")
        states = clip.text_model(**ids).last_hidden_state[0]
        guide = clip_guide(clip, clip_tokenizer).encode(question, "truncated")
        torch.testing.assert_close(guide.tokens, clip.text_projection(states)[1:-1], atol=1e-6, rtol=0)
        assert len(guide.words) == LENGTH - 2

    def test_a_long_prompt_is_cut_into_segments_with_their_own_bos_and_eos(self, clip, clip_tokenizer):
        question = "the red cup dog " * 9
        guide = clip_guide(clip, clip_tokenizer).encode(question)
        assert [len(tokens) for tokens in guide.tokens] == [22, 14]
        assert len(guide.words) == 36
        halves = [" ".join(guide.words[:22]), " ".join(guide.words[22:])]
        for half, tokens, pooled in zip(halves, guide.tokens, guide.pooled, strict=True):
            alone = clip_guide(clip, clip_tokenizer).encode(half)
            torch.testing.assert_close(tokens, alone.tokens, atol=1e-6, rtol=0)
            torch.testing.assert_close(pooled, alone.pooled, atol=1e-6, rtol=0)

    @pytest.mark.parametrize("layout", ["words", "truncated"])
    @pytest.mark.parametrize("question", ["the red cup", "", "the red cup dog " * 9])
    def test_only_the_questions_own_slots_are_encoded(self, clip, clip_tokenizer, question, layout):
        guide, padded = clip_guide(clip, clip_tokenizer), clip_guide(clip, clip_tokenizer)
        with encoded_shapes(clip.text_model) as shapes:
            found = guide.encode(question, layout)
        lengths = [len(tokens) + 2 for tokens in as_list(found.tokens)]
        assert shapes == [(len(lengths), max(lengths))]
        # As before: every segment padded to the full length, and padding masked.
        pad = padded._pad
        padded._pad = lambda rows, padding, length: pad(rows, padding, LENGTH)
        states = padded._states
        real = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
        padded._states = lambda ids, _: states(ids, real)
        expected = padded.encode(question, layout)
        assert found.words == expected.words
        for ours, theirs in ((found.tokens, expected.tokens), (found.pooled, expected.pooled)):
            for one, other in zip(as_list(ours), as_list(theirs), strict=True):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=0)

    def test_slots_that_count_as_words_are_all_encoded(self, clip, clip_tokenizer):
        with encoded_shapes(clip.text_model) as shapes:
            clip_guide(clip, clip_tokenizer).encode("the dog", "slots")
        assert shapes == [(1, LENGTH)]

    def test_a_prompt_that_just_fits_is_one_segment(self, clip, clip_tokenizer):
        assert clip_guide(clip, clip_tokenizer).encode("the " * (LENGTH - 2)).tokens.shape == (LENGTH - 2, 10)

    def test_aligns_through_the_towers_norm_and_clips_projection(self, clip, clip_tokenizer):
        states = torch.randn(2, 4, 16)
        expected = clip.visual_projection(clip.vision_model.post_layernorm(states))
        torch.testing.assert_close(clip_guide(clip, clip_tokenizer).align(states), expected)

    def test_aligned_cls_is_clips_image_embedding(self, clip, clip_tokenizer):
        pixels = torch.randn(1, 3, 28, 28)
        states = clip.vision_model(pixels).last_hidden_state
        expected = clip.get_image_features(pixels).pooler_output
        torch.testing.assert_close(clip_guide(clip, clip_tokenizer).align(states)[:, 0], expected)

    def test_a_foreign_tokenizer_is_refused(self, clip_tokenizer):
        clip = tiny_clip(clip_tokenizer, eos=5)
        with pytest.raises(ValueError, match="pools at token 5"):
            clip_guide(clip, clip_tokenizer)

    def test_a_foreign_tower_is_refused(self, clip, clip_tokenizer):
        with pytest.raises(ValueError, match="tower has 20 channels, but CLIP's visual_projection takes 16"):
            CLIPGuide(
                text_model=clip.text_model,
                text_projection=clip.text_projection,
                visual_projection=clip.visual_projection,
                post_layernorm=nn.LayerNorm(20),
                tokenizer=clip_tokenizer,
            )


class TestSiglip:
    def test_encodes_as_siglip_does(self, siglip, unigram_tokenizer):
        ids = unigram_tokenizer("a dog</s>", padding="max_length", max_length=LENGTH, return_tensors="pt").input_ids
        expected = siglip.text_model(ids)
        guide = siglip_guide(siglip, unigram_tokenizer).encode("a dog")
        torch.testing.assert_close(guide.pooled, expected.pooler_output[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(guide.tokens, expected.last_hidden_state[0, :5], atol=1e-6, rtol=0)
        slots = siglip_guide(siglip, unigram_tokenizer).encode("a dog", "slots")
        torch.testing.assert_close(slots.tokens[0], expected.last_hidden_state[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(slots.pooled[0], expected.pooler_output[0], atol=1e-6, rtol=0)

    @pytest.mark.parametrize("layout", ["words", "slots"])
    def test_a_new_question_takes_all_slots_and_one_seen_before_takes_none(self, siglip, unigram_tokenizer, layout):
        guide = siglip_guide(siglip, unigram_tokenizer)
        with encoded_shapes(siglip.text_model) as shapes:
            guide.encode("a dog", layout)
            guide.encode(" a dog", layout)
        assert shapes == [(1, LENGTH)]

    def test_slots_that_are_too_many_are_dropped_but_for_the_end(self, siglip, unigram_tokenizer):
        guide = siglip_guide(siglip, unigram_tokenizer).encode("x" * 40, "slots")
        assert [len(tokens) for tokens in guide.tokens] == [LENGTH]

    def test_segments_leave_one_slot_to_end_with(self, siglip, unigram_tokenizer):
        guide = siglip_guide(siglip, unigram_tokenizer).encode("x" * 40)
        assert [len(tokens) for tokens in guide.tokens] == [23, 17]

    def test_aligns_the_rows_that_the_model_reads(self, siglip, unigram_tokenizer):
        output = siglip.vision_model(torch.randn(1, 3, 28, 28), output_hidden_states=True)
        before_norm = output.hidden_states[-1]  # What LLaVA-OneVision hands to its projector.
        assert torch.equal(siglip_guide(siglip, unigram_tokenizer).align(before_norm), before_norm)
        normalised = siglip_guide(siglip, unigram_tokenizer, normalised=True)
        torch.testing.assert_close(normalised.align(before_norm), output.last_hidden_state)

    def test_a_foreign_tower_is_refused(self, siglip, unigram_tokenizer):
        with pytest.raises(ValueError, match="tower has 20 channels, but SigLIP's text encoder has 16"):
            SiglipGuide(text_model=siglip.text_model, post_layernorm=nn.LayerNorm(20), tokenizer=unigram_tokenizer)


class TestEmbedding:
    def test_tokens_and_their_mean(self, unigram_tokenizer):
        embeddings = nn.Embedding(len(unigram_tokenizer), 8)
        guide = EmbeddingGuide(embeddings, unigram_tokenizer).encode("a dog")
        expected = embeddings(torch.tensor(unigram_tokenizer("a dog").input_ids))
        assert torch.equal(guide.tokens, expected)
        torch.testing.assert_close(guide.pooled, expected.mean(0))
        assert not guide.tokens.requires_grad

    def test_align_is_identity(self, unigram_tokenizer):
        states = torch.randn(3, 8, requires_grad=True)
        assert EmbeddingGuide(nn.Embedding(300, 8), unigram_tokenizer).align(states) is states

    def test_an_empty_question_has_nothing_to_pool(self, unigram_tokenizer):
        guide = EmbeddingGuide(nn.Embedding(300, 8), unigram_tokenizer).encode("")
        assert guide.tokens.shape == (0, 8)
        assert guide.pooled is None

    def test_an_update_of_the_embeddings_is_noticed(self, unigram_tokenizer):
        embeddings = nn.Embedding(len(unigram_tokenizer), 8)
        guide = EmbeddingGuide(embeddings, unigram_tokenizer)
        before = guide.encode("dog").tokens
        with torch.no_grad():
            embeddings.weight.add_(1.0)
        torch.testing.assert_close(guide.encode("dog").tokens, before + 1)

    def test_no_processor(self):
        with pytest.raises(ValueError, match="pass processor="):
            EmbeddingGuide(nn.Embedding(300, 8), None)


@pytest.fixture(params=["clip", "siglip", "embedding"])
def guide(request, clip, clip_tokenizer, siglip, unigram_tokenizer):
    if request.param == "clip":
        return clip_guide(clip, clip_tokenizer)
    if request.param == "siglip":
        return siglip_guide(siglip, unigram_tokenizer)
    return EmbeddingGuide(nn.Embedding(len(unigram_tokenizer), 16), unigram_tokenizer)


class TestEveryGuide:
    def test_whitespace_is_an_empty_question(self, guide):
        empty = guide.encode(" \n\t")
        assert len(empty.tokens) == 0
        assert empty.words == ()
        assert empty is guide.encode("")

    def test_a_question_is_encoded_once(self, guide):
        assert guide.encode("the dog") is guide.encode("the dog ")

    def test_few_questions_are_remembered(self, guide):
        first = guide.encode("dog 0")
        for i in range(40):
            guide.encode(f"dog {i + 1}")
        assert guide.encode("dog 0") is not first

    def test_an_encoding_made_in_inference_mode_can_be_used_with_autograd(self, guide):
        with torch.inference_mode():
            encoded = guide.encode("the dog")
        assert not encoded.tokens.is_inference()
        weight = torch.ones(encoded.tokens.shape[-1], requires_grad=True)
        (encoded.tokens @ weight).sum().backward()
        torch.testing.assert_close(weight.grad, encoded.tokens.sum(0))

    def test_another_sign(self, guide):
        before = guide.encode("the dog")
        guide.sign = -guide.sign
        assert guide.encode("the dog").sign == -before.sign

    def test_a_question_must_be_text(self, guide):
        with pytest.raises(TypeError, match="must be a string, got list"):
            guide.encode(["the dog"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_guide_follows_its_model_to_another_dtype(clip_tokenizer, dtype):
    clip = tiny_clip(clip_tokenizer)
    guide = clip_guide(clip, clip_tokenizer)
    before, states = guide.encode("the dog"), torch.randn(4, 16)
    aligned = guide.align(states)
    clip.vision_model.to(dtype)
    after = guide.encode("the dog")
    assert after.tokens.dtype == after.pooled.dtype == guide.align(states).dtype == dtype
    torch.testing.assert_close(after.tokens.float(), before.tokens, atol=0.1, rtol=0)
    torch.testing.assert_close(guide.align(states).float(), aligned, atol=0.1, rtol=0)


def test_a_guide_does_not_follow_an_offloaded_tower(clip_tokenizer):
    clip = tiny_clip(clip_tokenizer)
    guide = clip_guide(clip, clip_tokenizer)
    before = guide.encode("the dog")
    clip.vision_model.to("meta")
    assert torch.equal(guide.encode("the dog").tokens, before.tokens)


def test_signs_are_the_encoders_own(clip, clip_tokenizer, siglip, unigram_tokenizer):
    assert clip_guide(clip, clip_tokenizer).sign == -1
    assert siglip_guide(siglip, unigram_tokenizer).sign == -1
    assert EmbeddingGuide(nn.Embedding(300, 8), unigram_tokenizer).sign == -1
    assert clip_guide(clip, clip_tokenizer, sign=1).encode("dog").sign == 1


def test_a_sign_is_plus_or_minus_one(clip, clip_tokenizer):
    with pytest.raises(ValueError, match="sign must be"):
        clip_guide(clip, clip_tokenizer, sign=0.5)


class TestPieces:
    def test_words_read_as_they_were_written(self, clip_tokenizer):
        assert pieces_of("The  red\ncup", clip_tokenizer).words == ["The", "red", "cup"]

    def test_bytes_of_one_character_all_read_as_it(self, clip_tokenizer):
        words = pieces_of("红 🐕 é", clip_tokenizer).words
        assert set(words) == {"红", "🐕", "é"}
        assert words == sorted(words, key=["红", "🐕", "é"].index)

    def test_line_breaks_are_readable(self, unigram_tokenizer):
        assert pieces_of("a\nb", unigram_tokenizer).words == ["a", "\\n", "b"]

    def test_a_spelled_out_eos_is_no_word(self, clip_tokenizer):
        assert pieces_of("the <|endoftext|> dog", clip_tokenizer).words == ["the", "dog"]

    def test_sentencepiece_without_offsets(self):
        class Slow:
            is_fast, bos_token_id, eos_token_id = False, None, 1

            def __call__(self, text, **_):
                return {"input_ids": [5, 6, 7]}

            def convert_ids_to_tokens(self, ids):
                return ["▁red", "▁cu", "p"]

        pieces = pieces_of("red cup", Slow())
        assert pieces.words == ["red", "cu", "p"]
        assert pieces.seams == [NEW_WORD, NEW_WORD, MID_WORD]

    def test_cuts_at_word_ends(self, clip_tokenizer):
        pieces = pieces_of("abcd efgh ijkl", clip_tokenizer)
        assert [pieces.ids[span] for span in pieces.segments(6)] == [pieces.ids[:4], pieces.ids[4:8], pieces.ids[8:]]

    def test_cuts_a_long_word_between_characters(self, clip_tokenizer):
        pieces = pieces_of("红色的杯子", clip_tokenizer)
        assert len(pieces.ids) == 15
        assert [len(pieces.ids[span]) for span in pieces.segments(8)] == [6, 6, 3]

    def test_an_early_word_end_does_not_make_a_short_segment(self):
        pieces = Pieces(list(range(12)), ["w"] * 12, [NEW_WORD, NEW_WORD, *[MID_WORD] * 10])
        assert pieces.segments(8) == [slice(0, 8), slice(8, 12)]


def tiny_llava(clip):
    text = TINY | {"model_type": "llama", "hidden_size": 16, "vocab_size": 600}
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=clip.config.vision_config, text_config=text))
    model.model.vision_tower.load_state_dict(clip.vision_model.state_dict())
    return model.eval()


@pytest.fixture(scope="module")
def clip_folder(clip, clip_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    clip.save_pretrained(folder)
    clip_tokenizer.save_pretrained(folder)
    return str(folder)


class TestGuideFor:
    def test_llava_gets_clip_from_a_folder(self, clip, clip_tokenizer, clip_folder, recwarn):
        model = tiny_llava(clip)
        guide = guide_for(model, None, clip_folder)
        assert isinstance(guide, CLIPGuide)
        assert guide.space == "tower"
        assert guide.post_layernorm is model.model.vision_tower.post_layernorm
        assert not hasattr(guide, "vision_model")
        expected = clip_guide(clip, clip_tokenizer)
        torch.testing.assert_close(guide.encode(QUESTION).tokens, expected.encode(QUESTION).tokens)
        states = torch.randn(4, 16)
        torch.testing.assert_close(guide.align(states), expected.align(states))
        assert not [warning for warning in recwarn if "post_layernorm" in str(warning.message)]

    def test_a_model_with_a_text_encoder_in_its_folder_needs_no_checkpoint(self, clip, clip_tokenizer, tmp_path):
        tiny_llava(clip).save_pretrained(tmp_path)
        parts = ("text_model.", "text_projection.", "visual_projection.")
        weights = {name: value for name, value in clip.state_dict().items() if name.startswith(parts)}
        save_file(weights, tmp_path / "clip_text.safetensors")
        (tmp_path / "clip_text.json").write_text(json.dumps({**clip.config.text_config.to_dict(), "sign": 1.0}))
        model = LlavaForConditionalGeneration.from_pretrained(tmp_path)
        guide = guide_for(model, clip_tokenizer)
        expected = clip_guide(clip, clip_tokenizer)
        torch.testing.assert_close(guide.encode(QUESTION).tokens, expected.encode(QUESTION).tokens)
        torch.testing.assert_close(guide.encode(QUESTION).pooled, expected.encode(QUESTION).pooled)
        assert guide.sign == 1
        assert guide_for(model, clip_tokenizer, sign=-1).sign == -1

    def test_loads_in_the_models_dtype(self, clip, clip_folder):
        guide = guide_for(tiny_llava(clip).to(torch.bfloat16), None, clip_folder)
        assert guide.encode(QUESTION).pooled.dtype == torch.bfloat16

    def test_onevision_gets_siglip_from_a_folder(self, siglip, unigram_tokenizer, tmp_path):
        siglip.save_pretrained(tmp_path)
        unigram_tokenizer.save_pretrained(tmp_path)
        text = TINY | {"model_type": "qwen2", "hidden_size": 16, "vocab_size": 600, "num_key_value_heads": 2}
        vision = siglip.config.vision_config.to_dict() | {"vision_use_head": False}
        model = LlavaOnevisionForConditionalGeneration(LlavaOnevisionConfig(vision_config=vision, text_config=text))
        model.model.vision_tower.load_state_dict(siglip.vision_model.state_dict(), strict=False)
        guide = guide_for(model, None, str(tmp_path))
        assert isinstance(guide, SiglipGuide)
        expected = siglip_guide(siglip, unigram_tokenizer).encode("a dog")
        torch.testing.assert_close(guide.encode("a dog").pooled, expected.pooled)

    def test_other_families_get_their_own_embeddings(self, unigram_tokenizer):
        model = EmbeddingModel(Qwen2_5_VLConfig())
        guide = guide_for(model, unigram_tokenizer, sign=-1)
        assert isinstance(guide, EmbeddingGuide)
        assert guide.space == "language"
        assert guide.embeddings is model.get_input_embeddings()
        assert guide.sign == -1

    def test_a_checkpoint_for_a_model_without_text_encoder_is_refused(self, unigram_tokenizer):
        with pytest.raises(ValueError, match="qwen2_5_vl is guided by its own input embeddings"):
            guide_for(EmbeddingModel(Qwen2_5_VLConfig()), unigram_tokenizer, "openai/clip")

    def test_an_unknown_tower_needs_a_checkpoint(self, clip):
        with pytest.raises(ValueError, match="no known checkpoint has a clip_vision_model of 16 channels"):
            guide_for(tiny_llava(clip), None)

    def test_a_checkpoint_that_is_not_there(self, clip):
        with pytest.raises(OSError, match="there is no text encoder at 'nobody/nothing': give attach's guide="):
            guide_for(tiny_llava(clip), None, "nobody/nothing")

    def test_a_checkpoint_of_another_kind(self, clip, siglip, tmp_path):
        siglip.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="is a siglip checkpoint, but the vision tower is clip's"):
            guide_for(tiny_llava(clip), None, str(tmp_path))

    def test_a_pickled_checkpoint_is_not_read(self, clip, clip_tokenizer, tmp_path):
        clip.config.save_pretrained(tmp_path)
        clip_tokenizer.save_pretrained(tmp_path)
        torch.save(clip.state_dict(), tmp_path / "pytorch_model.bin")
        with pytest.raises(OSError, match="could not be loaded: give attach's guide="):
            guide_for(tiny_llava(clip), None, str(tmp_path))

    def test_a_checkpoint_that_lacks_weights(self, clip, clip_tokenizer, tmp_path):
        weights = {name: value for name, value in clip.state_dict().items() if "visual_projection" not in name}
        clip.save_pretrained(tmp_path, state_dict=weights)
        clip_tokenizer.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=r"lacks visual_projection\.weight"):
            guide_for(tiny_llava(clip), None, str(tmp_path))

    def test_a_wrapped_model(self, clip, clip_folder):
        class Adapter(nn.Module):
            def __init__(self, model):
                super().__init__()
                self.config, self.base_model = model.config, model

        model = tiny_llava(clip)
        assert guide_for(Adapter(model), None, clip_folder).post_layernorm is model.model.vision_tower.post_layernorm

    def test_a_checkpoint_without_tokenizer(self, clip, tmp_path):
        clip.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="the checkpoint has no tokenizer files"):
            guide_for(tiny_llava(clip), None, str(tmp_path))

    def test_a_tower_of_another_width(self, clip, clip_folder):
        model = tiny_llava(clip)
        model.model.vision_tower.post_layernorm = nn.LayerNorm(20)
        with pytest.raises(ValueError, match="tower has 20 channels"):
            guide_for(model, None, clip_folder)

    def test_a_tower_from_elsewhere_is_warned_about(self, clip, clip_folder):
        model = tiny_llava(clip)
        nn.init.ones_(model.model.vision_tower.post_layernorm.weight)
        with pytest.warns(UserWarning, match="does not come from"):
            guide_for(model, None, clip_folder)


class EmbeddingModel(nn.Module):
    """A model of which only the configuration and the input embeddings are used."""

    def __init__(self, config):
        super().__init__()
        self.config, self.embeddings = config, nn.Embedding(300, 8)

    def get_input_embeddings(self):
        return self.embeddings


@pytest.mark.parametrize(
    ("config", "checkpoint"),
    [
        (LlavaConfig(), "openai/clip-vit-large-patch14-336"),
        (LlavaNextConfig(), "openai/clip-vit-large-patch14-336"),
        (LlavaOnevisionConfig(), "google/siglip-so400m-patch14-384"),
    ],
)
def test_the_checkpoint_that_a_real_tower_came_from(config, checkpoint):
    assert checkpoint_of(config.vision_config) == checkpoint
