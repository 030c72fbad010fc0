"""The report and the live page in a real browser show the values of the library."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.comparisons import comparison, noise
from playwright.sync_api import sync_playwright

from eadp.core import token_similarity
from eadp.pocket.samples import samples
from eadp.view import render_report
from eadp.view.comparer import MethodComparer

SCREENSHOTS = ROOT / "out" / "browser"
CHROMIUM_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("chromium is not installed: `make browser` installs it")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=CHROMIUM_OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser):
    """A browser tab that fails the test if the script of the page fails."""
    errors = []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: errors.append(f"the page opened a dialog: {dialog.message}"))
    yield page
    page.close()
    assert not errors


def open_report(tab, path, made):
    path.write_text(render_report(made), encoding="utf-8")
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready]")


def set_picks(tab, picks):
    tab.locator("#picks").evaluate("(node, k) => { node.value = k; node.dispatchEvent(new Event('input')) }", picks)


def pixels(tab, number=0):
    return tab.locator("canvas").nth(number).evaluate("node => node.toDataURL()")


def hover_token(tab, token, columns, rows):
    box = tab.locator("canvas").first.bounding_box()
    x = box["x"] + (token % columns + 0.5) * box["width"] / columns
    y = box["y"] + (token // columns + 0.5) * box["height"] / rows
    tab.mouse.move(x, y)


def test_the_report_replays_the_picks_with_the_values_of_the_library(tab, tmp_path):
    question = "<b onclick=alert(1)>Where</b> 是 the 🐱 ?"
    made = comparison([(12, 12)], [noise(240, 240)], 30, question=question)
    open_report(tab, tmp_path / "report.html", made)
    assert tab.locator("h1").inner_text() == question

    def shown():
        rows = tab.locator("#numbers tbody tr").all()
        return [[cell.inner_text() for cell in row.locator("th,td").all()][:6] for row in rows]

    def expected(picks):
        rows = []
        for result, replayed in zip(made.results, made.replays, strict=True):
            gain = (replayed.coverage[picks - 1] - replayed.coverage[picks - 2]).item()
            bound = f"{result.selection.bound:.2%}" if picks == 30 and result.selection.bound else "–"
            covered = replayed.coverage[picks - 1].item()
            sent = str(result.selection.tokens_sent) if picks == 30 else "–"
            rows.append([result.name, str(picks), sent, f"{covered:.2%}", f"{gain:.4%}", bound])
        return rows

    assert shown() == expected(30)
    before = pixels(tab)
    set_picks(tab, 11)
    assert shown() == expected(11)
    assert tab.locator("#picks-value").inner_text() == "11"
    assert pixels(tab) != before

    chosen = made.results[0].selection.order[:11]
    similarity = token_similarity(made.features)[chosen]
    token = next(each for each in range(144) if each not in chosen.tolist())
    best = similarity[:, token].max(dim=0)
    hover_token(tab, token, 12, 12)
    status = tab.locator("#status").inner_text()
    assert f"token {token} " in status
    assert f"represented by token {int(chosen[best.indices])} " in status
    assert f"similarity {best.values.item():.3f}" in status
    tab.screenshot(path=SCREENSHOTS / "report.png", full_page=True)


def test_a_word_shows_its_own_map_and_toggles_work_by_keyboard(tab, tmp_path):
    made = comparison([(12, 12)], [noise(240, 240)], 30)
    open_report(tab, tmp_path / "report.html", made)
    plain = pixels(tab)
    word = tab.locator(".word").nth(3)
    word.hover()
    text, entropy, kept = made.words[3]
    assert f"“{text}”: entropy {entropy:.2f}, {'used' if kept else 'not used'}" in tab.locator("#status").inner_text()
    assert pixels(tab) != plain
    tab.mouse.move(0, 0)
    assert pixels(tab) == plain
    word.focus()
    assert pixels(tab) != plain
    struck = [not kept for _, _, kept in made.words]
    assert [("dropped" in node.get_attribute("class")) for node in tab.locator(".word").all()] == struck
    for layer in ("map", "kept", "order"):
        button = tab.locator(f"#show-{layer}")
        was = button.get_attribute("aria-pressed")
        button.focus()
        tab.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") != was
    tab.locator("#picks").focus()
    tab.keyboard.press("ArrowLeft")
    assert tab.locator("#picks-value").inner_text() == "29"
    tab.locator("canvas").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        tab.keyboard.press(key)
    assert "token 13 (row 2, column 2)" in tab.locator("#status").inner_text()


def test_the_report_fits_a_phone_in_dark_mode_and_labels_its_controls(browser, tmp_path):
    made = comparison([(6, 6), (6, 6), (6, 6)], [noise(240, 240)], 20, layout=(1, 2))
    phone = browser.new_page(viewport={"width": 360, "height": 780}, color_scheme="dark")
    open_report(phone, tmp_path / "report.html", made)
    assert phone.evaluate("document.documentElement.scrollWidth") == 360
    assert phone.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 27)"
    for node in phone.locator("button, input, canvas").all():
        assert node.evaluate(
            "node => node.getAttribute('aria-label') || node.textContent || node.labels[0].textContent"
        )
    phone.screenshot(path=SCREENSHOTS / "phone.png", full_page=True)
    phone.close()


# ── The live page ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def comparer():
    return MethodComparer.from_name("pocket")


@pytest.fixture(scope="module")
def address(comparer, tmp_path_factory):
    from eadp.view import page

    built = page.build_page(comparer)
    yield page.launch_page(built)
    built.close(verbose=False)


@pytest.mark.slow
def test_an_image_is_uploaded_and_asked_about(tab, address, comparer, tmp_path):
    requests = []
    tab.on("request", lambda request: requests.append(request.url) if "://127.0.0.1" not in request.url else None)
    noise(300, 200).save(tmp_path / "mine.png")
    tab.goto(address)
    tab.locator("#upload input[type=file]").set_input_files(tmp_path / "mine.png")
    tab.wait_for_selector("#upload .file-preview")
    question = "<img src=x onerror=alert(1)> {{7*7}} ${7*7} Is there a cat?"
    tab.locator("#question textarea").fill(question)
    tab.locator("#compare").click()
    tab.wait_for_selector("#answers table", timeout=120_000)
    report = tab.frame_locator("#report iframe")
    report.locator("body[data-ready]").wait_for()
    assert report.locator("h1").inner_text() == question

    made = comparer.compare([noise(300, 200)], question, ["cdpruner", "eadp", "topk"], 32, rounds=1)
    rows = {
        row.locator("th").inner_text(): [cell.inner_text() for cell in row.locator("td").all()]
        for row in tab.locator("#answers tbody tr").all()
    }
    assert rows["all 256"][0] == made.unpruned.text
    for result, replayed in zip(made.results, made.replays, strict=True):
        answer, _, covered = rows[f"{result.name}, 32"]
        assert (answer, covered) == (result.answer.text, f"{replayed.coverage[-1].item():.2%}")
        assert covered in report.locator("#numbers").inner_text()
    assert not [url for url in requests if not url.startswith(("data:", "blob:", "about:"))]
    tab.screenshot(path=SCREENSHOTS / "page.png")


@pytest.mark.slow
def test_bad_uploads_and_questions_show_an_error(tab, address, tmp_path):
    (tmp_path / "notes.png").write_text("not an image")
    tab.goto(address)
    tab.locator("#upload input[type=file]").set_input_files(tmp_path / "notes.png")
    alert = tab.locator("#answers [role=alert]")
    alert.wait_for()
    assert "Notes.png is not an image that can be read" in alert.inner_text()
    tab.goto(address)
    tab.locator("#question textarea").fill("  ")
    tab.locator("#compare").click()
    alert.wait_for()
    assert alert.inner_text() == "The question is empty: ask something about the image"


@pytest.mark.slow
def test_the_page_listens_on_localhost_and_serves_no_other_files(address):
    assert address.startswith("http://127.0.0.1:")
    for path in ("/etc/hostname", str(Path(__file__).resolve()), str(Path("README.md").resolve())):
        with pytest.raises(urllib.error.HTTPError) as rejected:
            urllib.request.urlopen(f"{address}gradio_api/file={path}")
        assert rejected.value.code in (403, 404)


@pytest.mark.slow
def test_an_upload_that_is_too_large_is_rejected(address):
    boundary = "eadpboundary"
    body = f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="big.png"\r\n\r\n'.encode()
    body += b"0" * (21 << 20) + f"\r\n--{boundary}--\r\n".encode()
    request = urllib.request.Request(
        f"{address}gradio_api/upload", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    )
    with pytest.raises(urllib.error.HTTPError) as rejected:
        urllib.request.urlopen(request)
    assert rejected.value.code == 413
    assert b"exceeded" in rejected.value.read()


@pytest.mark.slow
def test_concurrent_requests_get_their_own_answers(comparer):
    questions = list(samples("test", 4))
    with ThreadPoolExecutor(4) as threads:
        together = list(
            threads.map(lambda one: comparer.compare([one.image], one.question, ["eadp"], 32, rounds=1), questions)
        )
    for one, made in zip(questions, together, strict=True):
        alone = comparer.compare([one.image], one.question, ["eadp"], 32, rounds=1)
        assert made.question == one.question
        assert made.results[0].answer.text == alone.results[0].answer.text
        assert made.results[0].selection.coverage == alone.results[0].selection.coverage
