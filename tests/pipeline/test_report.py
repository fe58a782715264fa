import base64
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from a2.pipeline import report as module
from a2.pipeline.report import Report, ReportPicture, write_report

HOSTILE = '<script>alert("x")</script> & <img src="https://example.org/x.png" onerror=x>'
VOID = {"meta", "img", "input", "link", "br"}


class Page(HTMLParser):
    """Elements with their attributes and text, and a check that every tag is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [a for t, a in self.elements if t == tag and wanted.items() <= a.items()]

    def text(self, tag: str) -> list[str]:
        return [text for t, text in self.texts if t == tag]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    Image.new("RGB", (640, 480), (90, 140, 60)).save(path)
    return path


def picture(number: int, photo: Path | None, **changes: Any) -> ReportPicture:
    standard = ReportPicture(
        image_id=f"{number:012d}",
        picture=photo,
        width=640,
        height=480,
        boxes=np.array([[10, 20, 60, 50], [0, 0, 640, 480]], dtype=np.float32),
        caption=f"caption {number}",
        references=[f"reference {number} a", f"reference {number} b"],
        scores={"Bleu_4": 0.25, "CIDEr": number / 10},
        beams=[(f"caption {number}", -1.5), ("second beam", -2.25)],
        class_ids=np.array([1, 7], dtype=np.int32),
        region_scores=np.array([0.5, 0.876], dtype=np.float32),
    )
    return replace(standard, **changes)


def report(pictures: list[ReportPicture], **changes: Any) -> Report:
    standard = Report(
        title="Captions of test",
        metrics={"CIDEr": 0.8, "Bleu_4": 0.27},
        baseline={"CIDEr": 0.4},
        baseline_name="features zeroed",
        not_run={"SPICE": "no jars"},
        n=4999,
        total=5000,
        skipped={"000000391895": "truncated file"},
        provenance={"vocabulary": "10,201 entries", "decoding": "beam 5"},
        pictures=pictures,
        class_names=["person", "dog"],
    )
    return replace(standard, **changes)


def written(folder: Path, content: Report, **options: int) -> Page:
    path = folder / "report.html"
    write_report(path, content, **options)
    return Page(path)


def test_there_is_a_card_for_each_picture_worst_first(tmp_path, photo):
    page = written(tmp_path, report([picture(n, photo) for n in (3, 1, 2)]))
    cards = page.all("article", class_="card")
    assert [card["data-id"][-1] for card in cards] == ["1", "2", "3"]
    assert [card["data-cider"] for card in cards] == ["0.100000", "0.200000", "0.300000"]
    assert page.text("h2") == ["caption 1", "caption 2", "caption 3"]
    assert page.text("li")[:2] == ["reference 1 a", "reference 1 b"]


def test_a_card_shows_the_beams_and_the_scores(tmp_path, photo):
    page = written(tmp_path, report([picture(3, photo)]))
    assert "2 beams" in page.text("summary")
    assert {"-1.500", "-2.250", "BLEU-4"} <= set(page.text("span"))
    assert {"0.300", "0.250"} <= set(page.text("b"))


def test_pictures_are_embedded_as_small_jpegs_with_a_reference_as_alternative_text(tmp_path, photo):
    (image,) = written(tmp_path, report([picture(1, photo)])).all("img")
    assert image["src"].startswith("data:image/jpeg;base64,")
    assert image["loading"] == "lazy"
    assert image["alt"] == "reference 1 a"


def test_without_references_the_caption_is_the_alternative_text(tmp_path, photo):
    (image,) = written(tmp_path, report([picture(1, photo, references=[])])).all("img")
    assert image["alt"] == "caption 1"


def test_thumbnails_are_at_most_320_pixels_wide_and_turned_as_exif_says(tmp_path):
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (640, 480)).save(path, exif=exif)
    uri = module._thumbnail(picture(1, path, width=480, height=640))
    assert uri is not None
    thumbnail = tmp_path / "thumbnail.jpg"
    thumbnail.write_bytes(base64.b64decode(uri.split(",")[1]))
    with Image.open(thumbnail) as opened:
        assert opened.size == (240, 320)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "I;16", "CMYK"])
def test_pictures_of_every_mode_are_shown(tmp_path, mode):
    path = tmp_path / ("photo.tif" if mode == "CMYK" else "photo.png")
    Image.new(mode, (400, 300)).save(path)
    assert len(written(tmp_path, report([picture(1, path)])).all("img")) == 1


@pytest.mark.parametrize("content", [None, b"", b"\xff\xd8\xff\xe0 no picture"])
def test_a_picture_that_is_not_at_hand_is_said_to_be_so(tmp_path, content):
    path = tmp_path / "photo.jpg"
    if content is not None:
        path.write_bytes(content)
    for missing in (None, path):
        page = written(tmp_path, report([picture(1, missing)]))
        assert page.all("img") == []
        assert "picture not at hand" in page.text("div")
        assert len(page.all("article")) == 1


def test_regions_lie_over_the_picture_in_its_pixels_with_small_ones_on_top(tmp_path, photo):
    page = written(tmp_path, report([picture(1, photo)]))
    (overlay,) = page.all("svg", class_="regions")
    assert overlay["viewbox"] == "0 0 640 480"
    whole, small = [a for a in page.all("rect") if "data-region" in a]
    assert (whole["data-region"], small["data-region"]) == ("2", "1")
    assert [small[k] for k in ("x", "y", "width", "height")] == ["10.0", "20.0", "50.0", "30.0"]


def test_a_region_names_its_class_and_score(tmp_path, photo):
    titles = written(tmp_path, report([picture(1, photo)])).text("title")
    assert titles[-2:] == ["region 2 of 2 · class 7 · 0.88", "region 1 of 2 · dog · 0.50"]


def test_regions_need_neither_class_nor_score(tmp_path, photo):
    bare = picture(1, photo, class_ids=None, region_scores=None)
    assert written(tmp_path, report([bare])).text("title")[-1] == "region 1 of 2"


def test_a_picture_may_have_no_region(tmp_path, photo):
    bare = picture(1, photo, boxes=np.zeros((0, 4)), class_ids=None, region_scores=None)
    assert written(tmp_path, report([bare])).all("svg", class_="regions") == []


def test_the_header_says_how_many_of_how_many_were_scored_and_what_was_left_out(tmp_path, photo):
    page = written(tmp_path, report([picture(1, photo)]))
    assert "4,999 of 5,000" in page.text("strong")
    assert "1 left out, and why" in page.text("summary")
    assert page.text("dt") == ["vocabulary", "decoding", "000000391895"]
    assert page.text("dd") == ["10,201 entries", "beam 5", "truncated file"]


def test_metrics_stand_beside_the_baseline_with_their_ratio(tmp_path, photo):
    page = written(tmp_path, report([picture(1, photo)]))
    assert page.text("th") == [
        *("metric", "this run", "features zeroed", "ratio"),
        *("BLEU-4", "CIDEr", "SPICE"),
    ]
    assert page.text("td") == ["0.2700", "–", "–", "0.8000", "0.4000", "2.00×", "not run: no jars"]


def test_without_a_baseline_there_are_two_columns(tmp_path, photo):
    page = written(tmp_path, report([picture(1, photo)], baseline=None))
    assert page.text("th")[:2] == ["metric", "this run"]
    assert page.text("td") == ["0.2700", "0.8000", "not run: no jars"]


def test_a_baseline_of_zero_has_no_ratio(tmp_path, photo):
    page = written(tmp_path, report([picture(1, photo)], baseline={"CIDEr": 0.0}))
    assert page.text("td")[3:6] == ["0.8000", "0.0000", "–"]


def test_of_many_pictures_the_worst_and_the_best_are_shown_and_the_report_says_so(tmp_path):
    page = written(tmp_path, report([picture(n, None) for n in range(20)]), max_pictures=5)
    shown = [int(card["data-id"]) for card in page.all("article")]
    assert shown == [0, 1, 2, 18, 19]
    assert (
        "5 of 20 pictures are shown: those with the lowest and those with the highest CIDEr."
        in page.text("p")
    )


def test_when_all_pictures_are_shown_nothing_is_said_about_a_selection(tmp_path):
    page = written(tmp_path, report([picture(n, None) for n in range(5)]), max_pictures=5)
    assert "are shown" not in page.source


def test_text_from_outside_is_escaped_everywhere(tmp_path, photo):
    bad = picture(
        *(1, photo),
        image_id=HOSTILE,
        caption=HOSTILE,
        references=[HOSTILE],
        scores={HOSTILE: 1.0},
        beams=[(HOSTILE, 0.0), (HOSTILE, 0.0)],
    )
    page = written(
        tmp_path,
        report(
            [bad],
            title=HOSTILE,
            baseline_name=HOSTILE,
            not_run={HOSTILE: HOSTILE},
            skipped={HOSTILE: HOSTILE},
            provenance={HOSTILE: HOSTILE},
            class_names=[HOSTILE] * 9,
        ),
    )
    assert HOSTILE not in page.source
    assert len(page.all("script")) == 1
    assert len(page.all("img")) == 1
    assert page.all("img")[0]["alt"] == HOSTILE
    assert page.text("h2") == page.text("h1") == [HOSTILE]


def test_nothing_is_loaded_from_outside_the_file(tmp_path, photo):
    page = written(tmp_path, report([picture(1, photo)]))
    for tag, attributes in page.elements:
        for name in ("src", "srcset", "href", "xlink:href", "action", "data", "poster"):
            value = attributes.get(name, "data:")
            assert value.startswith(("data:", "#")), (tag, name, value)
    assert "http:" not in page.source
    assert "https:" not in page.source
    assert "url(" not in page.source
    assert "@import" not in page.source
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'; img-src data:;")


def test_it_can_be_read_on_a_phone_with_a_keyboard_and_in_the_dark(tmp_path, photo):
    page = written(tmp_path, report([picture(1, photo)]))
    assert page.all("meta", name="viewport", content="width=device-width, initial-scale=1")
    assert "(prefers-color-scheme: dark)" in page.source
    assert page.all("a", class_="skip", href="#pictures")
    assert all("alt" in image for image in page.all("img"))
    assert page.all("svg", class_="regions")[0]["tabindex"] == "0"
    assert page.all("html", lang="en")


def test_equal_reports_are_equal_bytes_whatever_the_folder(tmp_path, photo):
    one, other = tmp_path / "one", tmp_path / "other"
    pages = []
    for folder in (one, other):
        folder.mkdir()
        copy = folder / "photo.jpg"
        copy.write_bytes(photo.read_bytes())
        written(folder, report([picture(n, copy) for n in range(3)]))
        pages.append((folder / "report.html").read_bytes())
    assert pages[0] == pages[1]
    assert str(tmp_path).encode() not in pages[0]


def test_the_histogram_counts_every_picture_also_those_not_shown(tmp_path):
    pictures = [picture(n, None) for n in range(11)]
    page = written(tmp_path, report(pictures), max_pictures=2)
    (drawn,) = page.all("svg", role="img")
    assert drawn["aria-label"] == "Histogram of CIDEr per picture from 0 to 1.0, median 0.500"
    counts = [int(title.split(": ")[1]) for title in page.text("title") if " to " in title]
    assert sum(counts) == 11


def test_a_report_without_pictures_is_still_a_report(tmp_path):
    page = written(tmp_path, report([], n=0))
    assert page.all("article") == []
    assert page.text("output") == ["0 pictures"]
