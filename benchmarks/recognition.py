"""Measure how many things of test scenes the tower recognises, in styles that training showed and in those it did not.

    PYTHONPATH=. python benchmarks/recognition.py                 # 1,500 scenes, about five minutes on one core
    PYTHONPATH=. python benchmarks/recognition.py --scenes 100    # a quick check

A thing is recognised if the votes of its patches, by the heads of the vision stage, name its kind among 284. Things of
which fewer than three patches can be seen do not count. It needs the folder `training` of the checkout.
"""

from __future__ import annotations

from collections import defaultdict

import common
import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track

from eadp.pocket.things.model import build_clip_text, build_tower
from eadp.pocket.things.scene import SMALL
from eadp.utils.statistics import wilson_interval
from eadp.utils.tables import format_markdown
from training.things import clip, results, tower
from training.things.windows import NO_WORD, draw_scenes

BATCH = 10
GROUPS = ("seen style", "seen style, small", "style never shown", "style never shown, small", "words on signs")


@torch.inference_mode()
def main(scenes: int = 1500) -> None:
    """Measure, print, and write benchmarks/results/recognition.json and the table in docs/guides/things.md."""
    common.use_one_thread()
    encoder, heads, tokenizer = build_tower(), tower.PatchHeads(), results.load_tokenizer()
    if tokenizer is None:
        raise FileNotFoundError("the vision stage has no result: run `python -m training.things --only vision` first")
    modules = {
        "tower": encoder,
        "heads": heads,
        "clip": build_clip_text(len(tokenizer)),
        "temperatures": clip.Temperatures(),
    }
    results.load("vision", modules)
    right: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for first in track(range(0, scenes, BATCH), "scenes"):
        batch = draw_scenes("test", first, BATCH)
        normed = encoder.post_layernorm(tower.encode(encoder, batch.pixels, batch.positions))
        label, word, *_ = heads(normed[:, 1:])
        for row, owners in enumerate(batch.owners):
            for index in owners.unique().tolist():
                own = owners == index
                if index < 0 or own.sum() < tower.FEWEST_PATCHES:
                    continue
                written = int(batch.words[row, own][0])
                if written != NO_WORD:
                    read = int(word[row, own].log_softmax(-1).sum(0).argmax()) == written
                    right["words on signs"].append((first + row, read))
                    continue
                known = bool(label[row, own].log_softmax(-1).sum(0).argmax() == batch.labels[row, own][0])
                style = "style never shown" if batch.held_out[row, own][0] else "seen style"
                right[style].append((first + row, known))
                if batch.views[row].things[index].size < SMALL:
                    right[f"{style}, small"].append((first + row, known))
    ratio, interval = ratio_of_rates(right["style never shown"], right["seen style"])
    rows = [[group, str(len(right[group])), percent([known for _, known in right[group]])] for group in GROUPS]
    text = format_markdown(["things", "number", "recognised"], rows)
    text += (
        f"\n\nA style that was never shown is recognised at {ratio:.2f} ({interval[0]:.2f} to {interval[1]:.2f}) of "
        "the rate of the others (95 % intervals; that of the ratio by bootstrap over scenes)."
    )
    Console().print(text)
    counted = {
        group: {"number": len(values), "right": sum(known for _, known in values)} for group, values in right.items()
    }
    common.save("recognition", {"scenes": scenes, "groups": counted, "ratio": ratio, "interval": interval})
    common.write_into(common.ROOT / "docs" / "guides" / "things.md", "recognition", text)


def percent(known: list[bool]) -> str:
    """A share with its Wilson interval, in percent."""
    low, high = wilson_interval(sum(known), len(known))
    return f"{100 * sum(known) / len(known):.1f} ({100 * low:.0f}–{100 * high:.0f})"


def ratio_of_rates(
    ones: list[tuple[int, bool]], others: list[tuple[int, bool]], rounds: int = 2000
) -> tuple[float, tuple[float, float]]:
    """Return the ratio of two shares, and its 95 % interval by bootstrap over scenes.

    Args:
        ones: The scene of each thing, and whether it was recognised.
        others: The same for the denominator.
        rounds: Rounds of the bootstrap.
    """
    count = 1 + max(scene for scene, _ in ones + others)
    sums = np.zeros((4, count))
    for offset, values in ((0, ones), (2, others)):
        for scene, known in values:
            sums[offset, scene] += known
            sums[offset + 1, scene] += 1

    def ratio(a: float, b: float, c: float, d: float) -> float:
        return (a / b) / (c / d)

    rng = np.random.default_rng(0)
    drawn = [ratio(*sums[:, rng.integers(0, count, count)].sum(1)) for _ in range(rounds)]
    low, high = np.percentile(drawn, (2.5, 97.5))
    return ratio(*sums.sum(1)), (float(low), float(high))


if __name__ == "__main__":
    typer.run(main)
