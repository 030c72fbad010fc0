"""The tokenizer that all tiny models share, and the processor of each family."""

from __future__ import annotations

from functools import cache
from typing import Any

import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from eadp.compat import without_video_processor

SPECIAL = (
    *("<pad>", "<s>", "</s>", "<unk>", "<image>", "<video>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<img>", "</img>", "<IMG_CONTEXT>"),
    *("<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<bos>", "<eos>", "<start_of_turn>"),
    *("<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)),
)
IDS = {token: index for index, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL])}
VOCABULARY = len(IDS)
PINPOINTS = [[28, 56], [56, 28], [56, 56], [28, 84], [84, 28]]


def tokenizer(**named: str) -> hf.PreTrainedTokenizerFast:
    """Build a byte-level tokenizer, which decodes every text exactly. `named` special tokens become attributes."""
    letters = {token: index for token, index in IDS.items() if token not in SPECIAL}
    raw = Tokenizer(models.BPE(vocab=letters, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=named or list(SPECIAL),
        padding_side="left",
    )


def _template(opening: str, image: str, closing: str, answer: str) -> str:
    """Write a chat template like those of the real models. The content of a message is a text or a list of parts."""
    return (
        "{% for message in messages %}"
        f"{{% if message['role'] == 'user' %}}{opening}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        f"{{% if part['type'] == 'image' %}}{image}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}"
        "{% endfor %}{% endif %}"
        f"{closing}{{% else %}}{answer}{{{{ message['content'] }}}}{closing}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{answer}{{% endif %}}"
    )


VICUNA = _template("USER: ", "<image>\n", " ", "ASSISTANT:")
CHATML = "<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n"
QWEN = _template(CHATML[0], "<|vision_start|><|image_pad|><|vision_end|>", *CHATML[1:])
ONEVISION = _template("<|im_start|>user ", "<image>\n", "<|im_end|>", "<|im_start|>assistant\n")
INTERNVL = _template(CHATML[0], "<IMG_CONTEXT>\n", *CHATML[1:])
IDEFICS = _template("<|im_start|>User:", "<image>", "<end_of_utterance>\n", "Assistant:")
GEMMA = _template("<start_of_turn>user\n", "<start_of_image>", "<end_of_turn>\n", "<start_of_turn>model\n")


@cache
def processor(family: str) -> Any:
    """Build the family's own processor for the sizes of the tiny models. It takes no clips, which need torchvision."""
    build = {
        "llava": _llava,
        "llava_next": _llava_next,
        "llava_onevision": _llava_onevision,
        "qwen2_5_vl": _qwen,
        "qwen3_vl": _qwen,
        "internvl": _internvl,
        "idefics3": _idefics3,
        "gemma3": _gemma3,
        "paligemma": _paligemma,
    }[family]
    return build(family)


VIDEO = {
    "qwen2_5_vl": "<|vision_start|><|video_pad|><|vision_end|>",
    "qwen3_vl": "<|video_pad|>",
    "llava_onevision": "<video>\n",
    "llava_next_video": "<video>\n",
}
"""What each family's chat template writes for a clip."""


def clip_processor(family: str) -> Any:
    """The family's processor for images and clips. Needs torchvision."""
    parts = processor("llava_next" if family == "llava_next_video" else family)
    template = parts.chat_template.replace(
        "{% else %}{{ part['text'] }}",
        f"{{% elif part['type'] == 'video' %}}{VIDEO[family]}{{% else %}}{{{{ part['text'] }}}}",
    )
    common = {"image_processor": parts.image_processor, "tokenizer": parts.tokenizer, "chat_template": template}
    if family == "llava_onevision":
        videos = hf.LlavaOnevisionVideoProcessor(size={"height": 28, "width": 28})
        return hf.LlavaOnevisionProcessor(
            **common, video_processor=videos, num_image_tokens=49, vision_feature_select_strategy="full"
        )
    if family == "llava_next_video":
        videos = hf.LlavaNextVideoVideoProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
        return hf.LlavaNextVideoProcessor(
            **common,
            video_processor=videos,
            patch_size=7,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )
    geometry = {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 64 * 64}}
    if family == "qwen3_vl":
        geometry["size"] = {"shortest_edge": 64, "longest_edge": 64 * 64 * 64}
        return hf.Qwen3VLProcessor(**common, video_processor=hf.Qwen3VLVideoProcessor(**geometry))
    return hf.Qwen2_5_VLProcessor(**common, video_processor=hf.Qwen2VLVideoProcessor(**geometry))


def _side(pixels: int) -> dict[str, Any]:
    return {"do_center_crop": False, "size": {"height": pixels, "width": pixels}}


def _llava(family: str) -> Any:
    return hf.LlavaProcessor(
        hf.CLIPImageProcessorPil(**_side(28)),
        tokenizer(),
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=VICUNA,
    )


def _llava_next(family: str) -> Any:
    return hf.LlavaNextProcessor(
        hf.LlavaNextImageProcessorPil(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, image_grid_pinpoints=PINPOINTS
        ),
        tokenizer(),
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=VICUNA,
    )


def _llava_onevision(family: str) -> Any:
    return without_video_processor(hf.LlavaOnevisionProcessor)(
        hf.LlavaOnevisionImageProcessorPil(
            size={"height": 28, "width": 28}, image_grid_pinpoints=[*PINPOINTS, [112, 112]]
        ),
        tokenizer(),
        num_image_tokens=49,
        vision_feature_select_strategy="full",
        chat_template=ONEVISION,
    )


def _qwen(family: str) -> Any:
    kind = hf.Qwen2_5_VLProcessor if family == "qwen2_5_vl" else hf.Qwen3VLProcessor
    images = hf.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 64 * 64}
    )
    return without_video_processor(kind)(images, tokenizer(), chat_template=QWEN)


def _internvl(family: str) -> Any:
    images = hf.GotOcr2ImageProcessorPil(size={"height": 24, "width": 24}, crop_to_patches=True, max_patches=4)
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    return without_video_processor(hf.InternVLProcessor)(
        images, tokenizer(**named, video_token="<video>"), image_seq_length=9, chat_template=INTERNVL
    )


def _idefics3(family: str) -> Any:
    images = hf.Idefics3ImageProcessorPil(size={"longest_edge": 48}, max_image_size={"longest_edge": 24})
    return hf.Idefics3Processor(images, tokenizer(), image_seq_len=9, chat_template=IDEFICS)


def _gemma3(family: str) -> Any:
    images = hf.Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    return hf.Gemma3Processor(images, tokenizer(**named), image_seq_length=16, chat_template=GEMMA)


def _paligemma(family: str) -> Any:
    images = hf.SiglipImageProcessorPil(size={"height": 16, "width": 16})
    images.image_seq_length = 16
    return hf.PaliGemmaProcessor(images, tokenizer())
