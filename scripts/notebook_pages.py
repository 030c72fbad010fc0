"""Run the notebooks and write their pages: docs/start/NAME.md and its images, from notebooks/NAME.ipynb.

    python scripts/notebook_pages.py

The notebooks are stored without outputs. The pages show the outputs.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS, PAGES, IMAGES = ROOT / "notebooks", ROOT / "docs" / "start", ROOT / "docs" / "img"
MAX_WIDTH = 1200
"""Width in pixels to which wider images are scaled down."""


def main() -> None:
    for path in notebooks():
        page = write_page(path, run(path))
        print(f"written: {page.relative_to(ROOT)}")


def notebooks() -> list[Path]:
    return sorted(NOTEBOOKS.glob("*.ipynb"))


def run(path: Path) -> nbformat.NotebookNode:
    """Run a notebook from start to end. An error in a cell is raised here."""
    notebook = nbformat.read(path, as_version=4)
    return NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()


def page_of(path: Path) -> Path:
    return PAGES / f"{path.stem.replace('_', '-')}.md"


def sources(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the cells as Markdown, without outputs."""
    return [f"```python\n{cell.source}\n```" if cell.cell_type == "code" else cell.source for cell in notebook.cells]


def shown(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the outputs of a cell without warnings and progress bars, with all printed text in one output."""
    outputs = [output for output in cell.get("outputs", []) if output.get("name") != "stderr"]
    streams = [output for output in outputs if output.output_type == "stream"]
    for stream in streams[1:]:
        streams[0].text += stream.text
        outputs.remove(stream)
    return outputs


def write_page(path: Path, notebook: nbformat.NotebookNode) -> Path:
    parts: list[str] = []
    number = 0
    for cell, source in zip(notebook.cells, sources(notebook), strict=True):
        parts.append(source)
        for output in shown(cell):
            data = output.get("data", {})
            if "image/png" in data:
                number += 1
                name = f"notebook-{page_of(path).stem}-{number}.webp"
                _save_image(base64.b64decode(data["image/png"]), IMAGES / name)
                parts.append(f"![Output of the cell above](../img/{name})")
            else:
                text = output.get("text") or data["text/plain"]
                parts.append(f"```text\n{text.strip()}\n```")
    note = f"*This page is the notebook `{path.relative_to(ROOT)}`, with the outputs of its last run.*"
    page = page_of(path)
    page.write_text("\n\n".join([parts[0], note, *parts[1:]]) + "\n", encoding="utf-8")
    return page


def _save_image(png: bytes, path: Path) -> None:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    if image.width > MAX_WIDTH:
        image = image.resize((MAX_WIDTH, round(image.height * MAX_WIDTH / image.width)), Image.Resampling.LANCZOS)
    image.save(path, quality=80, method=6)


if __name__ == "__main__":
    main()
