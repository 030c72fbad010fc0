"""The small model for the world of things: the tower of smol in front of a Llama that was trained from nothing.

All of it ships with this package, in parts that smol shares. The first load keeps the whole model in the user's cache.
"""

from __future__ import annotations

from pathlib import Path

from transformers import LlavaForConditionalGeneration, LlavaProcessor

from eadp.pocket import storage
from eadp.pocket.model import ClipText
from eadp.pocket.names import CLIPS, THINGS
from eadp.pocket.packaged import user_cache, write_once
from eadp.pocket.text import CHAT_TEMPLATE
from eadp.pocket.things import parts
from eadp.pocket.things.clip_model import build_clip_model
from eadp.pocket.things.llava import build_llava, build_processor
from eadp.pocket.things.model import build_language_model


def checkpoint(cache: Path | None = None) -> Path:
    """Return the folder of the whole model, which is written at the first call.

    Args:
        cache: Folder for the copy; by default `eadp` in the user's cache.

    Raises:
        ValueError: If the parts do not fit the model.
    """
    return write_once(user_cache(cache) / f"{THINGS}-{parts.fingerprint(parts.VISION, THINGS)}", _assemble)


def clip_checkpoint(cache: Path | None = None) -> Path:
    """Return the folder of the same model for clips. Arguments and errors are those of `checkpoint`."""
    return write_once(user_cache(cache) / f"{CLIPS}-{parts.fingerprint(parts.VISION, THINGS)}", _assemble_for_clips)


def _assemble(folder: Path) -> None:
    storage.save(folder, *_build())


def _assemble_for_clips(folder: Path) -> None:
    model, processor, clip = _build()
    storage.save(folder, build_clip_model(model, processor.tokenizer), processor, clip, parts.load_tokenizer())


def _build() -> tuple[LlavaForConditionalGeneration, LlavaProcessor, ClipText]:
    """Assemble the model, its processor and the text encoder of its CLIP."""
    tokenizer = parts.load_tokenizer()
    language_model = build_language_model(len(tokenizer))
    missing, unexpected = language_model.load_state_dict(parts.load_module(THINGS, "language"), strict=False)
    # The head is tied to the embeddings and may be stored with them only.
    if unexpected or any(name != "lm_head.weight" for name in missing):
        raise ValueError(f"the language model does not fit: it lacks {missing} and has {unexpected} in excess")
    language_model.tie_weights()
    model = build_llava(language_model, tokenizer)
    model.model.multi_modal_projector.load_state_dict(parts.load_module(THINGS, "projector"))
    clip, _ = parts.load_vision(model)
    return model, build_processor(tokenizer, CHAT_TEMPLATE), clip
