"""What a user writes: `mypy --strict` accepts it, and it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from PIL import Image

import eadp


@eadp.register_method
@dataclass(frozen=True)
class Brightest(eadp.BeforeMethod):
    """Keep the tokens with the largest norm."""

    name: ClassVar[str] = "brightest"
    citation: ClassVar[str] = "this program"

    power: float = 2.0

    def select(self, tokens: eadp.VisualTokens, text: eadp.TextGuide | None = None) -> eadp.Selection:
        scores = tokens.features.float().norm(p=self.power, dim=1)
        kept = scores.topk(self.count_to_keep(len(tokens))).indices.sort().values
        return eadp.Selection(kept, len(tokens), self.name, scores=scores)


def count_kept(method: str | eadp.Method) -> int:
    """Run the pocket model on a grey image, and return how many visual tokens it processed."""
    model, processor = eadp.load_pocket()
    content = [{"type": "image"}, {"type": "text", "text": "What is red?"}]
    message: dict[str, Any] = {"role": "user", "content": content}
    prompt = processor.apply_chat_template([message], add_generation_prompt=True)
    inputs = processor(images=[Image.new("RGB", (256, 256), "grey")], text=[str(prompt)], return_tensors="pt")
    pruned: eadp.Pruned = eadp.attach(model, processor, method=method)
    with torch.inference_mode():
        model(**inputs)
    selection: eadp.Selection = pruned.last[0]
    eadp.detach(model)
    return len(selection)


def main() -> dict[str, int]:
    """Return how many of the 256 tokens each method keeps."""
    methods: list[eadp.Method] = [
        eadp.EADP(keep=32),
        eadp.get_method("cdpruner", keep=64),
        eadp.get_method("brightest", keep=16, power=1.0),
        eadp.FastV(keep=8),
        eadp.NoPruning(),
    ]
    found: dict[str, int] = {}
    for method in methods:
        again: eadp.Method = eadp.Method.from_dict(method.to_dict())
        assert again == method
        assert method.name in eadp.list_methods()
        found[method.name] = count_kept(again)
    published: eadp.EADP = eadp.EADP.from_dict({"preset": "published", "keep": 16}, family="llava")
    found["published"] = count_kept(published.with_settings(keep=20))
    found["none by name"] = count_kept("none")
    return found


if __name__ == "__main__":
    print(main())
