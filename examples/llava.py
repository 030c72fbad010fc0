"""LLaVA-1.5 or LLaVA-NeXT on 64 visual tokens of 576 (or of up to 2,880).

python examples/llava.py photo.jpg "What is on the table?" --model llava-hf/llava-1.5-7b-hf --keep 64
python examples/llava.py --tiny        # offline, with a tiny random model: what it says is noise
"""

from __future__ import annotations

import typer
from loading import load, photo, report

import eadp


def main(
    path: str = typer.Argument(None),
    question: str = typer.Argument("What is on the table?"),
    model: str = "llava-hf/llava-1.5-7b-hf",
    keep: int = 64,
    tiny: bool = False,
) -> None:
    net, processor, settings = load(model, "llava_next" if tiny else None)
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(images=photo(path), text=text, return_tensors="pt").to(net.device, net.dtype)
    with eadp.attach(net, processor, keep=16 if tiny else keep, **settings) as pruned:
        out = net.generate(**inputs, max_new_tokens=32, do_sample=False)
    report(pruned, processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    typer.run(main)
