"""What users can rely on: settings, questions, budgets, a restored model, and clear errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.manual_pruning import answers
from helpers.prompts import IMAGES, every_family
from helpers.simple_methods import EverySecond, Guide, Nearest, Ragged
from torch import Tensor, nn

import eadp
from eadp.core import Selection, VisualTokens
from eadp.methods import BeforeMethod

LLAVA = [[(28, 28)], [(28, 28), (28, 28)]]


def everything(model: nn.Module) -> dict[str, Any]:
    """Everything that pruning could leave on a model."""
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
        ({"method": EverySecond(), "beta": 3}, ValueError, "test_every_second has no setting beta; it has keep, step"),
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


def test_methods_that_ask_for_more() -> None:
    demanding = type("Demanding", (EverySecond,), {"needs": frozenset({"language_attention"})})
    with pytest.raises(ValueError, match="language_attention"):
        eadp.attach(tiny.model("llava"), method=demanding())


def test_a_method_prunes_before_the_language_model_or_inside_it() -> None:
    class Neither(eadp.Method):
        name = "test_neither"

    with pytest.raises(TypeError, match="a BeforeMethod or an InsideMethod, which Neither is not"):
        eadp.attach(tiny.model("llava"), method=Neither())


def test_a_model_is_detached_without_its_handle() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", [[(56, 56)]])
    original = model(**inputs).logits
    eadp.attach(model, method=EverySecond())
    assert not torch.equal(model(**inputs).logits, original)
    eadp.detach(model)
    assert torch.equal(model(**inputs).logits, original)
    with pytest.raises(RuntimeError, match="this model is not being pruned"):
        eadp.detach(model)


def test_no_pruning_leaves_every_logit_as_it_was() -> None:
    model, inputs = tiny.model("llava_next"), tiny.inputs("llava_next", [[(56, 56)], [(28, 56)]])
    original = model(**inputs).logits
    with eadp.attach(model, method="none") as pruned:
        assert torch.equal(model(**inputs).logits, original)
        assert all(len(each) == each.total for each in pruned.last)
        assert [each.method for each in pruned.last] == ["none", "none"]


def test_models_of_no_family_are_refused() -> None:
    with pytest.raises(ValueError, match="llava_next"):
        eadp.attach(nn.Linear(2, 2), method=EverySecond())


@dataclass(frozen=True)
class First(BeforeMethod):
    """Keeps the first `keep` tokens."""

    name = "test_first"
    citation = "none"

    def select(self, tokens: VisualTokens, text: Any = None) -> Selection:
        assert text is None
        assert tokens.aligned is None
        n = len(tokens)
        return Selection(torch.arange(self.count_to_keep(n)), n, self.name, scores=torch.arange(float(n)))


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
        with pruned.with_question("and the dog?"):
            model(**inputs)
            dog = [selection.indices.tolist() for selection in pruned.last]
        with pruned.with_question(["where is the cat?", "and the dog?"]):
            model(**inputs)
        images = len(IMAGES[family][0])
        assert [selection.indices.tolist() for selection in pruned.last] == [*cat[:images], *dog[images:]]
        with pytest.raises(ValueError, match="got 1 for 2 prompts"), pruned.with_question(["only one"]):
            model(**inputs)
        model(**inputs)
        assert [selection.indices.tolist() for selection in pruned.last] == cat
    assert cat != dog
    assert all(len(kept) == 3 for kept in cat)
    assert guide.questions[:2] == ["where is the cat?"] * 2


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
        with pytest.raises(ValueError, match="with_question"):
            model(**inputs)
        with pruned.with_question("what?"):
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
    for which, rows in (("none", 0), ("kept rows", 1), ("all", 4)):
        with eadp.attach(model, method=First(keep=18), newlines=which) as pruned:
            model(**inputs)
        assert int(pruned.columns[placeholders].sum()) == 18 + rows


def test_prompts_as_embeddings() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    with eadp.attach(model, method=EverySecond()):
        logits = model(**inputs).logits
        embeddings = model.get_input_embeddings()(inputs["input_ids"])
        named = {name: inputs[name] for name in ("attention_mask", "pixel_values")}
        torch.testing.assert_close(model(inputs_embeds=embeddings, **named).logits, logits, rtol=1e-4, atol=1e-4)


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


def test_core_and_methods_do_without_transformers() -> None:
    code = "import sys, eadp, eadp.core; assert 'transformers' not in sys.modules, 'transformers was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)
