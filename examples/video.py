"""Ask LLaVA-OneVision or LLaVA-Video about a clip, with the same number of visual tokens per frame.

    python examples/video.py clip.mp4 "What happens?" --frames 32 --tokens-per-frame 16
    python examples/video.py clip.mp4 "What happens?" --model path/to/converted/llava-video --llava-video
    python examples/video.py --model random:tiny-llava-onevision   # no download: untrained, its answer means nothing

`eadp.models.llava_video` says how to convert LLaVA-Video's checkpoint. Clips need `pip install av torchvision`.
"""

from contextlib import nullcontext

import typer
from PIL import Image
from transformers.video_utils import load_video

import eadp
from eadp.loading import load_guide, load_model
from eadp.models.llava_video import convert
from eadp.models.prompt import build_clip_inputs


def main(
    clip: str = typer.Argument(None, help="A video file; without one, a gradient that turns."),
    question: str = typer.Argument("What happens?"),
    model: str = "llava-hf/llava-onevision-qwen2-7b-ov-hf",
    frames: int = typer.Option(32, help="Frames to read from the clip."),
    tokens_per_frame: int = typer.Option(16, help="Visual tokens to keep per frame."),
    llava_video: bool = typer.Option(False, help="Pool the frames as LLaVA-Video does."),
) -> None:
    net, processor = load_model(model)
    if clip:
        images = [Image.fromarray(frame) for frame in load_video(clip, num_frames=frames)[0]]
    else:
        images = [Image.linear_gradient("L").rotate(10 * number).convert("RGB") for number in range(frames)]
    with convert(net, processor) if llava_video else nullcontext():
        inputs = build_clip_inputs(net, processor, images, question).to(net.device, net.dtype)
        guide, keep = load_guide(model, net, processor), len(images) * tokens_per_frame
        with eadp.attach(net, processor, keep=keep, allocation="uniform", guide=guide) as pruned:
            output = net.generate(**inputs, max_new_tokens=32, do_sample=False)
    print("tokens kept per frame:", pruned.last[0].quotas)
    print("answer:", processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    typer.run(main)
