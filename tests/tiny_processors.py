"""The tokenizer that all tiny models share, and their processors."""

from __future__ import annotations

from functools import cache
from typing import Any

import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

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


@cache
def tokenizer() -> hf.PreTrainedTokenizerFast:
    """Byte by byte, so that every text reads back exactly."""
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
        extra_special_tokens=list(SPECIAL),
        padding_side="left",
    )


def processor(family: str) -> Any:
    raise NotImplementedError
