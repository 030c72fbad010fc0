"""Write one card per method, docs/methods/NAME.md, and the overview table of docs/methods/index.md.

    python benchmarks/cards.py

A card only repeats what other places say: the class of the method (paper, idea, settings), the parity table of
docs/methods/parity.md, the tables of the EADP paper in `eadp.paper`, and the results in benchmarks/results.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common

from eadp import paper, parity
from eadp.methods import InsideMethod, Method, NoPruning, get_method_class, list_methods
from eadp.methods.settings import describe, setting_types
from eadp.utils.tables import NOTHING, format_markdown

PAGES = common.ROOT / "docs" / "methods"
CONTROL = "control"
BUDGETS = (64, 32, 16)
"""Budgets at which accuracy.py measures the model for scenes of things."""

VECTOR_FOLDERS = {"prumerge_plus": "prumerge"}
"""Folders of golden vectors that are not called `METHOD` or `METHOD_…`."""

STAGES = {
    "before": "[before the language model](before.md)",
    "inside": "[inside the language model](inside.md), between its layers",
}
NEEDS = {
    "text": "the question",
    "word_embeddings": "the question as word embeddings of the language model",
    "vision_attention": "attention of the vision tower",
    "tower_rows": "rows of the vision tower, before the projector",
    "tower_features": "features of the vision tower",
    "language_attention": "attention of the language model",
    "pixels": "the pixels of the image",
    "padding": "where the image is padding",
}
POSITIONS = {"keep": "each kept token keeps its position", "renumber": "kept tokens are renumbered without gaps"}
NEWLINES = {
    "none": "dropped",
    "kept rows": "kept for rows that keep a token",
    "all": "all kept",
    "chosen": "selected like any other token",
}


def main() -> None:
    """Write all cards and the overview table."""
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
    common.write_into(PAGES / "index.md", "methods", overview())
    common.write_into(PAGES / "index.md", "figures", figures())
    print(f"written: {len(methods())} cards and the table of {(PAGES / 'index.md').relative_to(common.ROOT)}")


def methods() -> list[type[Method]]:
    """List the methods with a card: EADP first, then the other published methods, then the controls."""
    classes = [get_method_class(name) for name in list_methods() if name != NoPruning.name]
    return sorted(classes, key=lambda each: (each.name != "eadp", each.citation == CONTROL, each.name))


def pages() -> dict[Path, str]:
    """Format every card, by its path."""
    return {PAGES / f"{method.name}.md": card(method) for method in methods()}


def overview() -> str:
    """Format the overview table: each method in one sentence."""
    rows = [[f"[{method.__name__}]({method.name}.md)", f"`{method.name}`", prose(method)[0]] for method in methods()]
    return format_markdown(["method", "name", "what it keeps"], rows)


def figures() -> str:
    """Format the table that compares the methods: stage, needs, parity, selection time, accuracy."""
    times = load_result("methods")["cases"][0]
    outcomes = {(each["method"], each["keep"]): each["accuracy"] for each in load_result("accuracy")["outcomes"]}
    head = ["method", "prunes", "reads the question", "needs", "vectors equal", f"time, {times['k']} of {times['n']}"]
    rows = []
    for method in methods():
        counts = [[int(count) for count in row[2].split(" of ")] for row in vector_rows(method)]
        time = times["ms"].get(method.name)
        accuracies = [outcomes.get((method.name, budget)) for budget in BUDGETS]
        rows.append(
            [
                f"[{method.__name__}]({method.name}.md)",
                stage(method),
                "yes" if is_text_aware(method) else "no",
                needs(method),
                " of ".join(str(sum(column)) for column in zip(*counts, strict=True)) or NOTHING,
                NOTHING if time is None else f"{time / times['ms']['eadp']:.2f}",
                *(NOTHING if each is None else f"{100 * each:.1f}" for each in accuracies),
            ]
        )
    return format_markdown([*head, *(f"things, {budget} tokens" for budget in BUDGETS)], rows)


def is_text_aware(method: type[Method]) -> bool:
    """Whether the question decides what stays. Inside the language model, its tokens do."""
    return issubclass(method, InsideMethod) or bool({"text", "word_embeddings"} & method.needs)


def card(method: type[Method]) -> str:
    """Format the card of a method."""
    summary, *idea = prose(method)
    sections = [f"# {method.__name__}", summary, facts(method)]
    sections += picture(method)
    if idea:
        sections += ["## Idea", *idea]
    sections += [
        "## Use",
        f'```python\nwith eadp.attach(model, processor, method="{method.name}", keep=64) as pruned:\n'
        "    output = model.generate(**inputs)\n```",
        "## Settings",
        "Pass them to `eadp.attach`, to the class, or as `--set NAME=VALUE` on the command line.",
        settings(method),
        "## Parity with the release",
        vectors(method),
    ]
    if reported := accuracy_in_paper(method):
        sections += [
            "## Accuracy in the EADP paper",
            "The paper's average over its benchmarks, in percent. Its authors measured these figures; we did not. "
            "[The paper's tables](../guides/paper-tables.md) explain the averages.",
            reported,
        ]
    sections += ["## Our measurements", *measurements(method)]
    note = f"<!-- Written by benchmarks/cards.py from {Path(inspect.getfile(method)).name}: edit that file. -->"
    return "\n\n".join([note, *sections]) + "\n"


def facts(method: type[Method]) -> str:
    rows = [
        ["Paper", "none: this is a control" if method.citation == CONTROL else method.citation],
        ["Class", f"`{method.__module__}.{method.__qualname__}`"],
        ["Prunes", STAGES[stage(method)]],
        ["Needs", needs(method)],
        ["Merges tokens", "yes" if method.merges else "no"],
        ["Positions, by default", positions(method)],
        ["Newline tokens, by default", NEWLINES[method.newlines]],
        ["Presets", "; ".join(method.presets) or "none"],
    ]
    return "\n".join(f"- **{name}:** {fact}" for name, fact in rows)


def picture(method: type[Method]) -> list[str]:
    """Format the picture of what the method keeps, and its caption; nothing if there is no picture."""
    if (common.IMAGES / f"clip-{method.name}.webp").is_file():
        return [
            f"![What {method.__name__} keeps of a clip](../img/clip-{method.name}.webp)",
            f"Frames of a [clip of things](../guides/things.md), and below them what {method.__name__} keeps of each "
            "with `keep=0.25`.",
        ]
    if not (common.IMAGES / f"method-{method.name}.webp").is_file():
        return []
    shown = load_result("pictures")
    return [
        f"![What {method.__name__} keeps of a scene](../img/method-{method.name}.webp)",
        f"A [scene of things](../guides/things.md) with the question “{shown['question']}”, and the "
        f"{shown['keep']} of {shown['tokens']} tokens that {method.__name__} keeps.",
    ]


def stage(method: type[Method]) -> str:
    return "inside" if issubclass(method, InsideMethod) else "before"


def positions(method: type[Method]) -> str:
    usual, on_qwen = POSITIONS[method.positions], POSITIONS[method(keep=1).positions_for("qwen2_5_vl")]
    return usual if on_qwen == usual else f"{usual}; on Qwen {on_qwen}"


def needs(method: type[Method]) -> str:
    return ", ".join(NEEDS[need] for need in sorted(method.needs)) or "the visual tokens only"


def prose(method: type[Method]) -> list[str]:
    """Extract the paragraphs of the class docstring before its first Google-style section."""
    linked = re.sub(r"docs/methods/([\w-]+)\.md", r"[\1](\1.md)", inspect.getdoc(method) or "")
    text = re.split(r"^(?:Args|Attributes|Raises|Examples?):\s*$", linked, flags=re.M)[0]
    paragraphs = [paragraph.replace("\n", " ") for paragraph in re.split(r"\n\s*\n", text.strip())]
    return [re.sub(r"^(Paper|Claim|Release, the default|Release|Departures):", r"**\1:**", each) for each in paragraphs]


def settings(method: type[Method]) -> str:
    documented, types = field_docs(method), setting_types(method)
    rows = []
    for each in sorted(dataclasses.fields(method), key=lambda each: each.name not in ("keep", "coverage")):
        kind = describe(types[each.name])
        default = "required" if each.default is dataclasses.MISSING else f"`{each.default!r}`"
        rows.append([f"`{each.name}`", kind, default, documented.get(each.name, "")])
    return format_markdown(["setting", "values", "default", "meaning"], rows)


def field_docs(method: type[Method]) -> dict[str, str]:
    """Extract the descriptions of the fields from the "Attributes:" sections of the class and its bases."""
    docs: dict[str, str] = {}
    for base in reversed(method.__mro__):
        section = re.search(r"^Attributes:\n((?: +.*\n?|\n)+)", inspect.cleandoc(base.__doc__ or ""), re.MULTILINE)
        for entry in re.split(r"^    (?=\S)", section[1] if section else "", flags=re.MULTILINE)[1:]:
            name, _, text = entry.partition(":")
            docs[name] = " ".join(text.split())
    return docs


def vectors(method: type[Method]) -> str:
    """Format the rows of the parity table that are about this method."""
    rows = vector_rows(method)
    if not rows and method.citation != CONTROL:
        return "There was no release to compare it with, so we claim no parity."
    if not rows:
        return "This method is a control. There is no release to compare it with."
    text = (
        "Golden vectors: the authors' release and this implementation ran on the same tensors. "
        "[How they are compared](parity.md)."
    )
    return f"{text}\n\n{format_markdown(['compared on', 'release', 'vectors equal'], rows)}"


def vector_rows(method: type[Method]) -> list[list[str]]:
    """Read the rows of the parity table that are about this method: title, release, how many vectors are equal."""
    folders = [folder for folder in parity.TITLES if method.name == VECTOR_FOLDERS.get(folder, folder.split("_")[0])]
    titles = {parity.TITLES[folder] for folder in folders}
    page = (PAGES / "parity.md").read_text("utf-8")
    table = re.search(r"<!-- parity: .*?<!-- end -->", page, re.DOTALL)
    lines = [line for line in (table[0] if table else "").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row[:3] for row in cells if row[0] in titles]


def accuracy_in_paper(method: type[Method]) -> str:
    rows = []
    for table in paper.tables("accuracy"):
        whole = table.find_row(paper.ALL_TOKENS, table.tokens)
        kept = [row for row in table.rows if row.method == method.name and row.keep is not None]
        if kept and whole:
            cells = [f"{row.printed[paper.AVERAGE]} with {row.keep:,}" for row in kept]
            rows.append([table.model, f"{whole.printed[paper.AVERAGE]} with all {table.tokens:,}", "; ".join(cells)])
    return format_markdown(["model", "unpruned", method.__name__], rows) if rows else ""


def measurements(method: type[Method]) -> Iterator[str]:
    yield from accuracy(method, "accuracy", "scenes", "576 visual tokens")
    yield from accuracy(method, "clip_accuracy", "clips", "1,152 visual tokens")
    times = [case for case in load_result("methods")["cases"] if method.name in case["ms"]]
    if times and method.name != "eadp":
        ratios = [f"{case['ms'][method.name] / case['ms']['eadp']:.2f}" for case in times]
        head = [f"{case['k']} of {case['n']:,} tokens" for case in times]
        yield "**Time to select the tokens**, as a ratio to EADP's ([how it is measured](before.md#selection-time))."
        yield format_markdown(head, [ratios])
    rows = []
    for name, model in (("prefill", "LLaVA-OneVision-0.5B"), ("llava-1.5-7b", "LLaVA-1.5-7B, 4 of its 32 layers")):
        for row in load_result(name)["rows"]:
            if row["method"] == method.name:
                ratio = row["ratio"]["prefill"]
                rows.append(
                    [model, str(row["keep"]), f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"]
                )
    if rows:
        yield (
            "**Prefill time**, as a ratio to the unpruned model, with the vision tower and the pruning included: "
            "random weights, one CPU thread ([how it is measured](../guides/measure.md))."
        )
        yield format_markdown(["model", "tokens kept", "prefill (95 % interval)"], rows)


def accuracy(method: type[Method], result: str, asked: str, tokens: str) -> Iterator[str]:
    """Format how often answers about scenes or clips of things stay right with a method."""
    found = load_result(result)
    unpruned = next(outcome for outcome in found["outcomes"] if outcome["method"] == "all tokens")
    rows = []
    for outcome in found["outcomes"]:
        if outcome["method"] != method.name:
            continue
        low, high = outcome["interval"]
        options = ", ".join(f"{name}={value!r}" for name, value in outcome["options"].items())
        rows.append(
            [
                f"{outcome['keep']:.4g}" + (f" (`{options}`)" if options else ""),
                f"{100 * outcome['accuracy']:.1f} ({100 * low:.0f}–{100 * high:.0f})",
            ]
        )
    if rows:
        yield (
            f"**Accuracy of a [toy model](../guides/things.md) on {found['questions']:,} questions about {asked} of "
            f"things**, {tokens} each, in percent with a 95 % interval. Unpruned: {100 * unpruned['accuracy']:.1f}. "
            "Do not compare this with the paper's figures."
        )
        yield format_markdown(["kept, as a number or share", "correct"], rows)


def load_result(name: str) -> dict[str, Any]:
    return json.loads((common.RESULTS / f"{name}.json").read_text("utf-8"))


if __name__ == "__main__":
    main()
