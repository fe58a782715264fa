"""Report in a browser: drawing, sorting, searching, and attention."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

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
    cards = {0: card(photo, ATTENTION), 1: card(photo, PLAIN), 2: card(None, ATTENTION)}
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


def shares(page, look):
    rects = page.locator(f".card[data-id$='00'] .view:nth-child({look}) rect").all()
    strengths = {r.get_attribute("data-region"): r.evaluate(STRENGTH) for r in rects}
    return [float(strengths[str(region)]) for region in range(3)]


STRENGTH = "rect => rect.style.getPropertyValue('--share')"


def test_pointing_at_a_token_shows_both_kinds_of_attention_side_by_side(page):
    card = page.locator(".card").first
    assert card.locator(".view .kind").all_inner_texts() == ["original α", "aligned αᵃ"]
    card.locator(".token", has_text="dog").hover()
    strongest = 0.7
    assert shares(page, 1) == pytest.approx([0.2 / strongest, 1.0, 0.1 / strongest], abs=2e-3)
    aligned = np.array([0.2, 0.7, 0.25]) / 1.15
    assert shares(page, 2) == pytest.approx(aligned / strongest, abs=2e-3)
    assert card.locator(".readout").inner_text() == (
        "“dog”: 70 % on region 2; aligned 61 % on region 2; Σαᵃ 1.15; gate g 0.50"
    )
    rows = [row.locator("th, td").all_inner_texts() for row in card.locator("tbody tr").all()]
    assert rows[0] == ["2", "0.700", "0.700", "0.250"]
    assert rows[1] == ["3 · cat", "0.100", "0.250", "0.250"]
    boxes = [look.bounding_box() for look in card.locator(".view").all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    page.mouse.move(0, 0)
    assert card.locator("table").is_hidden()


def test_a_click_pins_a_token_and_escape_releases_it(page):
    card = page.locator(".card").first
    card.locator(".token").nth(2).click()
    page.mouse.move(0, 0)
    assert card.locator("tbody tr").first.locator("th").inner_text() == "3 · cat"
    page.keyboard.press("Escape")
    page.locator("#search").focus()
    assert card.locator("table").is_hidden()


def test_the_keyboard_reaches_tokens_and_regions(page):
    page.locator("#boxes").focus()
    page.keyboard.press("Tab")
    first = page.locator(".card").first
    assert page.evaluate("document.activeElement.matches('.regions')")
    page.keyboard.press("ArrowRight")
    assert first.locator(".region").first.inner_text() == "region 1 of 3 · dog · 0.50"
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
    assert card.locator(".view .kind").inner_text() == "attention α · 70 %"
    heads = card.locator("thead th").all()
    visible = [head.inner_text() for head in heads if head.is_visible()]
    assert visible == ["region", "original α"]


def test_a_missing_image_is_reported_and_its_boxes_are_drawn(page):
    card = page.locator(".card").nth(2)
    assert card.locator(".missing").first.is_visible()
    assert card.locator("img").count() == 0
    assert card.locator("rect").count() == 6


def test_an_image_without_a_card_has_its_captions_and_scores(page):
    card = page.locator(".card").nth(3)
    assert card.locator(".image").is_hidden()
    assert card.locator("h2").text_content() == "a dog here"
    assert card.locator(".references li").all_text_contents()[0] == "reference 3 a"
    card.locator("summary").click()
    assert card.locator("ol li").all_inner_texts() == ["a dog here -1.500", "second beam -2.250"]


def test_images_have_a_reference_as_alternative_text(page):
    first = page.locator(".card").first
    texts = [image.get_attribute("alt") for image in first.locator("img").all()]
    assert texts == ["reference 0 a", ""]  # the second view shows the same image


def test_hidden_regions_are_shown_with_attention(page):
    page.locator("#boxes").uncheck()
    overlay = page.locator(".card .regions").first
    assert overlay.evaluate("svg => getComputedStyle(svg).visibility") == "hidden"
    page.locator(".card .token").first.hover()
    assert overlay.evaluate("svg => getComputedStyle(svg).visibility") == "visible"


def test_nothing_scrolls_sideways_on_a_phone_and_a_tap_pins_a_token(report, open_page):
    page = open_page(report, width=360, touch=True)
    page.locator(".notes summary").last.click()
    page.locator(".card .token").nth(1).scroll_into_view_if_needed()
    views = page.locator(".card .views").first
    height = views.bounding_box()["height"]
    page.locator(".card .token").nth(1).tap()
    assert views.bounding_box()["height"] == height
    assert page.locator(".card tbody tr").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    looks = [look.bounding_box() for look in page.locator(".card").first.locator(".view").all()]
    assert looks[0]["y"] == looks[1]["y"]


def test_the_table_of_groups_of_words_scrolls_on_a_phone_and_fits_a_desktop(report, open_page):
    for width, scrolls in ((1280, False), (375, True)):
        page = open_page(report, width=width)
        table = page.get_by_label("Groups of words")
        assert table.locator("tbody tr").all_inner_texts()[1].split() == [
            *("colours", "1", "0.000", "0.000", "0.000", "0.000"),
            *("1", "0.000", "1", "0.000", "0.000"),
        ]
        assert table.evaluate("panel => panel.scrollWidth > panel.clientWidth") is scrolls


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_color_scheme(report, open_page, scheme):
    page = open_page(report, scheme=scheme)
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (brightness > 600) is (scheme == "light")


def test_text_from_outside_is_not_markup(tmp_path, open_page):
    bad = "</script><img src=x onerror=alert(1)> <b>&amp;"
    hostile = replace(
        EVALUATION,
        title=bad,
        captions={bad: bad},
        references={bad: [bad]},
        scores=Scores({}, {bad: {"CIDEr": 1.0}}, {}),
        beams={bad: [Beam(bad, 0.0), Beam(bad, 0.0)]},
    )
    path = tmp_path / "report.html"
    write_report(path, hostile, [(bad, card(None, PLAIN, names=[bad] * 3))])
    page = open_page(path)
    page.locator(".card .token").first.hover()
    assert page.locator("img, main b b").count() == 0
    assert page.locator(".card .references li").inner_text() == bad
