"""LLaVA-OneVision, or LLaVA-Video with its own pooling, on a clip: the same number of tokens from every frame.

    python examples/video.py clip.mp4 "What happens?" --model llava-hf/llava-onevision-qwen2-7b-ov-hf --a-frame 16
    python examples/video.py clip.mp4 "What happens?" --model path/to/converted/llava-video --llava-video
    python examples/video.py --tiny        # offline, with a tiny random model: what it says is noise

How to convert LLaVA-Video's checkpoint is told in `eadp.models.llava_video`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import typer
from loading import load, report

import eadp
from eadp.models.llava_video import convert


def main(
    path: str = typer.Argument(None),
    question: str = typer.Argument("What happens?"),
    model: str = "llava-hf/llava-onevision-qwen2-7b-ov-hf",
    frames: int = 32,
    a_frame: int = 16,
    llava_video: bool = False,
    tiny: bool = False,
) -> None:
    net, processor, settings = load(model, "llava_onevision" if tiny else None)
    with convert(net, processor) if llava_video else nullcontext():
        if tiny:
            frames, a_frame = 4, 3
            inputs, settings["question"] = tiny_clip(frames), question
        else:
            inputs = clip(processor, path, question, frames).to(net.device, net.dtype)
        with eadp.attach(net, processor, keep=frames * a_frame, allocation="uniform", **settings) as pruned:
            out = net.generate(**inputs, max_new_tokens=32, do_sample=False)
    report(pruned, processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    print("tokens of each frame:", pruned.last[0].quotas)


def clip(processor: Any, path: str, question: str, frames: int) -> Any:
    content = [{"type": "video", "path": path}, {"type": "text", "text": question}]
    return processor.apply_chat_template(
        [{"role": "user", "content": content}],
        num_frames=frames,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )


def tiny_clip(frames: int) -> dict[str, Any]:
    """Processors cut clips with torchvision; the tiny model's ids and pixels are made without."""
    from helpers import tiny as models

    return models.inputs("llava_onevision", [[(frames, 28, 28)]])


if __name__ == "__main__":
    typer.run(main)
