"""Qwen2.5-VL or Qwen3-VL on two images: a quarter of each one's tokens, or as many as it takes over both.

python examples/qwen.py a.jpg b.jpg "What differs?" --model Qwen/Qwen2.5-VL-3B-Instruct
python examples/qwen.py --tiny         # offline, with a tiny random model: what it says is noise
"""

from __future__ import annotations

import typer
from loading import load, photo, report

import eadp


def main(
    first: str = typer.Argument(None),
    second: str = typer.Argument(None),
    question: str = typer.Argument("What differs between the two?"),
    model: str = "Qwen/Qwen2.5-VL-3B-Instruct",
    tiny: bool = False,
) -> None:
    net, processor, settings = load(model, "qwen3_vl" if tiny else None)
    images = [photo(first), photo(second, (40, 48))]
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": question}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(images=images, text=text, return_tensors="pt").to(net.device, net.dtype)
    for budget in ({"keep": 0.25}, {"coverage": 0.9, "budget_over": "prompt"}):
        with eadp.attach(net, processor, **budget, **settings) as pruned:
            out = net.generate(**inputs, max_new_tokens=32, do_sample=False)
        report(pruned, processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    typer.run(main)
