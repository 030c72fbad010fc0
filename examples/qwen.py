"""Ask Qwen2.5-VL or Qwen3-VL about two images, with two kinds of budget.

python examples/qwen.py a.jpg b.jpg "What differs?" --model Qwen/Qwen2.5-VL-3B-Instruct
python examples/qwen.py --model random:tiny-qwen3-vl      # no download: an untrained model, whose answers mean nothing
"""

import typer
from PIL import Image

import eadp
from eadp.loading import load_guide, load_model

BUDGETS = {
    "a quarter of the tokens of each image": {"keep": 0.25},
    "as few tokens as reach a coverage of 0.9 over both images": {"coverage": 0.9, "budget_over": "prompt"},
}


def main(
    first: str = typer.Argument(None, help="An image file; without one, a gradient."),
    second: str = typer.Argument(None, help="Another image file; without one, another gradient."),
    question: str = typer.Argument("What differs between the two?"),
    model: str = "Qwen/Qwen2.5-VL-3B-Instruct",
) -> None:
    net, processor = load_model(model)
    guide = load_guide(model, net, processor)
    gradients = [Image.radial_gradient("L"), Image.linear_gradient("L")]
    files = zip([first, second], gradients, strict=True)
    images = [(Image.open(file) if file else gradient).convert("RGB") for file, gradient in files]
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": question}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(images=images, text=text, return_tensors="pt").to(net.device, net.dtype)
    for name, budget in BUDGETS.items():
        with eadp.attach(net, processor, guide=guide, **budget) as pruned:
            output = net.generate(**inputs, max_new_tokens=32, do_sample=False)
        print(f"{name}:", ", ".join(f"{len(kept)} of {kept.total} tokens" for kept in pruned.last))
        print("answer:", processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    typer.run(main)
