"""The live page: a picture, a question, methods and a budget; answers with all tokens and with few, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import gradio as gr
from PIL import Image

from eadp.methods import list_methods
from eadp.pocket.samples import samples
from eadp.utils.images import MAX_MEGAPIXELS, read_frames
from eadp.view.comparer import LONGEST, MethodComparer
from eadp.view.comparison import Comparison
from eadp.view.figure import coverages
from eadp.view.photos import photos
from eadp.view.report import framed, inert, render_report

UPLOAD = "20mb"
WAITING = 32
"""People who may wait for the model; the next one is told to come back later."""

KEPT_FOR = 3600
"""Seconds until an upload is deleted."""


def serve(model: str, host: str, port: int) -> None:
    """Blocks until it is interrupted."""
    launch(build(MethodComparer.from_name(model)), host, port, prevent_thread_lock=False)


def launch(page: gr.Blocks, host: str = "127.0.0.1", port: int | None = None, prevent_thread_lock: bool = True) -> str:
    """Returns the page's address. Files: only what was uploaded to it and what it made of that."""
    page.queue(max_size=WAITING, default_concurrency_limit=4, api_open=False)
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        max_file_size=UPLOAD,
        allowed_paths=[],
        footer_links=[],
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        prevent_thread_lock=prevent_thread_lock,
        quiet=prevent_thread_lock,
        theme=gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        css="footer { display: none }",
    )
    return address


def build(comparer: MethodComparer) -> gr.Blocks:
    """The page around one model."""

    def preview(upload: str | None, choice: str | None) -> tuple[Any, str]:
        try:
            return _pictures(upload, choice)[0], ""
        except ValueError as error:
            return None, alert(str(error))

    def choose(choice: str | None) -> tuple[Any, str, Any, str]:
        image, complaint = preview(None, choice)
        return image, complaint, gr.File(value=None), examples().get(choice or "", (None, ""))[1]

    def look(upload: str | None, choice: str | None, question: str, methods: list[str], keep: float) -> tuple[str, str]:
        try:
            images = _pictures(upload, choice)
            if keep is None or keep != int(keep):
                raise ValueError("the number of tokens is a whole number, such as 32")
            comparison = comparer.compare(images, question or "", methods, int(keep))
        except ValueError as error:
            return alert(str(error)), ""
        return answers(comparison), framed(render_report(comparison), "1400px")

    first = next(iter(examples()))
    image, question = examples()[first]
    with gr.Blocks(title="eadp", analytics_enabled=False, delete_cache=(KEPT_FOR, KEPT_FOR)) as page:
        gr.Markdown("# eadp\nKeep only the visual tokens that serve the question. " + " ".join(comparer.notes))
        with gr.Row():
            with gr.Column():
                choice = gr.Dropdown(list(examples()), value=first, label="A scene or a photo", elem_id="choice")
                upload = gr.File(
                    label=f"Or your own picture: at most {UPLOAD.upper()} and {MAX_MEGAPIXELS} megapixels",
                    type="filepath",
                    elem_id="upload",
                    height=150,
                )
                shown = gr.Image(
                    value=image, label="What is asked about", interactive=False, height=260, buttons=[], elem_id="shown"
                )
            with gr.Column():
                asked = gr.Textbox(question, label="Question", lines=2, max_length=LONGEST, elem_id="asked")
                methods = gr.CheckboxGroup(
                    list_methods(), value=["eadp", "cdpruner", "topk"], label="Methods", elem_id="methods"
                )
                keep = gr.Number(32, label="Tokens kept", precision=0, minimum=1, elem_id="keep")
                button = gr.Button("Look", variant="primary", elem_id="look")
                told = gr.HTML(elem_id="answers")
        found = gr.HTML(elem_id="report")
        hidden: dict[str, Any] = {"api_visibility": "private"}
        gr.on([upload.upload, upload.clear], preview, [upload, choice], [shown, told], **hidden)
        choice.input(choose, choice, [shown, told, upload, asked], **hidden)
        for event in (button.click, asked.submit):
            event(look, [upload, choice, asked, methods, keep], [told, found], **hidden)
    return page


def alert(sentence: str) -> str:
    return f'<p role="alert">{inert(sentence[:1].upper() + sentence[1:])}</p>'


def answers(comparison: Comparison) -> str:
    """What was said with all tokens and with few, and how long the prefills took."""
    head = "".join(f'<th scope="col">{text}</th>' for text in ("tokens", "answer", "prefill", "coverage"))
    rows = []
    if comparison.whole is not None:
        rows.append(_row(f"all {comparison.total}", comparison.whole.text, comparison.whole.prefill, None))
    for result, covered in zip(comparison.results, coverages(comparison), strict=True):
        if result.answer is not None:
            kept = f"{result.name}, {len(result.selection)}"
            rows.append(_row(kept, result.answer.text, result.answer.prefill, covered))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _row(what: str, answer: str, prefill: float, covered: float | None) -> str:
    share = "" if covered is None else f"{covered:.2%}"
    cells = "".join(f"<td>{inert(text)}</td>" for text in (answer, f"{prefill:.1f} ms", share))
    return f'<tr><th scope="row">{inert(what)}</th>{cells}</tr>'


def _pictures(upload: str | None, choice: str | None) -> Sequence[Image.Image]:
    if upload is not None:
        return read_frames(upload)
    if choice not in examples():
        raise ValueError("choose a scene or a photo, or upload a picture")
    return [examples()[choice][0]]


@cache
def examples() -> dict[str, tuple[Image.Image, str]]:
    """What can be chosen without uploading: pictures, each with a question."""
    scenes = [sample for number, sample in enumerate(samples("test", 24)) if number % 4 == 0]
    drawn = {f"scene {number}": (each.image, each.question) for number, each in enumerate(scenes, start=1)}
    return drawn | {f"photo: {photo.name}": (photo.image, photo.question) for photo in photos()}
