"""The live page: ask about an image with all tokens and with few, and see the report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import gradio as gr
from PIL import Image

from eadp.methods import list_methods
from eadp.pocket.names import PHOTO, POCKET
from eadp.pocket.worlds import samples_for
from eadp.utils.images import MAX_MEGAPIXELS, read_frames
from eadp.view.comparer import MAX_QUESTION_LENGTH, MethodComparer
from eadp.view.comparison import Comparison
from eadp.view.default_model import choose_model
from eadp.view.figure import coverages
from eadp.view.photos import list_photos
from eadp.view.report import embed_in_iframe, escape_text, render_report

MAX_UPLOAD = "20mb"
MAX_WAITING = 32
"""Requests that may wait for the model. Further requests are rejected."""

UPLOAD_LIFETIME = 3600
"""Seconds until an upload is deleted."""


def serve(model: str | None, host: str, port: int) -> None:
    """Serve the live page of a model until the process is interrupted.

    Args:
        model: Name of the model, as `load_model` takes it; None for the default of `choose_model`.
        host: The address to listen on.
        port: The port to listen on.

    Raises:
        ValueError: If there is no such model.
        OSError: If the port is in use.
    """
    name, notes = choose_model(model)
    launch_page(build_page(MethodComparer.from_name(name, notes), name), host, port, prevent_thread_lock=False)


def launch_page(
    page: gr.Blocks, host: str = "127.0.0.1", port: int | None = None, prevent_thread_lock: bool = True
) -> str:
    """Start to serve a page. It serves no files except uploads and what it made from them.

    Args:
        page: The page.
        host: The address to listen on.
        port: The port to listen on; by default a free one.
        prevent_thread_lock: Whether to return at once instead of serving until interrupted.

    Returns:
        The URL of the page.
    """
    page.queue(max_size=MAX_WAITING, default_concurrency_limit=4, api_open=False)
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        max_file_size=MAX_UPLOAD,
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


def build_page(comparer: MethodComparer, name: str = POCKET) -> gr.Blocks:
    """Build the page of one model.

    Args:
        comparer: The model.
        name: Its name. The scenes that need no upload are of the world that this model knows.
    """
    ready = examples(name)

    def load_images(upload: str | None, example: str | None) -> Sequence[Image.Image]:
        if upload is not None:
            return read_frames(upload)
        if example not in ready:
            raise ValueError("choose a scene or a photo, or upload an image")
        return [ready[example][0]]

    def preview(upload: str | None, example: str | None) -> tuple[Any, str]:
        try:
            return load_images(upload, example)[0], ""
        except ValueError as error:
            return None, format_alert(str(error))

    def choose_example(example: str | None) -> tuple[Any, str, Any, str]:
        image, alert = preview(None, example)
        return image, alert, gr.File(value=None), ready.get(example or "", (None, ""))[1]

    def compare(
        upload: str | None, example: str | None, question: str, methods: list[str], keep: float
    ) -> tuple[str, str]:
        try:
            images = load_images(upload, example)
            if keep is None or keep != int(keep):
                raise ValueError("the number of tokens must be a whole number, such as 32")
            comparison = comparer.compare(images, question or "", methods, int(keep))
        except ValueError as error:
            return format_alert(str(error)), ""
        return format_answers(comparison), embed_in_iframe(render_report(comparison), "1400px")

    # Without scikit-image there is no photograph to begin with.
    first = next(iter(ready), None)
    first_image, first_question = ready.get(first or "", (None, ""))
    with gr.Blocks(title="eadp", analytics_enabled=False, delete_cache=(UPLOAD_LIFETIME, UPLOAD_LIFETIME)) as page:
        gr.Markdown("# eadp\nKeep only the visual tokens that serve the question. " + " ".join(comparer.notes))
        with gr.Row():
            with gr.Column():
                example = gr.Dropdown(list(ready), value=first, label="A scene or a photo", elem_id="example")
                upload = gr.File(
                    label=f"Or your own image: at most {MAX_UPLOAD.upper()} and {MAX_MEGAPIXELS} megapixels",
                    type="filepath",
                    elem_id="upload",
                    height=150,
                )
                image = gr.Image(
                    value=first_image, label="Image", interactive=False, height=260, buttons=[], elem_id="image"
                )
            with gr.Column():
                question = gr.Textbox(
                    first_question, label="Question", lines=2, max_length=MAX_QUESTION_LENGTH, elem_id="question"
                )
                methods = gr.CheckboxGroup(
                    list_methods(), value=["eadp", "cdpruner", "topk"], label="Methods", elem_id="methods"
                )
                keep = gr.Number(32, label="Tokens to keep", precision=0, minimum=1, elem_id="keep")
                button = gr.Button("Compare", variant="primary", elem_id="compare")
                answers = gr.HTML(elem_id="answers")
        report = gr.HTML(elem_id="report")
        hidden: dict[str, Any] = {"api_visibility": "private"}
        gr.on([upload.upload, upload.clear], preview, [upload, example], [image, answers], **hidden)
        example.input(choose_example, example, [image, answers, upload, question], **hidden)
        for event in (button.click, question.submit):
            event(compare, [upload, example, question, methods, keep], [answers, report], **hidden)
    return page


def format_alert(sentence: str) -> str:
    """Format an error message as HTML."""
    return f'<p role="alert">{escape_text(sentence[:1].upper() + sentence[1:])}</p>'


def format_answers(comparison: Comparison) -> str:
    """Format the answers, prefill times and coverages of a comparison as an HTML table."""
    head = "".join(f'<th scope="col">{text}</th>' for text in ("tokens", "answer", "prefill", "coverage"))
    rows = []
    if comparison.unpruned is not None:
        unpruned = comparison.unpruned
        rows.append(_format_row(f"all {comparison.total}", unpruned.text, unpruned.prefill, None))
    for result, coverage in zip(comparison.results, coverages(comparison), strict=True):
        if result.answer is not None:
            label = f"{result.name}, {len(result.selection)}"
            rows.append(_format_row(label, result.answer.text, result.answer.prefill, coverage))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _format_row(label: str, answer: str, prefill: float, coverage: float | None) -> str:
    share = "" if coverage is None else f"{coverage:.2%}"
    cells = "".join(f"<td>{escape_text(text)}</td>" for text in (answer, f"{prefill:.1f} ms", share))
    return f'<tr><th scope="row">{escape_text(label)}</th>{cells}</tr>'


@cache
def examples(model: str) -> dict[str, tuple[Image.Image, str]]:
    """Return the images that need no upload, each with a question, by the name that the page shows.

    They are scenes, unless the model knows photographs, and photographs.
    """
    total = 0 if model == PHOTO else 24
    scenes = [sample for number, sample in enumerate(samples_for(model, "test", total)) if number % 4 == 0]
    drawn = {f"scene {number}": (each.image, each.question) for number, each in enumerate(scenes, start=1)}
    return drawn | {f"photo: {photo.name}": (photo.image, photo.question) for photo in list_photos()}
