"""Comparison page of two runs: fixed and broken captions, and its use in a browser."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.pipeline.report.comparison_page import (
    Comparison,
    Difference,
    ImageComparison,
    write_comparison,
)
from a2cap.pipeline.report.html import read_cards
from a2cap.pipeline.report.report import write_report
from a2cap.pipeline.training.learning_curve import LearningCurve
from tests.data.messages import message_of
from tests.pipeline.report.evaluations import card, evaluation, padded


def compared(number, before, after, scores):
    return ImageComparison(
        image_id=f"{number:012d}",
        captions=(before, after),
        references=[f"reference {number}"],
        scores=({"CIDEr": scores[0], "Bleu_4": 0.5}, {"CIDEr": scores[1], "Bleu_4": 0.25}),
    )


IMAGES = [
    compared(1, "a dog", "a dog", (0.5, 0.5)),
    compared(2, "a dog", "a red dog", (0.4, 0.5)),
    compared(3, "two cats", "a cat", (1.5, 0.5)),
    compared(4, "two cats", "two small cats", (0.5, 0.55)),
    compared(5, "a bus", "a red bus", (0.5, 2.0)),
]
COMPARISON = Comparison(
    names=("plain", "aligned"),
    metrics=[
        Difference("Bleu_4", 0.5, 0.25, -0.25, -0.375, -0.125, 0.0),
        Difference("CIDEr", 0.68, 0.81, 0.13, 0.01, 0.25, 0.966),
    ],
    images=IMAGES,
    settings={"model.alignment.fusion": ("none", "gate")},
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("comparison") / "comparison.html"
    files = {f"{number:012d}": path.with_name(f"{number}.png") for number in (1, 3)}
    for file in files.values():
        Image.new("RGB", (64, 48)).save(file)
    write_comparison(path, COMPARISON, files)
    return path


def test_captions_are_fixed_or_broken_by_a_tenth_of_cider():
    assert [image.change for image in IMAGES] == ["same", "fixed", "broken", "changed", "fixed"]
    assert compared(1, "a dog", "a dog", (0.0, 9.0)).change == "same"


def test_both_runs_are_embedded_with_their_scores(path):
    [text] = re.findall(r'id="data">(.*?)</script>', path.read_text(), re.S)
    data = json.loads(text)
    assert (data["names"], data["metrics"]) == (["plain", "aligned"], ["BLEU-4", "CIDEr"])
    assert data["images"][1] == {
        "id": "000000000002",
        "change": "fixed",
        "captions": ["a dog", "a red dog"],
        "references": ["reference 2"],
        "scores": [[0.5, 0.4], [0.25, 0.5]],
    }


def test_the_summary_has_differences_with_their_intervals(path):
    source = path.read_text()
    assert "2 fixed, 1 broken, 1 changed and 1 equal captions." in source
    for cell in ("-0.2500", "+0.1300", "+0.0100 to +0.2500", "96.6 %", "fusion none → gate"):
        assert f">{cell}<" in source


def test_nothing_is_loaded_from_outside_and_equal_comparisons_are_equal_bytes(path, tmp_path):
    source = path.read_text()
    assert not re.search(r"https?:|url\(|@import", source)
    file = {"000000000003": path.with_name("3.png")}
    write_comparison(tmp_path / "again.html", COMPARISON, file)
    # The captions of image 1 are equal, so it is not embedded.
    assert (tmp_path / "again.html").read_text() == source


def test_a_path_that_cannot_be_written_is_reported(tmp_path):
    path = tmp_path / "none" / "page.html"
    assert message_of(write_comparison, path, COMPARISON) == (
        f"cannot write {str(path)!r} (No such file or directory); name another path"
    )


def ids(page):
    return [int(card.get_attribute("data-id")) for card in page.locator(".pair").all()]


def test_cards_are_read_from_a_report_until_it_is_damaged(tmp_path):
    path = tmp_path / "report.html"
    cards = [(padded(n), card(None, None, names=["\u2028</script>"] * 3)) for n in (1, 2)]
    write_report(path, evaluation((1, 2)), cards)
    assert list(read_cards(path)) == [(name, shown.as_json("")) for name, shown in cards]
    path.write_bytes(path.read_bytes().replace(b'2">{', b'2">{,'))
    assert [name for name, _ in read_cards(path)] == [padded(1)]
    path.write_bytes(b"\xff")
    assert list(read_cards(path)) == list(read_cards(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"model.alignment.fusion": ("none", "gate")}, "fusion none → gate"),
        ({"digest of model": ("1", "2"), "version of torch": ("1", "2")}, "plain → aligned"),
        (
            {"extractor": ("x", "y"), "train.batch_size": ("1", "2"), "train.lr": ("3", "4")},
            "batch size 1 → 2, lr 3 → 4, 1 more",
        ),
    ],
)
def test_the_title_is_what_differs(settings, expected):
    assert replace(COMPARISON, settings=settings).title == expected


@pytest.mark.slow
@pytest.mark.chromium
def test_images_of_both_reports_are_shown_side_by_side_with_both_attentions(
    tmp_path, open_page, faults_of
):
    rows = np.array([[0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]], dtype=np.float32)
    attention = CaptionAttention(rows, rows[::-1], rows)
    reports = tmp_path / "first.html", tmp_path / "second.html"
    for path, numbers in zip(reports, ((2, 5), (5, 3)), strict=True):
        cards = [(padded(n), card(None, attention)) for n in numbers]
        write_report(path, evaluation(range(1, 6), caption=lambda n: "a red bus"), cards)
    path = tmp_path / "comparison.html"
    write_comparison(path, COMPARISON, {}, reports)
    page = open_page(path, width=1200)
    sides = page.locator(".pair").first.locator(".card")
    assert [side.locator(".eyebrow").inner_text() for side in sides.all()] == ["plain", "aligned"]
    assert [side.locator(".word.shown").count() for side in sides.all()] == [1, 1]
    boxes = [side.locator(".frame").bounding_box() for side in sides.all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    alone = page.locator(".pair").nth(1).locator(".card")  # only the second report embeds image 3
    assert [side.locator(".image").is_visible() for side in alone.all()] == [True, True]
    assert [side.locator(".word").count() for side in alone.all()] == [0, 3]
    assert faults_of(page) == []


@pytest.mark.slow
@pytest.mark.chromium
def test_the_page_sorts_filters_and_searches(path, open_page):
    page = open_page(path, width=375)
    assert ids(page) == [5, 3, 2, 4]
    shown = [image.is_visible() for image in page.locator(".pair .card:first-child .image").all()]
    assert shown == [False, True, False, False]
    assert page.locator(".pair:nth-child(2) img").first.get_attribute("alt") == "reference 3"
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.select_option("#order", label="largest loss first")
    assert ids(page) == [3, 4, 2, 5]
    page.select_option("#order", label="BLEU-4, largest gain first")
    assert len(ids(page)) == 4
    page.select_option("#order", label="largest gain first")
    page.select_option("#change", label="fixed (2)")
    assert ids(page) == [5, 2]
    assert page.locator("#count").inner_text() == "2 of 5 images"
    pair = page.locator(".pair").first
    assert pair.locator(".changed").all_text_contents() == ["red"]
    assert pair.locator("h2 b").first.text_content() == "+1.500"
    pair.locator(".values summary").click()
    assert pair.locator("tbody tr").last.locator("td").all_text_contents() == [
        *("0.500", "2.000", "+1.500")
    ]
    page.select_option("#change", label="same (1)")
    assert ids(page) == [1]
    page.fill("#search", "bus")
    assert page.locator("#nothing").is_visible()


@pytest.mark.slow
@pytest.mark.chromium
def test_learning_curves_of_both_runs_are_in_one_panel_for_each_figure(tmp_path, open_page):
    first, second = (
        LearningCurve(
            [{"epoch": n, "step": n, "CIDEr": value} for n, value in enumerate(values, 1)]
        )
        for values in ([0.5, 0.75], [0.25])
    )
    path = tmp_path / "comparison.html"
    write_comparison(path, replace(COMPARISON, curves=(first, second)))
    page = open_page(path, width=768)
    page.get_by_text("Learning curves").click()
    texts = page.locator(".curves title").all_text_contents()
    assert texts == ["A epoch 1: 0.5", "A epoch 2: 0.75, the best", "B epoch 1: 0.25, the best"]
    legend = page.locator(".curves figcaption b")
    assert legend.all_inner_texts() == ["plain", "aligned"]
    colours = legend.evaluate_all("all => all.map((one) => getComputedStyle(one).color)")
    assert len(set(colours)) == 2
    assert page.locator(".note", has_text="validation CIDEr").all_inner_texts() == [
        "plain: Validation CIDEr is 0.750 after epoch 2. It was best at the end: more epochs may "
        "help.",
        "aligned: Validation CIDEr is 0.250 after epoch 1.",
    ]
    write_comparison(path, replace(COMPARISON, curves=(None, second)))
    assert open_page(path).locator(".curves circle").count() == 1
    write_comparison(path, COMPARISON)
    assert open_page(path).locator(".curves").count() == 0
