"""Report in a browser: drawing, sorting, searching, attention, and what everyone can use."""

import base64
import csv
import io
import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from a2cap.data.annotations.instances import Instances
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.regions import cell_boxes
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.grounding import Grounding
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.word_groups import score_word_groups
from a2cap.pipeline.report.report import Baseline, write_report
from a2cap.pipeline.training.learning_curve import LearningCurve
from a2cap.pipeline.training.summary import TrainingSummary
from tests.experiments import a2
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
    probabilities = np.array([[0.9, 0.8, 0.7], [0.92, 0.31, 0.124], [0.5, 0.25, 0.25]])
    attention = replace(ATTENTION, layers=LAYERS)
    cards = {
        0: card(photo, attention, truth=TRUTH, certificates=probabilities),
        1: card(photo, PLAIN),
        2: card(None, ATTENTION),
    }
    path = folder / "report.html"
    write_report(path, EVALUATION, ((padded(n), shown) for n, shown in cards.items()))
    return path


@pytest.fixture
def page(report, open_page):
    """Open the report, worst captions first, with all controls."""
    page = open_page(report, state="#order=1+1")
    page.locator(".more > summary").click()
    return page


def cards(page):
    return page.locator("#list .card")


def ids(page):
    return [int(card.get_attribute("data-id")) for card in cards(page).all()]


def write_one(path, attention, **changes):
    """Write a report with one card of attention to image 0; return its path."""
    write_report(path, EVALUATION, [(padded(0), card(None, attention, **changes))])
    return path


# --- the list -----------------------------------------------------------------------------------


def test_typical_captions_come_first_and_more_are_drawn_in_view(report, open_page):
    page = open_page(report)
    assert ids(page)[0] == 50
    assert sorted(ids(page)[:9]) == list(range(46, 55))
    assert len(ids(page)) < 100
    while page.locator("#more").is_visible():
        page.locator("#more").evaluate("more => more.scrollIntoView()")
        page.wait_for_timeout(30)
    assert sorted(ids(page)) == list(range(100))


def test_examples_are_two_of_the_best_two_of_the_worst_and_typical_ones(tmp_path, open_page):
    path = tmp_path / "report.html"
    numbers = (0, 1, 2, 48, 49, 50, 51, 97, 98, 99)
    write_report(path, EVALUATION, [(padded(n), card(None, ATTENTION)) for n in numbers])
    tiles = open_page(path, width=1200).locator("#first .card")
    kinds = [tile.locator(".score").inner_text().partition(" ")[0] for tile in tiles.all()]
    assert kinds == ["typical", "typical", "best", "best", "typical", "worst", "worst"]
    shown = [int(tile.get_attribute("data-id")) for tile in tiles.all()]
    assert (shown[2:4], shown[5:], sorted(shown[i] for i in (0, 1, 4))) == (
        *([99, 98], [0, 1]),
        [49, 50, 51],
    )
    assert tiles.page.locator("#hint").is_visible()
    for tile in tiles.all():  # at a glance: within the first screen, with a word that is shown
        box = tile.locator(".frame").bounding_box()
        assert box["y"] + box["height"] <= 800
        assert tile.locator(".word.shown").inner_text() in WORDS
        assert tile.locator(".readout").is_visible() is ("hero" in tile.get_attribute("class"))


def test_the_list_sorts_by_every_metric_in_both_directions(page):
    page.select_option("#order", label="best first")
    assert ids(page)[:3] == [99, 98, 97]
    page.select_option("#order", label="BLEU-4, best first")
    assert [number * 7 % 10 for number in ids(page)[:3]] == [9, 9, 9]
    for label in ("most attention on named objects", "least attention on named objects"):
        page.select_option("#order", label=label)
        assert ids(page)[0] == 0  # the only one with a value


def test_the_search_finds_the_beginnings_of_words(page):
    page.fill("#search", "bus")
    assert page.locator("#count").inner_text() == "33 of 100 images"
    assert {number % 3 for number in ids(page)} == {2}
    page.fill("#search", "us")
    assert page.locator("#nothing").is_visible()
    page.fill("#search", "reference 17")
    assert ids(page) == [17]
    page.select_option("#where", label="search captions")
    assert ids(page) == []
    page.fill("#search", "17")
    assert ids(page) == [17]  # found by id


def test_the_histogram_and_the_fields_filter_by_cider(page):
    page.get_by_text("All metrics").click()
    assert page.locator(".histogram").bounding_box()["height"] <= 200
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
    page.select_option("#filter", label="only words of references")
    assert ids(page) == []
    page.select_option("#filter", label="words in no reference")
    assert "in no reference dog, here" in cards(page).first.locator(".others").text_content()
    page.select_option("#filter", label="attention on target")
    assert ids(page) == [0]
    page.select_option("#filter", label="attention off target")
    assert ids(page) == []


def test_the_state_is_in_the_address(page, report, open_page):
    page.select_option("#order", label="best first")
    page.fill("#search", "bus")
    page.select_option("#view", label="as a grid")
    again = open_page(report, state=page.evaluate("location.hash"))
    assert ids(again)[:5] == [98, 95, 92, 89, 86]
    assert again.locator("#list.tiles").count() == 1
    again.locator(".more > summary").click()
    again.click("#clear")
    assert ids(again)[0] == 50
    assert again.evaluate("location.hash") == ""
    odd = open_page(report, state="#order=none&where=%3Cscript%3E&least=x")
    assert ids(odd)[0] == 50  # unknown values are the defaults


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


def test_the_command_runs_as_it_is_printed(experiment, open_page):
    page = open_page(experiment.directory("evaluate") / "report.html")
    page.get_by_text("Made by").click()
    words = shlex.split(page.locator(".command code").inner_text())
    page.locator(".copy").click()
    assert page.evaluate("getSelection().toString()") == shlex.join(words)
    assert str(experiment.directory("evaluate")) in a2(*words[1:], code=0).output


# --- attention ----------------------------------------------------------------------------------

DOG, BACKGROUND, CAT, CORNER = (30, 30), (200, 100), (400, 300), (630, 470)


def layer(card):
    """Return the overlay of a card as an RGBA image."""
    uri = card.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))


def dimmed(card, *points):
    """Return the opacity of the overlay at points of the image, 0 to 255."""
    shade = layer(card)
    return [shade.getpixel((x * shade.width // 640, y * shade.height // 480))[3] for x, y in points]


def test_the_overlay_dims_what_is_not_attended_with_the_largest_share_in_each_pixel(page):
    card = cards(page).first
    card.locator(".word", has_text="here").click()
    # The cat has 80 % of the original and 91 % of the aligned attention, which is the largest and
    # 2.7 times even; the dog and the region that covers the image have less than even.
    full = 255 * 0.7 * (3 * 2 / 2.2 - 1) / 2
    assert dimmed(card, CAT, CORNER) == [0, pytest.approx(full, abs=2)]
    card.get_by_role("button", name="original").click()
    weaker = 255 * 0.7 * (3 * 0.8 - 1) / 2
    cat = weaker * (1 - (0.8 - 1 / 3) / (2 / 2.2 - 1 / 3))
    assert dimmed(card, CAT, CORNER) == [pytest.approx(cat, abs=2), pytest.approx(weaker, abs=2)]
    assert dimmed(card, DOG) == dimmed(card, BACKGROUND) == dimmed(card, CORNER)
    card.locator(".word", has_text="dog").hover()
    # The region that covers the image has the largest share: nothing below it is dimmed.
    assert dimmed(card, DOG, BACKGROUND, CAT) == [0, 0, 0]


def test_a_grid_is_dimmed_smoothly_at_once_and_neither_names_nor_boxes(tmp_path, open_page):
    rows = np.random.default_rng(0).dirichlet(np.full(49, 0.3), 3).astype(np.float32)
    boxes = cell_boxes(7, (80, 0, 560, 480))  # a crop leaves a margin
    grid = {"boxes": boxes, "names": ["class -1"] * 49, "scores": np.ones(49), "is_grid": True}
    path = write_one(tmp_path / "r.html", CaptionAttention(rows, rows), **grid)
    assert "class -1" not in path.read_text()
    shown = cards(open_page(path, state="#order=1+1")).first
    assert shown.locator(".word.shown").inner_text() == "here"
    assert shown.page.locator("#first .card").is_visible()  # also if it is the only one
    assert shown.locator(".top-regions").is_hidden()
    assert shown.locator("rect").count() == 0
    assert "region" not in shown.locator(".readout").inner_text()
    light = (rows[2] - 1 / 49).clip(0) / (rows[2].max() - 1 / 49)
    values = Image.fromarray(light.reshape(7, 7))
    expected = 1 - np.asarray(values.resize((240, 240), Image.Resampling.BICUBIC)).clip(0, 1)
    overlay = np.asarray(layer(shown), dtype=float) / (0.7 * 255)
    assert overlay[:, :, :3].max() == 0  # black, through which the attended cells are seen
    assert np.abs(overlay[:, 40:280, 3] - expected).mean() < 0.01
    assert overlay[:, :38, 3] == pytest.approx(1, abs=0.01)


def test_even_attention_is_called_so_and_dims_nothing(tmp_path, open_page):
    even = np.full((3, 3), 1 / 3, dtype=np.float32)
    even[1] = [0.49, 0.26, 0.25]  # below 1.5 times even
    path = write_one(tmp_path / "report.html", CaptionAttention(even, even))
    shown = cards(open_page(path, state="#order=1+1")).first
    assert shown.locator(".word.shown").count() == 0
    assert shown.locator(".readout").inner_text().startswith("No word stands out")
    for word in shown.locator(".word").all():
        word.hover()
        assert "attention α spread evenly" in shown.locator(".readout").inner_text()
        assert dimmed(shown, DOG, CORNER) == [0, 0]


def test_the_most_telling_word_is_shown_with_a_switch_between_both_kinds(page):
    card = cards(page).first
    kinds = card.locator(".kinds button")
    pressed = [kind.get_attribute("aria-pressed") for kind in kinds.all()]
    assert (kinds.all_inner_texts(), pressed) == (["original α", "aligned αᵃ"], ["false", "true"])
    card.locator(".word", has_text="dog").click()
    assert card.locator(".readout").inner_text() == (
        "“dog”: looked at no single place; original α 70 % on region 2, 2.1 × even; "
        "aligned αᵃ 61 % on region 2, 1.8 × even; "
        "aligned sums to 1.15; gate 0.50 (1 keeps the original)"
    )
    assert card.locator(".certificate").inner_text() == (
        "“dog” has 92 %, and without the region that it attends to most 31 % (original α) or 12 % "
        "(aligned αᵃ)."
    )
    card.get_by_text("Regions", exact=True).click()
    rows = [row.locator("th, td").all_inner_texts() for row in card.locator("tbody tr").all()]
    assert rows[:2] == [["2", "0.700", "0.700", "0.250"], ["3 · cat", "0.100", "0.250", "0.250"]]
    card.locator(".frame").click()
    assert kinds.first.get_attribute("aria-pressed") == "true"


def test_play_steps_through_the_words(page):
    card = cards(page).first
    page.clock.install(time=0)
    page.clock.pause_at(1_000_000)
    card.locator(".play").click()
    page.mouse.move(0, 0)
    shown = []
    for _ in range(4):
        shown.append(card.locator(".word.shown").inner_text())
        page.clock.run_for(800)
    assert shown == ["a", "dog", "here", "dog"]  # at the end, the most telling word again
    card.locator(".play").press("Enter")
    card.locator(".play").press("Enter")  # pauses
    page.clock.run_for(5000)
    assert card.locator(".word.shown").inner_text() == "dog"


def test_a_layer_or_a_head_is_shown_in_place_of_the_mean(page):
    card = cards(page).first
    card.locator(".word", has_text="here").click()
    page.select_option("#head", label="layer 1, head 2")
    assert "head=1.2" in page.evaluate("location.hash")
    assert card.locator(".readout").inner_text() == (
        "“here” (layer 1, head 2): original α 80 % on dog, 2.4 × even; "
        "aligned αᵃ 80 % on dog, 2.4 × even; aligned sums to 1.00"
    )
    cells = card.locator("tbody tr").first.locator("th, td")
    assert cells.all_text_contents() == ["1 · dog", "0.800", "0.800", "–"]
    page.select_option("#head", label="layer 2")
    assert card.locator(".readout").inner_text().endswith("; gate 0.45 (1 keeps the original)")
    assert cells.all_text_contents() == ["1 · dog", "0.450", "0.450", "0.100"]
    other = cards(page).nth(1).locator(".readout").inner_text()
    assert "(mean, the page has no layers of this image): " in other


def test_boxes_are_drawn_on_request_with_category_and_share(page):
    card = cards(page).first
    card.locator(".word", has_text="dog").click()
    labels, rects = card.locator(".labels .top"), card.locator("rect.top")
    drawn = "rect => getComputedStyle(rect).stroke"
    assert [label.is_visible() for label in labels.all()] == [False] * 3
    assert rects.first.evaluate(drawn) == "none"
    page.select_option("#boxes", label="top five boxes")
    assert labels.all_inner_texts() == ["region 2 · 61 %", "cat · 22 %", "dog · 17 %"]
    assert rects.first.evaluate(drawn) != "none"
    assert not card.locator(".labels .true").is_visible()
    page.check("#truth")
    assert card.locator(".labels .true").all_inner_texts() == ["dog"]


def test_the_keyboard_reaches_regions_and_words_and_pins_them(page):
    card = cards(page).first
    focused = "document.activeElement.textContent"
    card.locator(".regions").focus()
    page.keyboard.press("ArrowRight")
    assert card.locator(".readout").inner_text() == "region 1 of 3 · dog · 0.50"
    for name in ("▶", "original α", "aligned αᵃ", "?", "Enlarge", "a"):
        page.keyboard.press("Tab")
        assert page.evaluate(focused) == name
    page.keyboard.press("ArrowRight")
    assert "“dog”" in card.locator(".readout").inner_text()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert card.locator(".word").nth(2).get_attribute("aria-pressed") == "true"
    page.keyboard.press("Tab")
    assert card.locator(".word.shown").inner_text() == "here"
    card.locator(".word").nth(2).press("Escape")
    page.locator("#search").focus()
    assert card.locator(".word.shown").inner_text() == "dog"


def test_a_captioner_without_alignment_shows_its_attention_alone(page):
    card = cards(page).nth(1)
    assert card.locator(".kinds button").count() == 0
    card.locator(".word").nth(1).hover()
    assert card.locator(".readout").inner_text() == (
        "“cat”: looked at no single place; attention α 70 % on region 2, 2.1 × even"
    )
    assert card.locator("thead th").all_text_contents() == ["region", "original α"]


def test_an_image_without_a_card_has_its_captions_and_scores(page):
    card = cards(page).nth(3)
    assert card.locator(".image").is_hidden()
    assert card.locator("h2").text_content() == "a dog here"
    assert card.locator(".references li").all_text_contents()[0] == "reference 3 a"
    card.get_by_text("2 beams, by log-probability").click()
    assert card.locator("ol li").all_inner_texts() == ["a dog here -1.500", "second beam -2.250"]


def test_the_order_of_beams_is_named(tmp_path, open_page):
    beams = [Beam("a dog here", -2.5), Beam("a dog", -1.5), Beam("dogs", -3.0)]
    path = tmp_path / "report.html"
    write_report(path, replace(EVALUATION, beams={padded(0): beams}))
    shown = cards(open_page(path, state="#order=1+1")).first
    assert shown.locator(".beams summary").inner_text() == "3 beams, by agreement with each other"


def test_examples_are_not_repeated_at_the_head_of_the_list(tmp_path, open_page):
    path = tmp_path / "report.html"
    write_report(path, EVALUATION, [(padded(n), card(None, ATTENTION)) for n in range(45, 56)])
    page = open_page(path)
    examples = {int(tile.get_attribute("data-id")) for tile in page.locator("#first .card").all()}
    assert len(examples) == 7
    assert not examples & set(ids(page)[:10])


def test_a_screenshot_of_the_whole_page_has_all_cards(tmp_path, open_page):
    path, photo = tmp_path / "report.html", tmp_path / "photo.png"
    Image.new("RGB", (640, 480), (90, 140, 60)).save(photo)
    write_report(path, EVALUATION, [(padded(n), card(photo, None)) for n in range(10)])
    page = open_page(path, state="#order=1+1")
    box = cards(page).nth(9).locator(".frame").bounding_box()
    assert box["y"] > 2000
    shown = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    middle = (int(box["x"] + box["width"] / 2), int(box["y"] + box["height"] / 2))
    assert shown.getpixel(middle) == pytest.approx((90, 140, 60), abs=4)


def test_a_page_saved_by_the_browser_opens_as_it_was(report, open_page, tmp_path):
    page = open_page(report)
    saved = tmp_path / "saved.html"
    saved.write_text(page.content(), encoding="utf-8")
    again = open_page(saved)
    for name in ("#first .card", "#list .card", "#head option"):
        assert again.locator(name).count() == page.locator(name).count()
    assert again.locator("#first .word.shown").first.is_visible()


def test_captions_without_attention_have_no_hint_of_it(tmp_path, open_page):
    path = tmp_path / "report.html"
    write_report(path, EVALUATION, [(padded(n), card(None, None)) for n in range(10)])
    page = open_page(path)
    assert page.locator("#first .card").count() == 7
    assert page.locator("#hint").is_hidden()
    assert page.locator("#list .help").first.is_hidden()


def test_a_question_mark_opens_the_help_to_the_numbers_of_a_card(page):
    cards(page).first.get_by_role("button", name="How to read this").click()
    help_ = page.locator("#help")
    assert help_.evaluate("fold => fold.open")
    terms = help_.locator("dt").all_inner_texts()
    assert {"α", "αᵃ", "gate", "× even", "without the region", "in no reference"} <= set(terms)
    box = help_.locator("dl").bounding_box()
    assert box["y"] < 900
    assert "agrees most with the others" in help_.inner_text()


CURVE = LearningCurve(
    [
        {"epoch": 0, "step": 0, "CIDEr": 0.25},
        {"epoch": 1, "step": 5, "loss": 3.0, "CIDEr": 0.75, "lr": 0.001},
        {"epoch": 2, "step": 10, "loss": 2.0, "CIDEr": 0.5, "lr": 0.0005},
    ],
    TrainingSummary(
        2, 2, 10, None, 1, "CIDEr", 0.75, 1e-3, 5e-4, 5, {"captions": 50, "images": 10}
    ),
)


@pytest.mark.parametrize("width", [360, 1200])
def test_learning_curves_show_every_epoch_and_mark_the_best(tmp_path, open_page, width):
    path = tmp_path / "report.html"
    write_report(path, replace(EVALUATION, curve=CURVE))
    page = open_page(path, width=width)
    page.get_by_text("Training: best at epoch 1 of 2, 0.750 from 0.250").click()
    plots = page.locator(".curves figure")
    titles = ["training loss", "validation CIDEr", "learning rate"]
    assert plots.locator("figcaption").all_inner_texts() == titles
    cider = plots.nth(1)
    texts = cider.locator("title").all_text_contents()
    assert texts == ["epoch 0: 0.25", "epoch 1: 0.75, the best", "epoch 2: 0.5"]
    places = [dot.bounding_box() for dot in cider.locator("circle").all()]
    assert places[0]["x"] < places[1]["x"] < places[2]["x"]
    assert places[1]["y"] < places[2]["y"] < places[0]["y"]  # higher is better, and above
    assert places[1]["width"] > places[0]["width"]
    assert plots.nth(0).locator("circle").count() == 2  # epoch 0 has no training loss
    ends = [plot.locator("p span").first.inner_text() for plot in plots.all()]
    assert ends == ["epoch 0"] * 3  # one axis
    assert cider.locator("p").inner_text().split("\n") == ["epoch 0", "0.25 to 0.75", "2"]
    text = page.locator("details:has(.curves)").inner_text()
    assert "Validation CIDEr is 0.750 after epoch 1, 0.250 before the training." in text
    assert "Trained on 10 images, 50 captions." in text
    assert page.evaluate("document.documentElement.scrollWidth") <= width


# --- for everyone -------------------------------------------------------------------------------


def test_captions_keep_their_height_and_a_tap_pins_a_word(report, open_page):
    page = open_page(report, width=360, touch=True, state="#order=1+1")
    card = cards(page).first
    card.locator(".word").nth(1).scroll_into_view_if_needed()
    parts = [card.locator(name).first for name in (".image", ".caption", ".readout")]
    heights = [part.bounding_box()["height"] for part in parts]
    card.locator(".word").nth(1).tap()
    assert [part.bounding_box()["height"] for part in parts] == heights
    assert card.locator(".word").nth(1).get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("width", [320, 768, 1920])
def test_everything_fits_the_width(report, open_page, width):
    page = open_page(report, width=width)
    page.evaluate(OPEN)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    parts = page.locator(".table, .card, .folds, .tools")
    assert parts.evaluate_all("all => all.every((one) => one.scrollWidth <= one.clientWidth)")
    if width >= 768:  # one row of controls
        controls = page.locator(".tools > select").all()
        tops = {round(control.bounding_box()["y"]) for control in controls}
        assert len(tops) == 1


def test_everyone_can_read_and_use_the_page(report, open_page, faults_of):
    assert faults_of(open_page(report, state="#order=1+1")) == []


OPEN = "document.querySelectorAll('details').forEach((one) => (one.open = true))"


def test_text_from_outside_is_not_markup(tmp_path, open_page):
    bad = "</script><img src=x onerror=alert(1)> <b>&amp;"
    hostile = replace(
        EVALUATION,
        title=bad,
        captions={bad: bad},
        references={bad: [bad]},
        facts={"Model": bad, "Command": bad},
        scores=Scores({}, {bad: {"CIDEr": 1.0}}, {}),
        beams={bad: [Beam(bad, 0.0), Beam(bad, 0.0)]},
    )
    path = tmp_path / "report.html"
    truth = Instances(TRUTH.boxes, (bad,))
    even = np.full((len(bad.split()), 3), 1 / 3, dtype=np.float32)
    hostile_card = card(None, CaptionAttention(even, even), names=[bad] * 3, truth=truth)
    write_report(path, hostile, [(bad, hostile_card)])
    page = open_page(path, state="#truth=true&boxes=top")
    shown = cards(page).first
    shown.locator(".word").first.hover()
    assert page.locator("img, main b b").count() == 0
    assert shown.locator(".labels .true").inner_text() == bad
    assert shown.locator(".references li").inner_text() == bad
