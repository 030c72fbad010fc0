"""Tokenizer and chat template. The language model and CLIP's text encoder share one byte-level vocabulary."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PAD, BOS, IMAGE, EOS = "<pad>", "<s>", "<image>", "</s>"
SPECIAL = (PAD, BOS, IMAGE, EOS)
"""The special tokens in the order of their ids. EOS must not have id 2, which CLIP's text model treats specially."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% if message['content'] is string %}{{ message['content'] + ' ' }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def format_prompt(question: str) -> str:
    """Format one question about one image as the chat template does."""
    return f"USER: {IMAGE}\n{question} ASSISTANT:"


def train_tokenizer(corpus: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer: one token per word of the corpus, and bytes for any other text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, SPECIAL.index(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        extra_special_tokens={"image_token": IMAGE},
        padding_side="left",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
