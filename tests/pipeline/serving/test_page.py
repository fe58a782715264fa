"""The page of `a2 serve` in a browser, with answers of a server that a test makes up."""

import csv
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.files.csv_cell import as_text, looks_like_formula
from a2cap.data.regions import cell_boxes
from a2cap.pipeline.report.html import load_template
from a2cap.pipeline.report.image_card import ImageCard

pytestmark = [pytest.mark.slow, pytest.mark.chromium]

INSECURE, SECURE = "http://a2.example/", "http://localhost/"
"""Addresses without and with a clipboard of the page."""
LONG = "a photograph of " + "a very long caption with many words that says everything " * 6
ARABIC, CHINESE = "رجل يركب حصانا على الشاطئ", "一个男人在海滩上骑着一匹白色的马远处有山和云"


def picture(width=64, height=48):
    content = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(content, "PNG")
    return content.getvalue()


def answer_of(caption, *, at=0, aligned=False, cells=7, size=(64, 48)):
    """Return the answer of the server; at: the cell with 70 % of the attention to each word."""
    count = len(caption.split())
    rows = np.full((count, cells**2), 0.3 / (cells**2 - 1), np.float32)
    rows[:, at] = 0.7
    keep = np.full_like(rows, 0.5) if aligned else None
    attention = CaptionAttention(rows, rows, keep)
    boxes = cell_boxes(cells, (0, 0, *size))
    card = ImageCard(None, *size, boxes, [], attention=attention, is_grid=True)
    beams = [{"caption": caption, "score": -1.5}, {"caption": "another one", "score": -2.0}]
    return {
        **{"image": None, "model": "fixed", "caption": caption, "score": -1.5, "beams": beams},
        **{"seconds": 0.25, "card": card.as_json(caption)},
    }


@pytest.fixture
def open_session(browser):
    """Open the page with files (name, answer); the answer of an error is its text."""
    contexts, complaints = [], []

    def open_session(
        files: Sequence[tuple[str, Any]], *, url=SECURE, width=1200, scheme="light", **options
    ):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        html = load_template("serve.html").render(name="fixed", about="")
        page.route(url, lambda route: route.fulfill(body=html, content_type="text/html"))
        sent = iter([answer for _, answer in files])

        def answer(route):
            content = next(sent)
            is_error = isinstance(content, str)
            route.fulfill(
                status=422 if is_error else 200, json={"error": content} if is_error else content
            )

        page.route(f"{url}caption", answer)
        page.goto(url)
        for name, _ in files:  # one by one, so that the answers are in order
            file = {"name": name, "mimeType": "image/png", "buffer": picture()}
            page.set_input_files("#file", file)
            page.wait_for_selector("[aria-busy]", state="detached")
        return page

    yield open_session
    for context in contexts:
        context.close()
    assert complaints == []


def large(page, name):
    """Return the card of an image, shown large."""
    card = page.locator(f".card[aria-label='{name}']")
    if not card.evaluate("card => card.matches('.large')"):
        card.click()
    return card


def saved(page, button):
    """Return name and content of the file that a button saves."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


FILES = [
    ("a.png", answer_of("a man on a horse")),
    ("a.jpg", answer_of(CHINESE)),
    ("=cmd.png", answer_of('=1+2, "quoted"')),
    ("broken.png", "image 'image' is not in a supported format; convert it"),
    ("عربي.png", answer_of(ARABIC)),
]


def test_all_captions_are_saved_as_csv_json_and_texts_as_they_were_edited(open_session):
    page = open_session(FILES)
    assert page.locator("#state").inner_text() == "4 of 5 captioned"
    large(page, "a.png").get_by_label("Text that is saved").fill("two men\non a horse")

    name, content = saved(page, "Save all as CSV")
    assert name == "captions.csv"
    assert list(csv.reader(io.StringIO(content.decode(), newline=""))) == [
        ["image", "caption"],
        ["a.png", "two men\non a horse"],
        ["a.jpg", CHINESE],
        ["./=cmd.png", '\'=1+2, "quoted"'],
        ["عربي.png", ARABIC],
    ]
    assert content.startswith(b'"image","caption"\r\n"a.png","two men\non a horse"\r\n')

    name, content = saved(page, "Save all as JSON")
    lines = json.loads(content)
    assert name == "captions.json"
    assert [line["image"] for line in lines] == ["a.png", "a.jpg", "=cmd.png", "عربي.png"]
    assert (lines[0]["caption"], lines[0]["generated"]) == (
        "two men\non a horse",
        "a man on a horse",
    )
    assert lines[1]["caption"] == lines[1]["generated"] == CHINESE
    assert lines[2]["beams"][1] == {"caption": "another one", "score": -2.0}

    name, content = saved(page, "Save all as ZIP")
    assert name == "captions.zip"
    with zipfile.ZipFile(io.BytesIO(content)) as texts:
        assert texts.testzip() is None  # all checksums are right
        assert {name: texts.read(name).decode() for name in texts.namelist()} == {
            "a.txt": "two men\non a horse\n",
            "a-2.txt": f"{CHINESE}\n",
            "=cmd.txt": '=1+2, "quoted"\n',
            "عربي.txt": f"{ARABIC}\n",
        }
    assert page.locator("#state").inner_text() == "4 of 5 captioned, saved as ZIP"


def test_an_edited_caption_keeps_the_words_of_the_captioner_and_can_be_restored(open_session):
    page = open_session(FILES)
    card = large(page, "a.png")
    words, edit = card.locator(".caption .word"), card.get_by_label("Text that is saved")
    restore = card.get_by_role("button", name="Restore the caption")
    assert card.get_by_role("status").inner_text() == ""
    edit.fill("a woman")
    assert words.all_inner_texts() == ["a", "man", "on", "a", "horse"]
    assert card.get_by_role("status").inner_text() == (
        "Edited: the words above, with their attention, are the captioner’s."
    )
    _, content = saved(page, "Save as JSON")
    line = json.loads(content)
    assert (line["caption"], line["generated"]) == ("a woman", "a man on a horse")
    large(page, "a.jpg")
    small = card.locator(".caption")
    shown = small.evaluate("caption => getComputedStyle(caption, '::after').content")
    assert shown == '"a woman"' and not words.first.is_visible()
    large(page, "a.png")
    assert words.first.is_visible()
    restore.click()
    assert edit.input_value() == "a man on a horse"
    page.wait_for_function("!document.querySelector('.large .note').textContent")
    assert small.get_attribute("data-text") is None


def test_a_caption_is_copied_also_without_https_or_selected(open_session):
    for url in (SECURE, INSECURE):
        options = {"permissions": ["clipboard-read", "clipboard-write"]} if url == SECURE else {}
        page = open_session([("a.png", answer_of("a man on a horse"))], url=url, **options)
        assert page.evaluate("isSecureContext") is (url == SECURE)
        edit, copy = page.get_by_label("Text that is saved"), page.locator("form button").first
        edit.fill(f"copied at {url}")
        copy.click()
        page.locator("button", has_text="Copied").wait_for()
        edit.fill("")
        edit.press("Control+v")
        assert edit.input_value() == f"copied at {url}"
    edit.fill("not copied")
    page.evaluate("document.execCommand = () => false")
    copy.click()
    page.locator("button", has_text="Press Ctrl+C").wait_for()
    assert page.evaluate("getSelection().toString()") == "not copied"


def test_the_readout_says_in_words_where_the_captioner_looked(open_session):
    page = open_session(
        [("a.png", answer_of("a man", at=48)), ("b.png", answer_of("a man", at=0, aligned=True))]
    )
    reading = large(page, "b.png").locator(".readout").inner_text()
    assert reading.startswith(
        "“man”: looked mostly at the upper left; 77 % of its attention is on that quarter of the "
        "image, 25 % if it were even; original α 70 %, 34.3 × even; aligned αᵃ 70 %"
    )
    reading = large(page, "a.png").locator(".readout").inner_text()
    assert reading.startswith("“man”: looked mostly at the lower right; 77 % of its attention")
    page.locator(".large .help").click()
    assert page.locator("#help dt", has_text="looked mostly at").is_visible()


def test_names_of_texts_suit_every_file_system(open_session):
    page = open_session([])
    names = ["../x.jpg", "x/y.png", "CON.png", "a.png", "A.JPG", "a-2.png", ".png", "b. .gif"]
    names += ["画" * 100 + ".png", "e\u0301.png", "\u00e9.png", "c\u202egnp.exe", "tab\t?.png"]
    texts = page.evaluate("names => textNames(names)", names)
    assert texts == [
        *("_._x.txt", "x_y.txt", "_CON.txt", "a.txt", "A-2.txt", "a-2-2.txt", "image.txt"),
        *("b_.txt", "画" * 66 + ".txt", "e\u0301.txt", "\u00e9-2.txt", "c_gnp.txt", "tab__.txt"),
    ]


def test_formulas_are_those_of_all_csv_files(open_session):
    page = open_session([])
    cells = [
        "=1",
        " +1",
        "-1",
        "@x",
        "＝1",
        "\ta",
        "\na",
        "a=1",
        "",
        "\ufeff=1",
        "\u200b-",
        " a",
        "1",
    ]
    formulas = page.evaluate("cells => cells.map((cell) => FORMULA.test(cell))", cells)
    assert formulas == [looks_like_formula(cell) for cell in cells]
    line = page.evaluate(
        "cells => asCsv([{ cells: 1 }, ...cells.map((cell) => ({ cell }))])", cells
    )
    rows = [row for (row,) in csv.reader(io.StringIO(line, newline=""))]
    assert rows == ["cells", "1", *map(as_text, cells)]


def test_the_keyboard_shows_a_photograph_large_and_steps_through_its_words(open_session):
    page = open_session([("rtl.png", answer_of(ARABIC)), ("a.png", answer_of("a man on a horse"))])
    small = page.locator(".card[aria-label='rtl.png']")
    small.get_by_role("button", name="Enlarge").focus()
    page.keyboard.press("Enter")
    assert small.evaluate("card => card.matches('.large')")
    focused = "document.activeElement.textContent"
    assert page.evaluate(focused).split() == ARABIC.split()  # its heading
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == next(iter(ARABIC.split()))
    page.keyboard.press("ArrowLeft")  # the next word, from right to left
    assert page.evaluate(focused) == ARABIC.split()[1]
    assert small.locator("textarea").evaluate("text => getComputedStyle(text).direction") == "rtl"


@pytest.mark.parametrize("width", [360, 768, 1200])
def test_long_foreign_and_many_captions_fit_and_everyone_can_use_them(
    open_session, faults_of, width
):
    captions = [LONG, ARABIC, CHINESE, "W" * 300, "", *(f"a photograph of {n}" for n in range(35))]
    files = [(f"{'x' * 120} {n}.png", answer_of(text)) for n, text in enumerate(captions)]
    page = open_session(files, width=width)
    assert page.locator("#state").inner_text() == "40 of 40 captioned"
    for name, _ in files[:5]:
        large(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert faults_of(page) == []
