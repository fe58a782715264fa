"""Report as a file: its content, escaping, and independence from the network."""

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from a2cap.data.annotations.instances import Instances
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.regions import cell_boxes
from a2cap.data.scenes.truth import Judgement, Statement
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.grounding import Grounding
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.word_groups import score_word_groups
from a2cap.pipeline.report.erasure import erasure_rows
from a2cap.pipeline.report.image_card import FIXED_POINT, ImageCard, telling_word, thumbnail
from a2cap.pipeline.report.report import Baseline, ScoreReport, worst_typical_best, write_report
from tests.pipeline.report.evaluations import card, evaluation, padded, with_scores

HOSTILE = '<script>alert("x")</script> & <img src="https://example.org/x.png" onerror=x>'
VOID = {"meta", "img", "input", "link", "br"}


class Page(HTMLParser):
    """Parsed page with elements, attributes and text; every tag must be closed."""

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

    @property
    def data(self) -> dict[str, Any]:
        """Embedded data of all images."""
        [text] = re.findall(r'<script [^>]*id="data">(.*?)</script>', self.source, re.S)
        return dict(json.loads(text))

    @property
    def details(self) -> list[dict[str, Any]]:
        """Embedded data of image cards."""
        scripts = re.findall(r'<script [^>]*class="detail"[^>]*>(.*?)</script>', self.source, re.S)
        return [json.loads(text) for text in scripts]


ATTENTION = CaptionAttention(
    original=np.array([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]], dtype=np.float32),
    aligned=np.array([[0.5, 1.5, 1.0], [0.5, 1.25, 0.75]], dtype=np.float32),
    keep=np.array([[0.125, 0.25, 0.5], [1.0, 0.5, 0.75]], dtype=np.float32),
    gate=np.array([0.1234, 0.5], dtype=np.float32),
)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    Image.new("RGB", (640, 480), (90, 140, 60)).save(path)
    return path


@pytest.fixture
def written(tmp_path):
    """Write and parse a report; cards: number of an image -> card."""

    def write(content: ScoreReport, cards: dict[int, ImageCard] | None = None) -> Page:
        path = tmp_path / "report.html"
        write_report(path, content, [(padded(n), card) for n, card in (cards or {}).items()])
        return Page(path)

    return write


# --- embedded data -----------------------------------------------------------------------------


def test_every_image_is_listed_with_its_captions_and_scores(written):
    page = written(evaluation([3, 1]))
    assert page.data["metrics"] == ["BLEU-4", "CIDEr"]
    assert page.data["images"] == [
        {
            "id": f"{n:012d}",
            "caption": f"caption {n}",
            "references": [f"reference {n} a", f"reference {n} b"],
            "beams": [[f"caption {n}", -1.5], ["second beam", -2.25]],
            "scores": [0.25, n / 10],
            "grounding": None,
        }
        for n in (3, 1)
    ]
    assert page.details == []


def test_missing_scores_and_nan_are_null(written):
    per_image = {padded(1): {"SPICE": float("nan")}, padded(2): {"CIDEr": 0.2, "Bleu_4": 0.25}}
    page = written(with_scores(evaluation([1, 2]), per_image=per_image))
    assert page.data["metrics"] == ["BLEU-4", "CIDEr", "SPICE"]
    assert [row["scores"] for row in page.data["images"]] == [[None, None, None], [0.25, 0.2, None]]


def test_image_cards_are_embedded_by_id_with_their_attention_in_sixteen_bits(written, photo):
    page = written(evaluation([1, 2]), {2: card(photo, ATTENTION)})
    [script] = page.all("script", class_="detail")
    assert script["data-id"] == "000000000002"
    [detail] = page.details
    assert detail["thumbnail"].startswith("data:image/jpeg;base64,")
    assert (detail["width"], detail["height"]) == (640, 480)
    assert detail["boxes"][:2] == [[10.0, 20.0, 60.0, 50.0], [0.0, 0.0, 640.0, 480.0]]
    assert (detail["names"], detail["scores"]) == (["dog", "", "cat"], [0.5, 0.88, 1.0])
    attention = detail["attention"]
    assert (attention["tokens"], attention["gate"]) == (["caption", "2"], [0.123, 0.5])
    for name in ("original", "aligned", "keep"):
        packed = np.frombuffer(base64.b64decode(attention[name]), dtype="<u2")
        expected = getattr(ATTENTION, name).ravel()
        np.testing.assert_allclose(packed / FIXED_POINT, expected, atol=1 / FIXED_POINT)
    assert attention["layers"] == []


def test_attention_masks_scores_and_regions_may_be_missing(written, photo):
    bare = card(photo, None, boxes=np.zeros((0, 4)), names=[], scores=None)
    plain = card(photo, CaptionAttention(ATTENTION.original, ATTENTION.original))
    first, second = written(evaluation([1, 2]), {1: bare, 2: plain}).details
    assert [first[name] for name in ("boxes", "scores", "attention", "truth")] == [
        *([], None, None, None)
    ]
    assert [second["attention"][name] for name in ("aligned", "keep", "gate")] == [None] * 3


EVEN, LEFT, RIGHT = [0.34, 0.33, 0.33], [0.8, 0.1, 0.1], [0.1, 0.1, 0.8]


@pytest.mark.parametrize(
    ("caption", "original", "aligned", "expected"),
    [
        ("a red ball", [LEFT, LEFT, LEFT], [RIGHT, LEFT, RIGHT], 2),  # "a" is no content word
        ("red green ball", [EVEN, LEFT, LEFT], [RIGHT, LEFT, [0.6, 0.2, 0.2]], 2),  # "red" is even
        ("red ball", [LEFT, [0.6, 0.2, 0.2]], [LEFT, [0.6, 0.2, 0.2]], 0),  # equal: the peak
        ("red ball", [EVEN, LEFT], [LEFT, EVEN], None),
        ("man standing", [LEFT, LEFT], [LEFT, RIGHT], 0),  # a verb says little of where it looks
        ("standing", [LEFT], [RIGHT], 0),
        ("of the", [LEFT, LEFT], [LEFT, RIGHT], 1),  # without content words, any
        ("", np.zeros((0, 3)), np.zeros((0, 3)), None),
    ],
)
def test_the_most_telling_word_is_the_noun_or_adjective_that_alignment_changes_most(
    caption, original, aligned, expected
):
    attention = CaptionAttention(np.array(original), 1.5 * np.array(aligned))
    assert telling_word(caption.split(), attention) == expected


@pytest.mark.parametrize(
    ("boxes", "row", "expected"),
    [
        ([[0, 0, 100, 50], [200, 100, 400, 200]], [0.75, 0.25], ["upper left", 0.75, 0.5]),
        # of the whole image, a quarter is in each quarter
        ([[0, 0, 400, 200], [300, 0, 400, 50]], [0.4, 0.6], ["upper right", 0.7, 0.625]),
        # the quarter that gains most over an even row, not the one where most regions are
        ([[0, 0, 9, 9], [0, 0, 9, 9], [300, 150, 400, 200]], [0.3, 0.3, 0.4], None),
        ([[150, 75, 250, 125], [0, 0, 400, 200]], [1.0, 0.0], ["middle", 1.0, 0.625]),
        ([[50, 60, 50, 60], [0, 0, 400, 200]], [3.0, 0.0], ["upper left", 1.0, 0.625]),
        ([[0, 75, 40, 125], [0, 0, 400, 200]], [1.0, 0.0], ["left", 1.0, 0.625]),
    ],
)
def test_the_place_of_attention_is_the_quarter_that_gains_most(boxes, row, expected):
    rows = np.array([row], np.float32)
    attention = CaptionAttention(rows, rows)
    shown = ImageCard(None, 400, 200, np.array(boxes, float), [], attention=attention)
    (place,) = json.loads(json.dumps(shown.as_json("ball")))["attention"]["places"][0]
    assert place == (expected or ["lower right", 0.4, 0.333])


@pytest.mark.parametrize("side", [4, 7, 14])
@pytest.mark.parametrize("cell", [(0, 0), (0, -1), (-1, 0), (-1, -1)])
def test_a_bright_cell_of_a_grid_is_found_at_its_place(side, cell):
    light = np.full((side, side), 0.2 / (side**2 - 1), np.float32)
    light[cell] = 0.8
    rows = light.reshape(1, -1)
    attention = CaptionAttention(rows, 1.5 * rows, np.ones_like(rows))
    boxes = cell_boxes(side, (0, 0, 640, 480))
    shown = ImageCard(None, 640, 480, boxes, [], attention=attention, is_grid=True)
    ((original,), (aligned,)) = shown.as_json("ball")["attention"]["places"]
    name = f"{('upper', 'lower')[cell[0]]} {('left', 'right')[cell[1]]}"
    quarter = 0.8 + 0.2 * (side**2 / 4 - 1) / (side**2 - 1)
    assert original == aligned == (name, pytest.approx(quarter, abs=6e-4), 0.25)


def test_thumbnails_are_at_most_320_pixels_wide_and_upright(tmp_path):
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (640, 480)).save(path, exif=exif)
    uri = thumbnail(path)
    assert uri is not None
    small = tmp_path / "thumbnail.jpg"
    small.write_bytes(base64.b64decode(uri.split(",")[1]))
    with Image.open(small) as opened:
        assert opened.size == (240, 320)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xd8\xff\xe0 no image"])
def test_a_missing_or_damaged_image_has_no_thumbnail(tmp_path, content):
    path = tmp_path / "photo.jpg"
    if content is not None:
        path.write_bytes(content)
    assert thumbnail(path) is None
    assert thumbnail(None) is None


# --- the summary --------------------------------------------------------------------------------


def test_all_pages_together_stay_small():
    pages = [
        file.read_bytes()
        for file in files("a2cap.pipeline.report.templates").iterdir()
        if file.is_file()
    ]
    assert sum(map(len, pages)) <= 76_000


def test_the_header_reports_the_scored_and_the_skipped_images(written):
    evaluated = evaluation([1], figures={"vocabulary": 1812, "words_mean": 9.26})
    page = written(with_scores(evaluated, spice={"Object": 0.35}))
    assert "Captions of test · 1 of 2 images, 1 skipped" in page.text("p")
    sections = ["Caption statistics", "Provenance", "1 skipped, with reasons"]
    assert page.text("summary")[:5] == ["All metrics", "How to read this", *sections]
    assert page.text("dt")[-6:] == [
        *("vocabulary", "words mean", "SPICE, Object", "vocabulary", "decoding", "000000391895")
    ]
    assert page.text("dd")[-6:] == [
        *("1,812", "9.260", "0.350", "10,201 entries", "beam 5", "truncated file")
    ]


TRUE, FALSE = Judgement((), True), Judgement((Statement("colour", (1,), False),), True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "CIDEr 0.80, 2 times that of the features zeroed"),
        ({"baseline": None}, "CIDEr 0.80 on 2 images"),
        ({"baseline": Baseline({"CIDEr": 0.0})}, "CIDEr 0.80 on 2 images"),
        ({"baseline": Baseline({"CIDEr": 0.1})}, "CIDEr 0.80, 8 times that of the baseline"),
        (
            {"baseline": None, "judged": {padded(1): TRUE, padded(2): FALSE}},
            "CIDEr 0.80; 1 of 2 captions are true",
        ),
        (
            {"baseline": None, "scores": Scores({}, {padded(1): {}, padded(2): {}}, {})},
            "No metric was computed on 2 images",
        ),
    ],
)
def test_one_sentence_tells_what_was_found(written, changes, expected):
    assert written(evaluation([1, 2], **changes)).text("h1") == [expected]


def test_six_cited_metrics_have_one_row(written):
    metrics = {"Bleu_1": 0.7, "Bleu_2": 0.5, "Bleu_4": 0.27, "CIDEr": 0.8}
    evaluated = evaluation([1], baseline=None)
    page = written(with_scores(evaluated, metrics=metrics, confidence={"CIDEr": (0.7512, 0.8499)}))
    assert page.text("dt")[:4] == ["BLEU-1", "BLEU-4", "CIDEr", "SPICE"]
    assert page.text("b")[:4] == ["0.700", "0.270", "0.800", "–"]
    assert "0.751–0.850" in page.text("span")


@pytest.mark.parametrize(
    ("baseline", "confidence", "heads", "bleu", "cider"),
    [
        (0.4, {}, ["features zeroed", "ratio"], ["–", "–"], ["0.4000", "2.00×"]),
        (0.0, {}, ["features zeroed", "ratio"], ["–", "–"], ["0.0000", "–"]),
        (None, {}, [], [], []),
        (None, {"CIDEr": (0.7512, 0.8499)}, ["95 %"], ["–"], ["0.751–0.850"]),
    ],
)
def test_metrics_are_shown_with_intervals_or_the_ratio_to_the_baseline(
    written, baseline, confidence, heads, bleu, cider
):
    blind = None if baseline is None else Baseline({"CIDEr": baseline}, name="features zeroed")
    page = written(with_scores(evaluation([1], baseline=blind), confidence=confidence))
    heads = ["metric", "this run", *heads]
    assert page.text("th")[: len(heads) + 3] == [*heads, "BLEU-4", "CIDEr", "SPICE"]
    assert page.text("td") == ["0.2700", *bleu, "0.8000", *cider, "not run: no jars"]


def test_the_grounding_is_in_the_summary_and_with_each_image(written):
    grounding = Grounding(0.5, 0.625, 0.25, 1234)
    page = written(evaluation([1], grounding={padded(1): grounding}))
    assert page.data["images"][0]["grounding"] == [0.5, 0.625, 0.25, 1234]
    [line] = [text for text in page.text("p") if text.startswith("Attention on")]
    assert line.startswith(
        "Attention on named objects: 0.500 original, 0.625 aligned, 0.250 uniform "
        "(mean share over 1,234 words"
    )
    assert page.all("option", value="grounding -1")


def test_without_boxes_and_groups_of_words_the_report_has_no_such_sections(written):
    page = written(evaluation([1]))
    assert not [text for text in page.text("p") if text.startswith("Attention on")]
    assert not page.all("option", value="grounding -1")
    assert [table.get("aria-label") for table in page.all("table")] == ["Metrics", None]


def test_groups_of_words_have_a_table(written):
    groups = {"colours": frozenset({"red"}), "kinds": frozenset({"ball", "cup"})}
    references = {"1": ["a red ball"]}
    seeing, blind = (
        score_word_groups({"1": caption}, references, groups)
        for caption in ("a red ball", "a red cup")
    )
    baseline = Baseline({}, blind.groups, "blind")
    page = written(evaluation([1], word_groups=seeing, baseline=baseline))
    assert page.text("th")[-8:] == [
        *("group", "words", "precision", "recall", "F1", "blind, F1"),
        *("colours", "kinds"),
    ]
    assert page.text("td")[-10:] == [
        *("1", "1.000", "1.000", "1.000", "1.000"),  # the last is the baseline's, which has red too
        *("1", "1.000", "1.000", "1.000", "0.000"),
    ]


def test_the_histogram_counts_every_image(written):
    page = written(evaluation(range(11)))
    (drawn,) = page.all("svg", id="histogram")
    assert drawn["aria-label"] == "Histogram of CIDEr per image from 0 to 1.0, median 0.500"
    counts = [int(title.split(": ")[1]) for title in page.text("title") if " to " in title]
    assert sum(counts) == 11


# --- choice of images -------------------------------------------------------------------------


def test_the_worst_typical_and_best_images_are_chosen_worst_first():
    scores = {str(n): {"CIDEr": (n * 7) % 20 / 10} for n in range(20)}
    chosen = worst_typical_best(scores, 7)
    assert [scores[i]["CIDEr"] for i in chosen] == [0.0, 0.1, 0.8, 0.9, 1.0, 1.8, 1.9]
    for limit in range(21):
        assert len(set(worst_typical_best(scores, limit))) == limit
    assert worst_typical_best(scores, 0) == []
    assert len(worst_typical_best(scores, 20)) == len(worst_typical_best(scores, 99)) == 20
    assert worst_typical_best({"b": {}, "a": {}, "c": {}}, 2) == ["a", "b"]  # ties by id


# --- safety -------------------------------------------------------------------------------------


def test_text_from_outside_is_escaped_everywhere(tmp_path):
    content = ScoreReport(
        title=HOSTILE,
        captions={HOSTILE: HOSTILE},
        references={HOSTILE: [HOSTILE]},
        scores=Scores({HOSTILE: 1.0}, {HOSTILE: {HOSTILE: 1.0}}, {"SPICE": HOSTILE}),
        skipped={HOSTILE: HOSTILE},
        figures={HOSTILE: 1.0},
        provenance={HOSTILE: HOSTILE},
        beams={HOSTILE: [Beam(HOSTILE, 0.0), Beam(HOSTILE, 0.0)]},
        baseline=Baseline({}, name=HOSTILE),
        facts={HOSTILE: HOSTILE},
    )
    path = tmp_path / "report.html"
    truth = Instances(np.array([[0, 0, 1, 1]], dtype=np.float32), (HOSTILE,))
    rows = np.full((len(HOSTILE.split()), 3), 1 / 3, np.float32)
    bad = card(None, CaptionAttention(rows, rows), names=[HOSTILE, "", ""], truth=truth)
    write_report(path, content, [(HOSTILE, bad)])
    page = Page(path)
    assert HOSTILE not in page.source
    assert len(page.all("script")) == 4
    assert len(page.all("img")) == 1  # in the template
    assert page.text("title") == [HOSTILE]
    assert page.data["images"][0]["caption"] == HOSTILE
    assert page.details[0]["names"] == [HOSTILE, "", ""]
    assert page.details[0]["truth"] == {"boxes": [[0.0, 0.0, 1.0, 1.0]], "names": [HOSTILE]}


def test_the_report_loads_nothing_from_outside_the_file(written, photo):
    page = written(evaluation([1]), {1: card(photo, ATTENTION)})
    for tag, attributes in page.elements:
        for name in ("src", "srcset", "href", "xlink:href", "action", "data", "poster"):
            value = attributes.get(name, "data:")
            assert value.startswith(("data:", "#")), (tag, name, value)
    assert not re.search(r"https?:|url\(|@import", page.source)
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'; img-src data:;")


def test_erasure_is_a_table_with_intervals_and_two_curves_beside_random_order(written):
    from a2cap.model.erasure import Erasure

    curve = tuple(number / 10 for number in range(9))
    images = ((4, 2.0, 1.0), (1, 1.5, 0.25))
    orders = [
        Erasure(name, 5, 0, 0.7 - less, 0.25, None, 3.5, curve, curve[::-1], images)
        for name, less in (("attention", 0.0), ("random", 0.1))
    ]
    page = written(replace(evaluation(range(2)), erasure=orders))
    cells = page.text("td")
    at = cells.index("0.700 [0.500, 1.500]")
    assert cells[at : at + 4] == ["0.700 [0.500, 1.500]", "0.250 [0.250, 0.250]", "3.500", "–"]
    assert [text for text in page.text("b") if text in ("attention", "random")] == [
        "attention",
        "random",
    ]
    labels = [svg["aria-label"] for svg in page.all("svg") if "aria-label" in svg]
    assert "deletion, nats over share removed 0 to 1, from 0 to 0.8" in labels
    assert "insertion, nats over share kept 0 to 1, from 0 to 0.8" in labels
    assert page.text("title").count("attention, 10%: 0") == 1
    [first, _] = erasure_rows(orders)
    assert (first["comprehensiveness_low"], first["all_removed"]) == (0.5, 3.5)
