"""Tokenizers with one token per byte and the special tokens of real ones."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

SPECIAL = {
    "llama": ["<s>", "</s>", "<unk>", "<image>", "<video>", "<pad>"],
    "qwen": [
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
        *("<|image_pad|>", "<|video_pad|>", "<image>", "<video>"),
    ],
    "internvl": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"],
    "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<image>"],
    "smolvlm": [
        *("<|im_start|>", "<end_of_utterance>", "<image>", "<fake_token_around_image>", "<global-img>"),
        *("<row_1_col_1>", "<row_1_col_2>", "<|begin_of_text|>"),
    ],
    "gemma": [
        *("<pad>", "<eos>", "<bos>", "<image>", "<start_of_turn>", "<end_of_turn>"),
        *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    ],
    "mistral": ["<s>", "</s>", "<unk>", "<image>", "[INST]", "[/INST]"],
}


def byte_tokenizer(special: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token per byte, and the special tokens of a real tokenizer."""
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=True)


TOKENIZERS = {name: byte_tokenizer(special) for name, special in SPECIAL.items()}
