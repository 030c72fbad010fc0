"""Ask LLaVA-1.5 or LLaVA-NeXT about an image with only 64 of its visual tokens.

python examples/llava.py photo.jpg "What is on the table?" --model llava-hf/llava-1.5-7b-hf --keep 64
python examples/llava.py --model random:tiny-llava-next   # no download: an untrained model, whose answer means nothing
"""

import typer
from PIL import Image

import eadp
from eadp.loading import load_guide, load_model


def main(
    image: str = typer.Argument(None, help="An image file; without one, a gradient."),
    question: str = typer.Argument("What is on the table?"),
    model: str = "llava-hf/llava-1.5-7b-hf",
    keep: int = typer.Option(64, help="Visual tokens to keep."),
) -> None:
    net, processor = load_model(model)
    photo = Image.open(image).convert("RGB") if image else Image.radial_gradient("L").convert("RGB")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(images=photo, text=text, return_tensors="pt").to(net.device, net.dtype)

    with eadp.attach(net, processor, keep=keep, guide=load_guide(model, net, processor)) as pruned:
        output = net.generate(**inputs, max_new_tokens=32, do_sample=False)

    selection = pruned.last[0]
    print(f"{len(selection)} of {selection.total} tokens kept, coverage {selection.coverage:.0%}")
    print("answer:", processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    typer.run(main)
