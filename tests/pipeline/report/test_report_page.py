"""Report in a browser: drawing, sorting, searching, and attention."""

import base64
import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from a2cap.data.annotations.instances import Instances
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.grounding import Grounding
from a2cap.pipeline.metrics.score import Scores
from a2cap.pipeline.metrics.word_groups import score_word_groups
from a2cap.pipeline.report.report import Baseline, write_report
from tests.pipeline.report.evaluations import card, evaluation, padded

pytestmark = [pytest.mark.slow, pytest.mark.chromium]

ORIGINAL = np.array([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8]], dtype=np.float32)
ATTENTION = CaptionAttention(
    original=ORIGINAL,
    aligned=ORIGINAL * np.array([1.0, 1.0, 2.5], dtype=np.float32),
    keep=np.full((3, 3), 0.25, dtype=np.float32),
    gate=np.array([0.125, 0.5, 0.75], dtype=np.float32),
)
PLAIN = CaptionAttention(ORIGINAL, ORIGINAL)
HEADS = np.stack([ORIGINAL, ORIGINAL[:, ::-1]])
LAYERS = (
    CaptionAttention(HEADS, HEADS),
    CaptionAttention(HEADS, HEADS, np.stack([ORIGINAL, ORIGINAL]), HEADS[:, :, 0]),
)
TRUTH = Instances(np.array([[12, 18, 58, 52]], dtype=np.float32), ("dog",))
WORDS = ("dog", "cat", "bus")
GROUPS = score_word_groups(
    {"1": "a red ball left of a cup"},
    {"1": ["a blue ball left of a cup"]},
    {"kinds": {"ball", "cup"}, "colours": {"red", "blue"}, "relations": {"left"}},
)
EVALUATION = evaluation(
    range(100),
    caption=lambda n: f"a {WORDS[n % 3]} here",
    scores=Scores(
        {"CIDEr": 0.8, "Bleu_4": 0.27},
        {padded(n): {"Bleu_4": (n * 7) % 10 / 10, "CIDEr": n / 10} for n in range(100)},
        {"SPICE": "no jars " * 12},
        confidence={"CIDEr": (0.75, 0.85)},
    ),
    skipped={},
    provenance={"vocabulary": "10,201 entries", "digest": "f" * 64},
    grounding={padded(0): Grounding(0.5, 0.625, 0.25, 2)},
    word_groups=GROUPS,
    baseline=Baseline(
        {"CIDEr": 0.4}, GROUPS.groups, "a captioner without features, trained equally long"
    ),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Write a report with three cards: aligned, plain, and aligned without an image file."""
    folder = tmp_path_factory.mktemp("report page")
    photo = folder / "photo.jpg"
    Image.new("RGB", (640, 480), (90, 140, 60)).save(photo)
    cards = {
        0: card(photo, replace(ATTENTION, layers=LAYERS), truth=TRUTH),
        1: card(photo, PLAIN),
        2: card(None, ATTENTION),
    }
    path = folder / "report.html"
    write_report(path, EVALUATION, ((padded(n), one) for n, one in cards.items()))
    return path


@pytest.fixture
def page(report, open_page):
    return open_page(report)


def ids(page):
    return [int(card.get_attribute("data-id")) for card in page.locator(".card").all()]


def test_the_worst_come_first_and_more_are_drawn_in_view(page):
    assert ids(page)[:5] == [0, 1, 2, 3, 4]
    assert len(ids(page)) < 100
    while page.locator("#more").is_visible():
        page.locator("#more").scroll_into_view_if_needed()
        page.wait_for_timeout(30)
    assert ids(page) == list(range(100))


def test_the_list_sorts_by_every_metric_in_both_directions(page):
    page.select_option("#direction", label="highest first")
    assert ids(page)[:3] == [99, 98, 97]
    page.select_option("#key", label="by BLEU-4")
    assert [number * 7 % 10 for number in ids(page)[:3]] == [9, 9, 9]
    page.select_option("#key", label="by attention on named objects")
    assert ids(page)[0] == 0
    page.select_option("#direction", label="lowest first")
    assert ids(page)[0] == 0  # the only one with a value


def test_the_search_finds_the_beginnings_of_words(page):
    page.fill("#search", "bus")
    assert page.locator("#count").inner_text() == "33 of 100 images"
    assert {number % 3 for number in ids(page)} == {2}
    page.fill("#search", "us")
    assert page.locator("#nothing").is_visible()
    page.fill("#search", "reference 17")
    assert ids(page) == [17]
    page.select_option("#where", label="in captions")
    assert ids(page) == []
    page.fill("#search", "17")
    assert ids(page) == [17]  # found by id


DOG, BACKGROUND, CAT, CORNER = (30, 30), (200, 100), (400, 300), (630, 470)


def dimmed(view, *points):
    """Return the opacity of the dimming layer at points of the image, 0 to 255."""
    uri = view.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    with Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))) as layer:
        return [
            layer.getpixel((x * layer.width // 640, y * layer.height // 480))[3] for x, y in points
        ]


def test_the_overlay_dims_what_is_not_attended_with_the_largest_share_in_each_pixel(page):
    card = page.locator(".card").first
    original, aligned = card.locator(".view").all()
    assert dimmed(original, CAT) == [0]
    card.locator(".token", has_text="here").hover()
    # The cat has 80 % of the original and 91 % of the aligned attention, which is the largest and
    # 2.7 times even; the dog and the region that covers the image have less than even.
    full = 255 * 0.75 * (3 * 2 / 2.2 - 1) / 2
    assert dimmed(aligned, CAT, CORNER) == [0, pytest.approx(full, abs=2)]
    cat = full * (1 - (0.8 - 1 / 3) / (2 / 2.2 - 1 / 3))
    assert dimmed(original, CAT, CORNER) == [pytest.approx(cat, abs=2), pytest.approx(full, abs=2)]
    assert dimmed(original, DOG) == dimmed(original, BACKGROUND) == dimmed(original, CORNER)
    card.locator(".token", has_text="dog").hover()
    # The region that covers the image has the largest share: nothing below it is dimmed.
    assert dimmed(original, DOG, BACKGROUND, CAT) == [0, 0, 0]
    page.mouse.move(0, 0)
    assert dimmed(aligned, CORNER) == [0]


def test_even_attention_is_called_so_and_dims_nothing(tmp_path, open_page):
    even = np.full((3, 3), 1 / 3, dtype=np.float32)
    even[1] = [0.49, 0.26, 0.25]  # below 1.5 times even
    path = tmp_path / "report.html"
    write_report(path, EVALUATION, [(padded(0), card(None, CaptionAttention(even, even)))])
    shown = open_page(path).locator(".card").first
    for token in shown.locator(".token").all():
        token.hover()
        assert shown.locator(".kind").inner_text() == "attention α · spread evenly"
        assert "spread evenly" in shown.locator(".readout").inner_text()
        assert dimmed(shown, DOG, CORNER) == [0, 0]


def test_pointing_at_a_token_shows_both_kinds_of_attention_side_by_side(page):
    card = page.locator(".card").first
    kinds = card.locator(".view .kind")
    assert kinds.all_inner_texts() == ["original α", "aligned αᵃ"]
    rows = card.locator(".attended tbody tr")
    assert rows.first.locator("th, td").all_inner_texts()[0] == "3 · cat"  # of the mean
    card.locator(".token", has_text="dog").hover()
    assert kinds.all_inner_texts() == [
        "original α · 70 %, 2.1 × even",
        "aligned αᵃ · 61 %, 1.8 × even",
    ]
    assert card.locator(".readout").inner_text() == (
        "“dog”: 70 % on region 2; aligned 61 % on region 2; Σαᵃ 1.15; gate g 0.50"
    )
    cells = [row.locator("th, td").all_inner_texts() for row in rows.all()]
    assert cells[0] == ["2", "0.700", "0.700", "0.250"]
    assert cells[1] == ["3 · cat", "0.100", "0.250", "0.250"]
    boxes = [look.bounding_box() for look in card.locator(".view").all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]


def test_a_layer_or_a_head_is_shown_in_place_of_the_mean(page):
    card = page.locator(".card").first
    readout, cells = card.locator(".readout"), card.locator("tbody tr").first.locator("th, td")
    card.locator(".token", has_text="here").click()
    page.select_option("#head", label="layer 1, head 2")
    assert "head=1.2" in page.evaluate("location.hash")
    assert readout.inner_text() == (
        "“here” (layer 1, head 2): 80 % on region 1 (dog); aligned 80 % on region 1 (dog); Σαᵃ 1.00"
    )
    assert cells.all_inner_texts() == ["1 · dog", "0.800", "0.800", "–"]
    page.select_option("#head", label="layer 2")
    assert readout.inner_text().endswith("Σαᵃ 1.00; gate g 0.45")
    assert cells.all_inner_texts() == ["1 · dog", "0.450", "0.450", "0.100"]
    other = page.locator(".card").nth(1)
    other.locator(".token", has_text="here").click()
    assert "(mean, the page has no layers of this image): 80 %" in (
        other.locator(".readout").inner_text()
    )


def test_boxes_are_drawn_on_request_with_category_and_share(page):
    card = page.locator(".card").first
    card.locator(".token", has_text="dog").click()
    labels, rects = card.locator(".view:first-child .labels .top"), card.locator("rect.top")
    drawn = "rect => getComputedStyle(rect).stroke"
    assert [label.is_visible() for label in labels.all()] == [False] * 3
    assert rects.first.evaluate(drawn) == "none"
    page.select_option("#boxes", label="top five boxes")
    assert labels.all_inner_texts() == ["region 2 · 70 %", "dog · 20 %", "cat · 10 %"]
    assert rects.first.evaluate(drawn) != "none"


def test_annotated_boxes_are_an_overlay_on_request(page):
    card = page.locator(".card").first
    truth = card.locator(".view:first-child .labels .true")
    assert not truth.is_visible()
    page.check("#truth")
    assert page.locator(".card").first.locator(".labels .true").all_text_contents() == ["dog"] * 2


def test_a_click_pins_a_token_and_escape_releases_it(page):
    card = page.locator(".card").first
    card.locator(".token").nth(2).click()
    page.mouse.move(0, 0)
    assert card.locator("tbody tr").first.locator("th").inner_text() == "3 · cat"
    assert card.locator(".kind").first.inner_text() == "original α · 80 %, 2.4 × even"
    page.keyboard.press("Escape")
    page.locator("#search").focus()
    assert card.locator(".kind").first.inner_text() == "original α"


def test_the_keyboard_reaches_tokens_and_regions(page):
    first = page.locator(".card").first
    first.locator(".regions").first.focus()
    assert page.evaluate("document.activeElement.matches('.regions')")
    page.keyboard.press("ArrowRight")
    assert first.locator(".region").first.inner_text() == "region 1 of 3 · dog · 0.50"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Enlarge"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "a"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "dog"
    assert "“dog”" in first.locator(".readout").inner_text()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert first.locator(".token").nth(2).get_attribute("aria-pressed") == "true"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "2 beams"


def test_a_captioner_without_alignment_shows_its_attention_alone(page):
    card = page.locator(".card").nth(1)
    assert card.locator(".view").count() == 1
    card.locator(".token").nth(1).hover()
    assert card.locator(".view .kind").inner_text() == "attention α · 70 %, 2.1 × even"
    heads = card.locator(".attended thead th").all()
    visible = [head.inner_text() for head in heads if head.is_visible()]
    assert visible == ["region", "original α"]


def test_an_image_without_a_card_has_its_captions_and_scores(page):
    card = page.locator(".card").nth(3)
    assert card.locator(".image").is_hidden()
    assert card.locator("h2").text_content() == "a dog here"
    assert card.locator(".references li").all_text_contents()[0] == "reference 3 a"
    card.locator("summary").click()
    assert card.locator("ol li").all_inner_texts() == ["a dog here -1.500", "second beam -2.250"]


def test_the_histogram_and_the_fields_filter_by_cider(page):
    bar = page.locator("#histogram rect").first
    start, end = (float(bar.get_attribute(f"data-{name}")) for name in ("from", "to"))
    within = [number for number in range(100) if start <= number / 10 <= end]
    bar.click()
    assert ids(page) == within
    assert bar.get_attribute("aria-pressed") == "true"
    bar.press("Enter")
    assert len(ids(page)) > len(within)
    page.fill("#least", "9.7")
    assert ids(page) == [97, 98, 99]


def test_images_are_filtered_by_words_and_by_attention(page):
    page.select_option("#words", label="words of references")
    assert ids(page) == []
    page.select_option("#words", label="words in no reference")
    assert "in no reference dog, here" in page.locator(".card .others").first.text_content()
    page.select_option("#target", label="attention on target")
    assert ids(page) == [0]
    page.select_option("#target", label="attention off target")
    assert ids(page) == []


def test_the_state_is_in_the_address(page, report, open_page):
    page.select_option("#direction", label="highest first")
    page.fill("#search", "bus")
    page.select_option("#view-as", label="as a grid")
    again = open_page(report, state=page.evaluate("location.hash"))
    assert ids(again) == ids(page)
    assert again.locator("#list.grid").count() == 1
    again.click("#clear")
    assert ids(again)[0] == 0
    assert again.evaluate("location.hash") == ""
    odd = open_page(report, state="#key=none&where=%3Cscript%3E&least=x")
    assert ids(odd)[0] == 0  # unknown values are the defaults


def test_shown_rows_are_downloaded_as_csv_and_json(page):
    page.fill("#search", "reference 17")
    with page.expect_download() as saved:
        page.click("#csv")
    rows = list(csv.reader(Path(saved.value.path()).read_text().splitlines()))
    assert saved.value.suggested_filename == "captions.csv"
    assert rows == [
        ["id", "caption", "references", "BLEU-4", "CIDEr"],
        [padded(17), "a bus here", "reference 17 a | reference 17 b", "0.9", "1.7"],
    ]
    with page.expect_download() as saved:
        page.click("#json")
    [row] = json.loads(Path(saved.value.path()).read_text())
    assert (row["id"], row["CIDEr"]) == (padded(17), 1.7)


def test_captions_keep_their_height_and_a_tap_pins_a_token(report, open_page):
    page = open_page(report, width=360, touch=True)
    page.locator(".card .token").nth(1).scroll_into_view_if_needed()
    first = page.locator(".card").first
    parts = [first.locator(name).first for name in (".views", ".caption", ".attended")]
    heights = [part.bounding_box()["height"] for part in parts]
    page.locator(".card .token").nth(1).tap()
    assert [part.bounding_box()["height"] for part in parts] == heights
    assert first.locator(".attended tbody tr").count() == 3


@pytest.mark.parametrize("width", [320, 360, 768, 1200])
def test_everything_fits_the_width(report, open_page, width):
    page = open_page(report, width=width)
    for summary in page.locator(".notes summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for panel in page.locator(".panel, .card, .attended").all():
        assert panel.evaluate("panel => panel.scrollWidth <= panel.clientWidth")
    table = page.get_by_label("Groups of words")
    cells = table.locator("tbody tr").nth(1).locator("th, td").all_inner_texts()
    assert cells == [
        *("colours", "1", "0.000", "0.000", "0.000", "0.000"),
        *("1", "0.000", "1", "0.000", "0.000"),
    ]
    looks = [look.bounding_box() for look in page.locator(".card").first.locator(".view").all()]
    assert looks[0]["y"] == looks[1]["y"]


def test_text_from_outside_is_not_markup(tmp_path, open_page):
    bad = "</script><img src=x onerror=alert(1)> <b>&amp;"
    hostile = replace(
        EVALUATION,
        title=bad,
        captions={bad: bad},
        references={bad: [bad]},
        facts={"Model": bad},
        scores=Scores({}, {bad: {"CIDEr": 1.0}}, {}),
        beams={bad: [Beam(bad, 0.0), Beam(bad, 0.0)]},
    )
    path = tmp_path / "report.html"
    truth = Instances(TRUTH.boxes, (bad,))
    even = np.full((len(bad.split()), 3), 1 / 3, dtype=np.float32)
    hostile_card = card(None, CaptionAttention(even, even), names=[bad] * 3, truth=truth)
    write_report(path, hostile, [(bad, hostile_card)])
    page = open_page(path)
    page.check("#truth")
    page.select_option("#boxes", label="top five boxes")
    page.locator(".card .token").first.hover()
    assert page.locator("img, main b b").count() == 0
    assert page.locator(".labels .true").first.inner_text() == bad
    assert page.locator(".card .references li").inner_text() == bad
