"""What a user is promised: settings, questions, budgets, clean endings, and clear words when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import tiny
import torch
from by_hand import answers
from PIL import Image
from prompts import IMAGES, every_family
from simple_methods import EverySecond, Guide, Nearest, Ragged
from torch import Tensor, nn

import eadp
from eadp.core import Selection, VisualTokens
from eadp.methods import Method
from eadp.runtime import before, ledger, positions

LLAVA = [[(28, 28)], [(28, 28), (28, 28)]]


def everything(model: nn.Module) -> dict[str, Any]:
    """All that could be left behind on a model."""
    left: dict[str, Any] = {}
    for name, module in model.named_modules():
        left[name] = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        left[name] |= {"marks": [key for key in vars(module) if "eadp" in key]}
        left[name] |= {"hooks": [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]}
        left[name] |= {"weights": [weight.data_ptr() for weight in module.parameters(recurse=False)]}
    return left


@every_family
def test_detaching_gives_the_model_back(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    tokens, logits = answers(model, **inputs)
    state = everything(model)
    pruned = eadp.attach(model, method=Ragged())
    answers(model, **inputs)
    pruned.detach()
    pruned.detach()
    left = everything(model)
    assert all(left[name].keys() == state[name].keys() for name in state)
    assert all(left[name][key] == state[name][key] for name in state for key in ("marks", "hooks", "weights"))
    again, again_logits = answers(model, **inputs)
    assert torch.equal(again, tokens)
    assert torch.equal(again_logits, logits)


def test_an_exception_in_the_block_detaches_too() -> None:
    model = tiny.model("llava")
    with pytest.raises(KeyError), eadp.attach(model, method=EverySecond()):
        raise KeyError
    assert not [key for module in model.modules() for key in vars(module) if "eadp" in key]


def test_an_exception_in_forward_leaves_nothing_for_the_next_call() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    text = model.model.language_model
    with eadp.attach(model, method=Ragged()):
        _, logits = answers(model, **inputs)
        handle = text.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(**inputs)
        handle.remove()
        plain = model(input_ids=torch.tensor([[5, 6, 7]])).logits
        assert torch.equal(answers(model, **inputs)[1], logits)
    assert torch.equal(model(input_ids=torch.tensor([[5, 6, 7]])).logits, plain)


def test_attaching_twice_is_an_error() -> None:
    model = tiny.model("llava")
    with eadp.attach(model, method=EverySecond()), pytest.raises(RuntimeError, match="already"):
        eadp.attach(model, method=EverySecond())


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"method": "nothing"}, ValueError, "unknown method"),
        ({"method": EverySecond(), "beta": 3}, TypeError, "no setting beta"),
        ({"method": EverySecond(), "keep": 0}, ValueError, "at least 1"),
        ({"method": EverySecond(), "positions": "middle"}, ValueError, "positions"),
        ({"method": EverySecond(), "budget_over": "batch"}, ValueError, "budget_over"),
        ({"method": Nearest(keep=4)}, ValueError, "processor"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        eadp.attach(tiny.model("llava"), **settings)
    with eadp.attach(tiny.model("llava"), method=EverySecond()):
        pass


def test_models_of_no_family_are_refused() -> None:
    with pytest.raises(ValueError, match="llava_next"):
        eadp.attach(nn.Linear(2, 2), method=EverySecond())


@dataclass(frozen=True)
class First(Method):
    """Keeps the first `keep` tokens."""

    name = "test_first"
    paper = "none"

    def select(self, tokens: VisualTokens, text: Any = None) -> Selection:
        assert text is None
        assert tokens.aligned is None
        n = len(tokens)
        return Selection(torch.arange(self.budget(n)), n, self.name, scores=torch.arange(float(n)))


def test_keep_is_a_count_a_share_or_more_than_there_is() -> None:
    model, inputs = tiny.model("qwen2_5_vl"), tiny.inputs("qwen2_5_vl", [[(16, 24)], [(24, 32), (16, 16)]])

    def kept(**settings: Any) -> list[int]:
        with eadp.attach(model, method=First(), **settings) as pruned:
            model(**inputs)
            return [len(selection) for selection in pruned.last]

    assert kept(keep=3) == [3, 3, 3]
    assert kept(keep=0.5) == [3, 6, 2]
    assert kept(keep=5) == [5, 5, 4]
    assert kept(keep=100) == [6, 12, 4]
    assert kept(keep=8, budget_over="prompt") == [6, 8, 0]
    assert kept(keep=14, budget_over="prompt") == [6, 12, 2]
    logits = model(**inputs).logits
    with eadp.attach(model, method=First(keep=100)):
        assert torch.equal(model(**inputs).logits, logits)


def test_one_budget_over_a_prompt_is_told_image_by_image() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[1:])
    with eadp.attach(model, method=First(keep=20), budget_over="prompt") as pruned:
        model(**inputs)
    one, two = pruned.last
    assert (one.total, two.total) == (16, 16)
    assert one.indices.tolist() == list(range(16))
    assert two.indices.tolist() == list(range(4))
    assert two.scores.tolist() == list(range(16, 32))
    assert "one budget over 2 images" in two.notes[-1]


@pytest.mark.parametrize(("family", "space"), [("llava", "tower"), ("llava_next", "tower"), ("qwen2_5_vl", "language")])
def test_the_question_decides(family: str, space: str) -> None:
    model, inputs, guide = tiny.model(family), tiny.inputs(family, IMAGES[family]), Guide(space)
    with eadp.attach(model, method=Nearest(keep=3), guide=guide, question="where is the cat?") as pruned:
        model(**inputs)
        cat = [selection.indices.tolist() for selection in pruned.last]
        with pruned.asking("and the dog?"):
            model(**inputs)
            dog = [selection.indices.tolist() for selection in pruned.last]
        with pruned.asking(["where is the cat?", "and the dog?"]):
            model(**inputs)
        images = len(IMAGES[family][0])
        assert [selection.indices.tolist() for selection in pruned.last] == [*cat[:images], *dog[images:]]
        with pytest.raises(ValueError, match="more prompts"), pruned.asking(["only one"]):
            model(**inputs)
        model(**inputs)
        assert [selection.indices.tolist() for selection in pruned.last] == cat
    assert cat != dog
    assert all(len(kept) == 3 for kept in cat)
    assert guide.asked[:2] == ["where is the cat?"] * 2


def test_a_function_reads_the_question_from_ids_without_padding() -> None:
    model, inputs, heard = tiny.model("llava"), tiny.inputs("llava", LLAVA), []

    def question(ids: Tensor) -> str:
        heard.append(ids.tolist())
        return "what?"

    with eadp.attach(model, method=Nearest(keep=3), guide=Guide("language"), question=question):
        model.generate(**inputs, max_new_tokens=1, num_beams=2)
    rows = zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
    assert heard == [ids[mask.bool()].tolist() for ids, mask in rows]


def test_a_question_nobody_gave_is_an_error() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    with eadp.attach(model, method=Nearest(keep=3), guide=Guide("tower")) as pruned:
        with pytest.raises(ValueError, match="asking"):
            model(**inputs)
        with pruned.asking("what?"):
            model(**inputs)


def test_a_tower_guide_on_a_model_without_such_states_is_an_error() -> None:
    model, inputs = tiny.model("qwen3_vl"), tiny.inputs("qwen3_vl", IMAGES["qwen3_vl"])
    with (
        eadp.attach(model, method=Nearest(keep=3), guide=Guide("tower"), question="what?"),
        pytest.raises(ValueError, match="EmbeddingGuide"),
    ):
        model(**inputs)


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (Selection(torch.tensor([3, 1]), 16, "bad"), "sorted"),
        (Selection(torch.tensor([], dtype=torch.long), 16, "bad"), "at least one"),
        (Selection(torch.tensor([1, 99]), 16, "bad"), "outside"),
        (Selection(torch.tensor([1, 2]), 12, "bad"), "given 16"),
        (Selection(torch.tensor([1, 2]), 16, "bad", merge=torch.ones(2, 3)), "2×16"),
    ],
)
def test_selections_that_cannot_be_carried_out(selection: Selection, says: str) -> None:
    @dataclass(frozen=True)
    class Bad(EverySecond):
        def select(self, tokens: VisualTokens, text: Any = None) -> Selection:
            return selection

    with eadp.attach(tiny.model("llava"), method=Bad()), pytest.raises(ValueError, match=says):
        tiny.model("llava")(**tiny.inputs("llava", LLAVA))


def test_newlines_of_empty_rows_go_unless_they_are_kept() -> None:
    model, inputs = tiny.model("llava_next"), tiny.inputs("llava_next", [[(30, 50)]])
    placeholders = inputs["input_ids"] == model.config.image_token_id
    for keep_newlines, rows in ((False, 1), (True, 4)):
        with eadp.attach(model, method=First(keep=18), keep_newlines=keep_newlines) as pruned:
            model(**inputs)
        assert int(pruned.columns[placeholders].sum()) == 18 + rows


def test_prompts_as_embeddings() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    with eadp.attach(model, method=EverySecond()):
        logits = model(**inputs).logits
        embeddings = model.get_input_embeddings()(inputs["input_ids"])
        named = {name: inputs[name] for name in ("attention_mask", "pixel_values")}
        torch.testing.assert_close(model(inputs_embeds=embeddings, **named).logits, logits)


def test_hidden_states_keep_the_prompts_length() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    with eadp.attach(model, method=EverySecond()):
        out = model(**inputs, output_hidden_states=True)
    assert {states.shape[:2] for states in out.hidden_states} == {inputs["input_ids"].shape}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "gemma3"])
def test_bfloat16(family: str, attention: str) -> None:
    model = tiny.model(family, attention=attention)
    half = type(model)._from_config(model.config, dtype=torch.bfloat16, attn_implementation=attention).eval()
    half.load_state_dict(model.state_dict())
    half.generation_config = model.generation_config
    inputs = tiny.inputs(family, IMAGES[family])
    inputs = {key: value.bfloat16() if value.is_floating_point() else value for key, value in inputs.items()}
    with eadp.attach(half, method=EverySecond()):
        _, cached = answers(half, **inputs, max_new_tokens=2)
        _, uncached = answers(half, **inputs, max_new_tokens=2, use_cache=False)
    assert cached.isfinite().all()
    torch.testing.assert_close(cached, uncached, rtol=0.1, atol=0.2)


# What cannot be pruned says so.


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "gemma3", "paligemma"])
def test_a_new_image_where_the_cache_cannot_take_one(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:1])
    with eadp.attach(model, method=EverySecond()):
        cache = model(**inputs, use_cache=True).past_key_values
        with pytest.raises(ValueError, match="empty cache"):
            model(**inputs | {"attention_mask": inputs["attention_mask"].repeat(1, 2)}, past_key_values=cache)


def test_chunked_prefill() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="prefill_chunk_size"):
        model.generate(**inputs, max_new_tokens=2, prefill_chunk_size=8)


def test_packed_sequences_and_continuous_batching() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="continuous batching"):
        model(**inputs, cu_seq_lens_q=torch.tensor([0, 5]))
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="continuous batching"):
        model(**inputs, past_key_values=object())


def test_features_from_before_attaching() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    early = model.model.get_image_features(inputs.pop("pixel_values"), return_dict=True)
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="anew"):
        model(**inputs, mm_encoder_outputs={"image": early})


def test_a_pruned_cache_on_a_detached_model() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    with eadp.attach(model, method=EverySecond()):
        cache = model(**inputs, use_cache=True).past_key_values
    more = {"input_ids": torch.tensor([[5], [6]]), "attention_mask": torch.ones(2, inputs["input_ids"].shape[1] + 1)}
    with pytest.raises(RuntimeError, match="attach again"):
        model(**more, past_key_values=cache)
    with eadp.attach(model, method=EverySecond()):
        model(**more, past_key_values=cache)


def test_a_cache_that_is_reset_forgets() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    with eadp.attach(model, method=Ragged()):
        cache = model(**inputs, use_cache=True).past_key_values
        cache.reset()
        assert cache.get_seq_length() == 0
        fresh = model(**inputs, use_cache=True).logits
        torch.testing.assert_close(model(**inputs, past_key_values=cache).logits, fresh)


def test_core_and_methods_do_without_transformers() -> None:
    code = "import sys, eadp, eadp.core; assert 'transformers' not in sys.modules, 'transformers was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


# Each part of the mechanism is needed: without it the answer changes, or there is none.


def broken(model: nn.Module, inputs: dict[str, Tensor], **settings: Any) -> bool:
    """Whether answers with a cache are not those without."""
    with eadp.attach(model, method=Ragged(), **settings):
        _, right = answers(model, **inputs, use_cache=False)
        try:
            _, cached = answers(model, **inputs)
        except (RuntimeError, ValueError, IndexError):
            return True
    return not torch.allclose(cached, right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_control_without_mask_translation(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    assert not broken(model, inputs)
    monkeypatch.setattr(before, "continued", lambda mask, *_: mask)
    assert broken(model, inputs)


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_control_without_the_shift_of_repacked_positions(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    assert not broken(model, inputs, positions="repack")
    honest = positions.repacked
    monkeypatch.setattr(before, "repacked", lambda *args, **kwargs: (honest(*args, **kwargs)[0], None))
    assert broken(model, inputs, positions="repack")


def test_control_with_physical_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """`generate` slices the conversation by the length that the cache gives."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    ids = torch.cat([inputs["input_ids"], torch.tensor([[40, 41, 42]])], dim=1)

    def last_logits() -> Tensor:
        with eadp.attach(model, method=EverySecond()):
            cache = model(**inputs, use_cache=True).past_key_values
            return answers(model, input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache)[1]

    last_logits()
    monkeypatch.setattr(ledger._Ledgered, "get_seq_length", ledger._Ledgered.get_query_offset)
    with pytest.raises(ValueError, match="placeholders"):
        last_logits()


def test_control_with_gaps_in_the_counted_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stock masks read a gap as the border of a packed sequence."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    inputs.pop("attention_mask")
    with eadp.attach(model, method=EverySecond()):
        right = model(**inputs, use_cache=False).logits
        monkeypatch.setattr(before, "counting", lambda plan, start, device: plan.index)
        wrong = model(**inputs, use_cache=False).logits
    assert not torch.allclose(wrong[:, -1], right[:, -1], rtol=1e-2, atol=1e-2)


def test_control_without_forward_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    labels = inputs["input_ids"].masked_fill(inputs["input_ids"] >= 256, -100)
    monkeypatch.setattr(before.Compaction, "restore", lambda plan, states: states)
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="batch_size"):
        model(**inputs, labels=labels)


# Through the families' own processors.


def picture(height: int, width: int) -> Image.Image:
    generator = torch.Generator().manual_seed(height)
    return Image.fromarray((torch.rand(height, width, 3, generator=generator) * 255).byte().numpy())


@pytest.mark.parametrize(
    "family", [family for family in tiny.FAMILIES if family not in ("llava_next_video", "smolvlm", "paligemma")]
)
def test_processors_prompts_of_different_images(family: str) -> None:
    """Two conversations, padded by the processor, one image a message; batched as they are alone."""
    model, processor = tiny.model(family), tiny.processor(family)
    images = [picture(40, 60), picture(70, 30)]
    asked = [{"type": "image"}, {"type": "text", "text": "where is it?"}]
    text = processor.apply_chat_template([{"role": "user", "content": asked}], add_generation_prompt=True)

    def answer(*images: Image.Image) -> Tensor:
        nested = [[image] for image in images]
        inputs = processor(images=nested, text=[text] * len(images), padding=True, return_tensors="pt")
        return answers(model, **inputs, max_new_tokens=3)[1]

    with eadp.attach(model, method=Ragged()) as pruned:
        together = answer(*images)
        assert len(pruned.last) == 2
        torch.testing.assert_close(torch.cat([answer(image) for image in images]), together, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("image", ["no such file", Image.new("RGB", (0, 0))], ids=["missing", "empty"])
def test_a_processors_error_comes_through_and_the_model_can_be_detached(image: Any) -> None:
    model, processor = tiny.model("llava_next"), tiny.processor("llava_next")
    call = {"text": "<image> what?", "images": image}
    with pytest.raises(Exception, match=r".+") as plain:
        processor(**call, return_tensors="pt")
    with eadp.attach(model, method=EverySecond()), pytest.raises(plain.type) as pruned:
        processor(**call, return_tensors="pt")
    assert str(pruned.value) == str(plain.value)
    assert not [key for key in vars(model.model) if "eadp" in key]
