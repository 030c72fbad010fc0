"""Measure what a coverage means: how it grows with K, how accuracy follows it, and how many tokens a target takes.

The first table comes from the pocket model's test questions, the second from the same questions with a target, and the
third from random tokens of the widths that real models have.

    python benchmarks/quality.py                  # 96 questions, about two minutes on one core
    python benchmarks/quality.py --samples 24     # a quick check
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import common
import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor

from eadp import attach, core
from eadp.models.prompt import build_inputs
from eadp.pocket import guide, load
from eadp.pocket.samples import Sample, samples
from eadp.pocket.world import make_scene
from eadp.utils.tables import format_markdown
from eadp.view.comparer import generate_answer
from eadp.view.replay import replay_picks

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
TARGETS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
WIDTHS = {"CLIP ViT-L, 1024": 1024, "Qwen2.5-VL-7B, 3584": 3584, "LLaVA-1.5-7B, 4096": 4096}
GRID = (24, 24)
SHARES = (1 / 18, 1 / 9, 1 / 4, 1 / 2)


@dataclass
class Asked:
    """The answers to all questions at one setting.

    Attributes:
        right: Whether each answer is correct.
        tokens: Number of kept tokens per question.
        coverage: The coverage per question.
        random_coverage: The coverage of as many random tokens per question; empty if not measured.
    """

    right: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    coverage: list[float] = field(default_factory=list)
    random_coverage: list[float] = field(default_factory=list)


def ask_all(questions: list[Sample]) -> tuple[dict[str, Asked], float]:
    """Answer every question at every count and target.

    Returns:
        The answers by setting, such as "keep=8", and the accuracy with all tokens.
    """
    model, processor = load()
    text_guide = guide(model, processor)
    settings: list[dict[str, Any]] = [{"keep": count} for count in COUNTS]
    settings += [{"coverage": target} for target in TARGETS]
    found = {describe(each): Asked() for each in settings}
    unpruned = []
    for number, sample in enumerate(track(questions, "asking")):
        inputs = build_inputs(processor, [sample.image], [sample.question])
        unpruned.append(sample.is_correct(generate_answer(model, processor, inputs)))
        features = model.get_image_features(inputs["pixel_values"]).pooler_output[0]
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(number))
        for each in settings:
            with attach(model, processor, guide=text_guide, **each) as pruned:
                answer = generate_answer(model, processor, inputs)
            asked, selection = found[describe(each)], pruned.last[0]
            asked.right.append(sample.is_correct(answer))
            asked.tokens.append(len(selection))
            asked.coverage.append(selection.coverage)
            if "keep" in each:
                blocks, picks = [slice(0, len(features))], order[: each["keep"]]
                replayed = replay_picks(features, selection.scores, blocks, picks, picks.sort().values)
                asked.random_coverage.append(replayed.coverage[-1].item())
    return found, statistics.mean(unpruned)


def describe(setting: dict[str, Any]) -> str:
    """Write a setting as "keep=8" or "coverage=0.9"."""
    return ", ".join(f"{name}={value}" for name, value in setting.items())


def table_by_count(found: dict[str, Asked]) -> str:
    """Format coverage and accuracy by K."""
    rows = []
    for count in COUNTS:
        asked = found[f"keep={count}"]
        rows.append(
            [
                str(count),
                f"{statistics.mean(asked.coverage):.3f}",
                f"{min(asked.coverage):.3f} – {max(asked.coverage):.3f}",
                f"{statistics.mean(asked.random_coverage):.3f}",
                f"{100 * statistics.mean(asked.right):.1f}",
            ]
        )
    return format_markdown(["K of 256", "coverage, mean", "lowest – highest", "of random tokens", "correct, %"], rows)


def table_by_target(found: dict[str, Asked], questions: list[Sample]) -> str:
    """Format the tokens that a target takes, on all scenes and on those with the fewest and the most things."""
    things = [len(make_scene("test", sample.scene).things) for sample in questions]
    few, many = statistics.quantiles(things, n=4)[0], statistics.quantiles(things, n=4)[2]
    rows = []
    for target in TARGETS:
        asked = found[f"coverage={target}"]
        quartiles = statistics.quantiles(asked.tokens, n=4)
        easy = [tokens for tokens, count in zip(asked.tokens, things, strict=True) if count <= few]
        hard = [tokens for tokens, count in zip(asked.tokens, things, strict=True) if count >= many]
        rows.append(
            [
                str(target),
                f"{statistics.mean(asked.tokens):.1f}",
                f"{quartiles[0]:.0f} – {quartiles[2]:.0f}",
                f"{min(asked.tokens)} – {max(asked.tokens)}",
                f"{statistics.mean(easy):.1f}",
                f"{statistics.mean(hard):.1f}",
                f"{100 * statistics.mean(asked.right):.1f}",
            ]
        )
    head = ["coverage=", "tokens, mean", "middle half", "fewest – most"]
    head += [f"scenes of at most {few:.0f} things", f"of at least {many:.0f} things", "correct, %"]
    return format_markdown(head, rows)


def table_by_width() -> tuple[str, list[dict[str, Any]]]:
    """Measure the coverage of tokens with real widths: those that resemble an image's, and independent random ones."""
    n = GRID[0] * GRID[1]
    weights = torch.rand(n, generator=torch.Generator().manual_seed(0)) ** 2
    rows, results = [], []
    for name, width in WIDTHS.items():
        kinds: dict[str, Tensor] = {
            "image-like": common.image_like(*GRID, width),
            "independent": torch.randn(n, width, generator=torch.Generator().manual_seed(1)),
        }
        for kind, features in kinds.items():
            similarity = core.token_similarity(features)
            covered = [
                core.facility_location(similarity, weights, round(share * n), symmetric=True).coverage
                for share in SHARES
            ]
            kept = [
                len(core.facility_location(similarity, weights, coverage=target, symmetric=True).indices)
                for target in TARGETS
            ]
            results.append({"width": width, "kind": kind, "coverage": covered, "tokens": kept})
            rows.append([name, kind, *(f"{each:.3f}" for each in covered), *(str(each) for each in kept)])
    head = ["model, width", "tokens", *(f"K={round(share * n)}" for share in SHARES)]
    head += [f"tokens for {target}" for target in TARGETS]
    return format_markdown(head, rows), results


@torch.inference_mode()
def main(samples_: int = typer.Option(96, "--samples")) -> None:
    """Measure, print, and write benchmarks/results/quality.json and the tables in docs/methods/selection.md."""
    common.use_one_thread()
    questions = list(samples("test", samples_))
    found, unpruned = ask_all(questions)
    by_width, widths = table_by_width()
    note = (
        f"{len(questions)} test questions of the pocket model, {100 * unpruned:.1f} % correct with all 256 tokens; "
        f"then {GRID[0] * GRID[1]} random tokens with random weights."
    )
    text = "\n\n".join([note, table_by_count(found), table_by_target(found, questions), by_width])
    Console(width=160).print(text)
    path = common.save(
        "quality",
        {
            "questions": len(questions),
            "unpruned": unpruned,
            "settings": {
                name: {
                    "accuracy": statistics.mean(asked.right),
                    "tokens": asked.tokens,
                    "coverage": statistics.mean(asked.coverage),
                    "random_coverage": statistics.mean(asked.random_coverage) if asked.random_coverage else None,
                }
                for name, asked in found.items()
            },
            "widths": widths,
        },
    )
    page = common.ROOT / "docs" / "methods" / "selection.md"
    common.write_into(page, "quality", text)
    print(f"written: {path.relative_to(common.ROOT)}, {page.relative_to(common.ROOT)}")


if __name__ == "__main__":
    typer.run(main)
