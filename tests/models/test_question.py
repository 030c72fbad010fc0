"""The question is read from ids like those of the real processors."""

from types import SimpleNamespace

import pytest
import torch
from helpers.byte_tokenizers import TOKENIZERS, byte_tokenizer

from eadp.models.question import question_of

QUESTION = "Where is the assistant's red cup, and who is the user of it?"


def ask(family, prompt, image_token=None):
    tokenizer = TOKENIZERS[family]
    config = SimpleNamespace(image_token_id=image_token and tokenizer.convert_tokens_to_ids(image_token))
    ids = torch.tensor(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    return question_of(ids, SimpleNamespace(tokenizer=tokenizer), config)


VICUNA_SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the human's questions."
)
IMAGE = "<image>" * 576
QWEN_IMAGE = "<|vision_start|>" + "<|image_pad|>" * 300 + "<|vision_end|>"
QWEN_SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
TILES = (
    "".join(f"<fake_token_around_image><row_1_col_{column}>" + "<image>" * 64 for column in (1, 2))
    + "\n\n<fake_token_around_image><global-img>"
    + "<image>" * 64
    + "<fake_token_around_image>"
)
GEMMA_IMAGE = "\n\n<start_of_image>" + "<image_soft_token>" * 256 + "<end_of_image>\n\n"
INTERNVL_IMAGE = "<img>" + "<IMG_CONTEXT>" * 256 + "</img>"

# name: tokenizer, image token, before and after a question, between two turns, after the second
PROMPTS = {
    "llava-1.5": (
        "llama",
        "<image>",
        f"<s> USER: {IMAGE}\n",
        " ASSISTANT:",
        " ASSISTANT: A dog. USER: ",
        " ASSISTANT:",
    ),
    "llava-next-vicuna": (
        *("llama", "<image>", f"<s>{VICUNA_SYSTEM} USER: {IMAGE}\n", " ASSISTANT:"),
        *(" ASSISTANT: A dog.</s>USER: ", " ASSISTANT:"),
    ),
    "llava-next-mistral": (
        *("mistral", "<image>", f"<s>[INST] {IMAGE}\n", " [/INST]", " [/INST] A dog.</s>[INST] ", " [/INST]"),
    ),
    "llava-next-34b": (
        *("qwen", "<image>", f"<|im_start|>system\nAnswer the questions.<|im_end|><|im_start|>user\n{IMAGE}\n"),
        *("<|im_end|><|im_start|>assistant\n", "<|im_end|><|im_start|>assistant\nA dog.<|im_end|><|im_start|>user\n"),
        "<|im_end|><|im_start|>assistant\n",
    ),
    "llava-next-llama3": (
        *("llama3", "<image>"),
        f"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou help.<|eot_id|>"
        f"<|start_header_id|>user<|end_header_id|>\n\n{IMAGE}\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA dog.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "llava-onevision": (
        *("qwen", "<image>", f"<|im_start|>user {IMAGE}\n", "<|im_end|><|im_start|>assistant\n"),
        *("<|im_end|><|im_start|>assistant\nA dog.<|im_end|><|im_start|>user \n", "<|im_end|><|im_start|>assistant\n"),
    ),
    "qwen": (
        *("qwen", "<|image_pad|>", f"{QWEN_SYSTEM}<|im_start|>user\n{QWEN_IMAGE}"),
        "<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>\n<|im_start|>assistant\nA dog.<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n",
    ),
    "internvl": (
        *("internvl", "<IMG_CONTEXT>", f"{QWEN_SYSTEM}<|im_start|>user\n{INTERNVL_IMAGE}\n"),
        "<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>\n<|im_start|>assistant\nA dog.<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "smolvlm": (
        *("smolvlm", "<image>", f"<|im_start|>User:{TILES}", "<end_of_utterance>\nAssistant:"),
        *("<end_of_utterance>\nAssistant: A dog.<end_of_utterance>\nUser:", "<end_of_utterance>\nAssistant:"),
    ),
    "idefics3": (
        *("smolvlm", "<image>", f"<|begin_of_text|>User:{TILES}", "<end_of_utterance>\nAssistant:"),
        *("<end_of_utterance>\nAssistant: A dog.<end_of_utterance>\nUser: ", "<end_of_utterance>\nAssistant:"),
    ),
    "gemma3": (
        *("gemma", "<image_soft_token>", f"<bos><start_of_turn>user\n{GEMMA_IMAGE}"),
        "<end_of_turn>\n<start_of_turn>model\n",
        "<end_of_turn>\n<start_of_turn>model\nA dog.<end_of_turn>\n<start_of_turn>user\n",
        "<end_of_turn>\n<start_of_turn>model\n",
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
class TestEveryTemplate:
    def test_a_question(self, name):
        family, image, before, after, *_ = PROMPTS[name]
        assert ask(family, before + QUESTION + after, image) == QUESTION

    def test_placeholders_go_without_the_config_too(self, name):
        family, _, before, after, *_ = PROMPTS[name]
        assert ask(family, before + QUESTION + after) == QUESTION

    def test_the_beginning_of_an_answer_is_not_the_question(self, name):
        family, image, before, after, *_ = PROMPTS[name]
        assert ask(family, f"{before}{QUESTION}{after} The cup is", image) == QUESTION

    def test_only_the_last_user_turn(self, name):
        family, image, before, _, between, after = PROMPTS[name]
        assert ask(family, before + "What is this?" + between + QUESTION + after, image) == QUESTION

    def test_chinese_and_emoji(self, name):
        family, image, before, after, *_ = PROMPTS[name]
        assert ask(family, f"{before}红色的杯子在哪里？ 🐕‍🦺 é{after}", image) == "红色的杯子在哪里？ 🐕‍🦺 é"

    def test_the_users_own_lines_stay(self, name):
        family, image, before, after, *_ = PROMPTS[name]
        assert ask(family, f"{before}Which?\nA. cat\nB. dog{after}", image) == "Which?\nA. cat\nB. dog"

    def test_an_image_alone_asks_nothing(self, name):
        family, image, before, after, *_ = PROMPTS[name]
        assert ask(family, before + after, image) == ""


def test_paligemma_has_a_prefix_and_no_turns():
    assert ask("gemma", "<image>" * 256 + f"<bos>{QUESTION}\n", "<image>") == QUESTION


def test_paligemmas_task_is_not_the_question():
    assert ask("gemma", "<image>" * 256 + f"<bos>answer en {QUESTION}\n", "<image>") == QUESTION


def test_user_in_capitals_is_the_users_own_word():
    assert ask("llama", "USER: <image>\nWhat does USER: mean here? ASSISTANT:") == "What does USER: mean here?"


def test_plain_markers_in_a_template_of_special_tokens_are_the_users_own():
    turn = "Read it: USER: hi ASSISTANT: hello [INST]"
    assert ask("qwen", f"<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n") == turn


def test_two_user_turns_in_a_row():
    assert (
        ask("smolvlm", f"<|im_start|>User:<image><end_of_utterance>\nUser:{QUESTION}<end_of_utterance>\n") == QUESTION
    )
    assert ask("qwen", f"<|im_start|>user\n<image><|im_start|>user\n{QUESTION}<|im_end|>") == QUESTION


def test_a_system_prompt_of_smolvlm():
    prompt = f"<|im_start|>System: Be kind.<end_of_utterance>\nUser:{TILES}{QUESTION}<end_of_utterance>\nAssistant:"
    assert ask("smolvlm", prompt) == QUESTION


def test_no_template():
    assert ask("llama", f"<s><image>{QUESTION}</s>") == QUESTION


def test_images_between_words():
    assert ask("llama", "USER: Is <image> like <image>? ASSISTANT:", "<image>") == "Is like ?"


def test_gemmas_crops():
    crops = " ".join([GEMMA_IMAGE, "and here are some crops to help you see better", GEMMA_IMAGE, GEMMA_IMAGE])
    prompt = (
        f"<bos><start_of_turn>user\nHere is the original image {crops}{QUESTION}<end_of_turn>\n<start_of_turn>model\n"
    )
    assert ask("gemma", prompt, "<image_soft_token>") == QUESTION
    assert ask("gemma", prompt) == QUESTION


def test_frames_of_internvl():
    frames = "\n".join(f"Frame{i}: {INTERNVL_IMAGE}" for i in (1, 2))
    assert ask("internvl", f"<|im_start|>user\n{frames}\n{QUESTION}<|im_end|>\n", "<IMG_CONTEXT>") == QUESTION


def test_timestamps_of_qwen3():
    frame = "<|vision_start|>" + "<|video_pad|>" * 9 + "<|vision_end|>"
    prompt = f"<|im_start|>user\n<0.3 seconds>{frame}<1.5 seconds>{frame}{QUESTION}<|im_end|>\n"
    assert ask("qwen", prompt) == QUESTION


def test_frames_of_smolvlm():
    intro = "You are provided the following series of twenty-four frames from a 0:00:09 [H:MM:SS] video.\n"
    frames = "".join(f"\nFrame from 00:0{i}:{TILES}" for i in (1, 2))
    assert ask("smolvlm", f"<|im_start|>User:{intro}{frames}\n\n{QUESTION}<end_of_utterance>\nAssistant:") == QUESTION


def test_tiles_beyond_the_vocabulary_are_plain_text():
    assert ask("smolvlm", f"<|im_start|>User:<row_9_col_12>{QUESTION}<end_of_utterance>\nAssistant:") == QUESTION


def test_the_users_own_spaces_stay():
    assert (
        ask("llama", "USER: <image>\nIs it red , or do n't you know ? ASSISTANT:") == "Is it red , or do n't you know ?"
    )


def test_llama_2_system_prompt():
    assert ask("mistral", f"<s>[INST] <<SYS>>\nBe\nkind.\n<</SYS>>\n\n{QUESTION} [/INST]") == QUESTION


def test_a_special_token_that_is_a_plain_character_stays():
    tokenizer = byte_tokenizer(["<s>"])
    tokenizer.pad_token = "!"
    ids = torch.tensor(tokenizer("<s>Look!")["input_ids"])
    assert question_of(ids, tokenizer, None) == "Look!"


def test_no_processor():
    with pytest.raises(ValueError, match="pass processor=, or question="):
        question_of(torch.tensor([1]), None, None)


def test_not_a_processor():
    with pytest.raises(TypeError, match="processor or a tokenizer"):
        question_of(torch.tensor([1]), object(), None)


def test_a_batch_is_refused():
    with pytest.raises(ValueError, match="one row"):
        question_of(torch.tensor([[1]]), TOKENIZERS["llama"], None)
