"""The question of odd prompts: each with the chat template of its model, and most also without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.byte_tokenizers import SPECIAL, byte_tokenizer
from transformers import PreTrainedTokenizerFast

from eadp.models.question import question_of

IMAGE = "<image>" * 9
QWEN_IMAGE = "<|vision_start|>" + "<|image_pad|>" * 9 + "<|vision_end|>"


def turns(user: str, answer: str, system: str, begin: str = "", tool: str = "{{ raise_exception('no tools') }}") -> str:
    """Write a chat template. TEXT stands for the text of a message, which is a string."""
    return begin + (
        "{% for message in messages %}"
        f"{{% if message['role'] == 'user' %}}{user}{{% elif message['role'] == 'assistant' %}}{answer}"
        f"{{% elif message['role'] == 'tool' %}}{tool}{{% else %}}{system}{{% endif %}}{{% endfor %}}"
    ).replace("TEXT", "{{ message['content'] }}")


def asking(template: str, generation: str) -> str:
    return template + f"{{% if add_generation_prompt %}}{generation}{{% endif %}}"


CHATML_TURN = "<|im_start|>{}\nTEXT<|im_end|>\n"
SYSTEM = "A chat between a curious human and an assistant. "
# Parts, not strings: the images of a turn first, then its texts.
PARTS = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
TEMPLATES = {
    "llava": ("llama", PARTS),
    "vicuna": ("llama", asking(turns("USER: TEXT ", "ASSISTANT: TEXT</s>", "TEXT "), "ASSISTANT:")),
    "vicuna with a system prompt": (
        "llama",
        asking(turns("USER: TEXT ", "ASSISTANT: TEXT</s>", "", begin=f"<s>{SYSTEM}"), "ASSISTANT:"),
    ),
    "llama 2": (
        "llama",
        "{% set ns = namespace(system='') %}"
        + turns(
            "[INST] {{ ns.system }}TEXT [/INST]",
            " TEXT </s>",
            "{% set ns.system = '<<SYS>>\n' + message['content'] + '\n<</SYS>>\n\n' %}",
        ),
    ),
    "qwen": (
        "qwen",
        asking(
            turns(
                *(CHATML_TURN.format(role) for role in ("user", "assistant", "system")),
                begin="{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}",
                tool="<|im_start|>user\n<tool_response>\nTEXT\n</tool_response><|im_end|>\n",
            ),
            "<|im_start|>assistant\n<think>\n",
        ),
    ),
    "smolvlm": (
        "smolvlm",
        asking(
            turns(*(f"{role}: TEXT<end_of_utterance>\n" for role in ("User", "Assistant", "System")), "<|im_start|>"),
            "Assistant:",
        ),
    ),
    "gemma": (
        "gemma",
        asking(
            turns(*(f"<start_of_turn>{role}\nTEXT<end_of_turn>\n" for role in ("user", "model", "system")), "<bos>"),
            "<start_of_turn>model\n",
        ),
    ),
    "paligemma": ("gemma", None),
    "phi": ("phi", asking(turns(*(f"<|{role}|>\nTEXT<|end|>\n" for role in ("user", "assistant", "system"))), "…")),
}
IMAGES = {"qwen": "<|image_pad|>", "gemma": "<image_soft_token>"}


def ask(prompt: str, family: str, with_template: bool = True) -> str:
    name, template = TEMPLATES[family]
    tokenizer = build(name)
    tokenizer.chat_template = template if with_template else None
    image = tokenizer.convert_tokens_to_ids(IMAGES.get(family, "<image>"))
    ids = torch.tensor(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    return question_of(ids, tokenizer, SimpleNamespace(image_token_id=image))


def build(name: str) -> PreTrainedTokenizerFast:
    phi = ["<s>", "<image>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
    return byte_tokenizer({"phi": phi, **SPECIAL}[name])


# name: family, prompt, question
ODD = {
    "the name of another format's turn": (
        *("llava", f"USER: {IMAGE}\nWhat do [INST] and <|user|> mean? ASSISTANT:"),
        "What do [INST] and <|user|> mean?",
    ),
    "a whole turn of another format": (
        *("llava", f"USER: {IMAGE}\nExplain [INST] hi [/INST] or <|im_start|>user\nhi<|im_end|> to me. ASSISTANT:"),
        "Explain [INST] hi [/INST] or <|im_start|>user\nhi<|im_end|> to me.",
    ),
    "an opening in the system prompt": (
        *("vicuna", f"Whoever writes USER: is your friend. USER: {IMAGE}\nHow many? ASSISTANT:"),
        "How many?",
    ),
    "both markers in the system prompt": (
        *("vicuna", f"You are the ASSISTANT: of the USER: be kind. USER: {IMAGE}\nHow many USER: signs? ASSISTANT:"),
        "How many USER: signs?",
    ),
    "the template's own system prompt": (
        *("vicuna with a system prompt", f"<s>{SYSTEM}USER: {IMAGE}\nHow many? ASSISTANT:"),
        "How many?",
    ),
    "an opening before the image": (
        *("vicuna", f"USER: The sign USER: in {IMAGE} is what? ASSISTANT:"),
        "The sign USER: in is what?",
    ),
    "a closing without a space": ("llava", f"USER: {IMAGE}\n这是什么ASSISTANT:", "这是什么"),
    "a second turn without a space": (
        *("llava", f"USER: {IMAGE}\n这是什么ASSISTANT: 一只狗USER: 它在哪里ASSISTANT:"),
        "它在哪里",
    ),
    "a closing among the user's words": (
        *("llava", f"USER: {IMAGE}\nWho says ASSISTANT: in it? ASSISTANT:"),
        "Who says ASSISTANT: in it?",
    ),
    "an image before the turn": ("llava", f"{IMAGE}\nUSER: How many? ASSISTANT:", "How many?"),
    "an answer of a training sample": (
        *("vicuna", f"USER: {IMAGE}\nHow many? ASSISTANT: Two red ones.</s>"),
        "How many?",
    ),
    "a tool response": (
        "qwen",
        f"<|im_start|>user\n{QWEN_IMAGE}How warm is it there?<|im_end|>\n<|im_start|>assistant\nI look.<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12 degrees\n</tool_response>\n<tool_response>\nrain\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "How warm is it there?",
    ),
    "a tool response with an image": (
        "qwen",
        "<|im_start|>user\nWhat is on the screen?<|im_end|>\n<|im_start|>assistant\nI look.<|im_end|>\n"
        f"<|im_start|>user\n<tool_response>\n{QWEN_IMAGE}\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        "What is on the screen?",
    ),
    "a tool response and a question in one turn": (
        "qwen",
        f"<|im_start|>user\n<tool_response>\n{QWEN_IMAGE}\n</tool_response>And now?<|im_end|>\n<|im_start|>assistant\n",
        "And now?",
    ),
    "no system prompt where the template writes one": (
        *("qwen", f"<|im_start|>user\n{QWEN_IMAGE}How many?<|im_end|>\n<|im_start|>assistant\n"),
        "How many?",
    ),
    "thoughts and an answer of a training sample": (
        "qwen",
        f"<|im_start|>user\n{QWEN_IMAGE}How many?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nuser: two?</think>Two<|im_end|>",
        "How many?",
    ),
    "a word like the opening in an answer": (
        "smolvlm",
        f"<|im_start|>User:{IMAGE}Who?<end_of_utterance>\nAssistant: The User: of it.<end_of_utterance>\n"
        "User: Which User: then?<end_of_utterance>\nAssistant:",
        "Which User: then?",
    ),
    "a system prompt in the user turn": (
        *("llama 2", f"<s>[INST] <<SYS>>\nBe kind to the USER: always.\n<</SYS>>\n\n{IMAGE}\nHow many? [/INST]"),
        "How many?",
    ),
    "plain words of another format in brackets": (
        *("llama 2", f"<s>[INST] {IMAGE}\nWrite USER: and ASSISTANT: [/INST]"),
        "Write USER: and ASSISTANT:",
    ),
    "the name of a role": (
        *("gemma", "<bos><start_of_turn>user\nWhich user: is the model?<end_of_turn>\n<start_of_turn>model\n"),
        "Which user: is the model?",
    ),
    "an answer of a training sample after Phi's turn": (
        *("phi", f"<s><|user|>\n{IMAGE}\nWhat does USER: mean?<|end|>\n<|assistant|>\nThe user.<|end|>\n"),
        "What does USER: mean?",
    ),
    "a suffix of a training sample": ("paligemma", f"{IMAGE}<bos>answer en How many?\ntwo\nor three<eos>", "How many?"),
    "a suffix that has begun": ("paligemma", f"{IMAGE}<bos>How many?\ntwo", "How many?"),
    "a prefix of two lines": ("paligemma", f"{IMAGE}<bos>How many?\nA. two\n", "How many?\nA. two"),
    "words of a format in a prefix": (
        "paligemma",
        f"{IMAGE}<bos>Say USER: and ASSISTANT:\n",
        "Say USER: and ASSISTANT:",
    ),
}


@pytest.mark.parametrize("with_template", [True, False], ids=["template", "no template"])
@pytest.mark.parametrize("name", ODD)
def test_odd_prompt(name: str, with_template: bool) -> None:
    family, prompt, question = ODD[name]
    assert ask(prompt, family, with_template) == question


def test_special_tokens_that_a_user_typed_as_text_do_not_end_the_turn() -> None:
    tokenizer = build("qwen")
    tokenizer.chat_template = TEMPLATES["qwen"][1]

    def ids(text: str, **settings: Any) -> list[int]:
        return tokenizer(text, add_special_tokens=False, **settings)["input_ids"]

    typed = ids("What does <|im_end|><|im_start|>assistant do?", split_special_tokens=True)
    prompt = [*ids("<|im_start|>user\n"), *typed, *ids("<|im_end|>\n<|im_start|>assistant\n")]
    assert question_of(torch.tensor(prompt), tokenizer, None) == "What does assistant do?"


def test_a_template_with_markers_that_no_known_format_has() -> None:
    tokenizer = build("llama")
    tokenizer.chat_template = asking(turns("问：TEXT\n", "答：TEXT\n", "TEXT\n"), "答：")
    ids = tokenizer("You help.\n问：图中有什么？\n答：一只狗\n问：它在哪里？\n答：", add_special_tokens=False)[
        "input_ids"
    ]
    assert question_of(torch.tensor(ids), tokenizer, None) == "它在哪里？"


def test_a_prompt_that_does_not_follow_the_template() -> None:
    assert ask(f"### Human: {IMAGE}\nHow many?### Assistant:", "llava") == "How many?"
    assert ask(f"<s>{IMAGE}How many?", "llava") == "How many?"


def test_a_template_that_fails_is_not_used() -> None:
    tokenizer = build("llama")
    tokenizer.chat_template = "{{ raise_exception('not today') }}"
    ids = tokenizer("USER: How many? ASSISTANT:", add_special_tokens=False)["input_ids"]
    assert question_of(torch.tensor(ids), tokenizer, None) == "How many?"
