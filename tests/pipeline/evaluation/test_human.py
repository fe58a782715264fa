"""Human evaluation: a sheet that hides who wrote what, and the tally of its answers."""

import csv
import json
import re

import numpy as np
import pytest
from PIL import Image

from a2cap.data.files.sealed_folder import seal
from a2cap.pipeline.evaluation.human import (
    ANSWERS,
    CRITERIA,
    SheetKey,
    fleiss_kappa,
    tally,
    write_sheet,
)
from tests.data.messages import message_of, written
from tests.experiments import a2

IDS = [f"{number:012d}" for number in range(1, 31)]
OLD = {image_id: f"old {image_id}" for image_id in IDS}
NEW = {image_id: f"new {image_id}" for image_id in IDS} | {IDS[0]: OLD[IDS[0]]}


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for image_id in IDS:
        Image.new("RGB", (8, 6), "red").save(folder / f"{image_id}.jpg")
    return folder


@pytest.fixture
def key(images, tmp_path):
    return write_sheet(tmp_path / "sheet", {"old": OLD, "new": NEW}, images, count=20, seed=3)


@pytest.fixture
def results(tmp_path):
    """Results files of both captioners."""
    return tuple(
        written(tmp_path, [{"image_id": int(i), "caption": c} for i, c in captions.items()], name)
        for name, captions in (("a.json", OLD), ("b.json", NEW))
    )


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def judge(sheet, path, answer):
    """Write a judge's sheet; answer: function of a row and a criterion."""
    rows = [{"item": r["item"], **{name: answer(r, name) for name in CRITERIA}} for r in sheet]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["item", *CRITERIA])
        writer.writeheader()
        writer.writerows(rows)
    return path


def for_the_new(row, criterion):
    return "left" if row["left"].startswith("new") else "right"


def test_the_sheet_shows_both_captions_of_each_image_and_the_key_tells_them_apart(key, tmp_path):
    rows = rows_of(tmp_path / "sheet" / "sheet.csv")
    assert len({row["image"] for row in rows}) == len(rows) == 20
    for row, item in zip(rows, key.items, strict=True):
        shown = (row["left"], row["right"]) if item.first_is_left else (row["right"], row["left"])
        assert shown == (OLD[item.image_id], NEW[item.image_id])
        assert row["image"] == f"{item.image_id}.jpg"
    sides = [item.first_is_left for item in key.items]
    assert 0 < sum(sides) < 20
    assert IDS[0] not in {item.image_id for item in key.items}  # both captions are equal
    assert SheetKey.read(tmp_path / "sheet") == key
    page = (tmp_path / "sheet" / "sheet.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 20
    assert page.count('type="radio"') == 20 * len(CRITERIA) * len(ANSWERS)
    assert "first_is_left" not in page


def test_a_spreadsheet_neither_computes_a_caption_nor_changes_the_tally(images, key, tmp_path):
    starts = ("=", "\t=", "\r=", " \n@", "\ufeff+", "\0-", "\t", "＝")
    for number, start in enumerate(starts):
        formulas = {image_id: f"{start}1+{image_id};=2" for image_id in IDS}
        other = tmp_path / f"other-{number}"
        write_sheet(other, {"old": OLD, "new": formulas}, images, count=5, seed=0)
        for row in rows_of(other / "sheet.csv"):
            assert sorted((row["left"], row["right"]))[0].startswith(f"'{start}1+")
        assert (other / "sheet.csv").read_text().count(';=2"') == 5  # which is one cell
    sheet = rows_of(tmp_path / "sheet" / "sheet.csv")
    path = judge(sheet, tmp_path / "mine.csv", for_the_new)
    with_semicolons = path.read_text().replace(",", ";")
    quoted = re.sub(r"([^;\r\n]+)", r'"\1"', with_semicolons)
    for saved in ("\ufeff" + with_semicolons, quoted):
        (tmp_path / "saved.csv").write_text(saved)
        assert tally(key, [tmp_path / "saved.csv"]) == tally(key, [path])


def test_equal_seeds_draw_equal_sheets_and_others_do_not(images, tmp_path, key):
    captions = {"old": OLD, "new": NEW}
    again = write_sheet(tmp_path / "again", captions, images, count=20, seed=3)
    assert again == key
    for name in ("sheet.csv", "sheet.html", "key.json"):
        ours, theirs = (tmp_path / folder / name for folder in ("sheet", "again"))
        assert ours.read_bytes() == theirs.read_bytes()
    assert write_sheet(tmp_path / "other", captions, images, count=20, seed=4).items != key.items


def test_the_tally_counts_each_criterion_for_itself(key, tmp_path):
    sheet = rows_of(tmp_path / "sheet" / "sheet.csv")

    def answer(row, criterion):
        if criterion == "richness":
            return "tie"
        prefers_new = int(row["item"]) <= (15 if criterion == "relevance" else 10)
        new = for_the_new(row, criterion)
        return new if prefers_new else {"left": "right", "right": "left"}[new]

    tallies = {row.criterion: row for row in tally(key, [judge(sheet, tmp_path / "a.csv", answer)])}
    assert [tallies[name].second for name in CRITERIA] == [0.5, 0.75, 0]
    assert [tallies[name].difference for name in CRITERIA] == [0, 0.5, 0]
    assert tallies["richness"].tie == 1
    assert tallies["naturalness"].low < 0 < tallies["naturalness"].high
    assert tallies["relevance"].low < 0.5 < tallies["relevance"].high
    assert {row.agreement for row in tallies.values()} == {None}


def test_kappa_of_the_published_example():
    """Source: the example of Fleiss 1971 as on Wikipedia, 10 subjects, 14 raters, kappa 0.210."""
    counts = [
        *([0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1]),
        *([7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7]),
    ]
    assert fleiss_kappa(np.array(counts, dtype=float)) == pytest.approx(0.210, abs=5e-4)


def without_some(row, criterion):
    return "" if row["item"] in ("2", "7") and criterion == "relevance" else "left"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            without_some,
            "2 answers are missing in {path!r}: relevance of item 2, relevance of item 7; "
            "answer left, tie, right",
        ),
        (
            lambda row, criterion: "" if int(row["item"]) > 8 else "tie",
            "36 answers are missing in {path!r}: naturalness of item 9, naturalness of item 10, "
            "naturalness of item 11, naturalness of item 12, naturalness of item 13, …; "
            "answer left, tie, right",
        ),
        (
            lambda row, criterion: "" if row["item"] == "3" and criterion == "richness" else "tie",
            "1 answer is missing in {path!r}: richness of item 3; answer left, tie, right",
        ),
        (
            lambda row, criterion: "A",
            "unknown answer in {path!r}: 'a' to naturalness; answer left, tie, right",
        ),
    ],
)
def test_an_incomplete_or_unknown_answer_is_reported(key, tmp_path, answer, message):
    sheet = rows_of(tmp_path / "sheet" / "sheet.csv")
    path = judge(sheet, tmp_path / "mine.csv", answer)
    assert message_of(tally, key, [path]) == message.format(path=str(path))


def test_a_sheet_of_another_key_is_refused(key, tmp_path):
    sheet = rows_of(tmp_path / "sheet" / "sheet.csv")
    path = judge(sheet[:19], tmp_path / "short.csv", for_the_new)
    assert message_of(tally, key, [path]) == (
        f"items of {str(path)!r} are not 1 to 20, each once; use the sheet of this key"
    )
    path.write_text("item,caption\n1,a\n")
    assert message_of(tally, key, [path]).startswith(
        f"not a sheet: {str(path)!r} lacks the columns"
    )
    assert message_of(tally, key, [path, path]) == (
        f"a judge would count twice: {str(path)!r}; name one file for each judge"
    )
    (tmp_path / "key.json").write_text("{}")
    assert message_of(SheetKey.read, tmp_path) == (
        f'not a key: {str(tmp_path / "key.json")!r}; run "a2 human sheet" again'
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"count": 30},
            "29 images have different captions in all files, fewer than 30; lower --count",
        ),
        ({"images": "empty"}, "20 images are not in "),
        ({"folder": "sheet"}, "the folder exists: "),
    ],
)
def test_an_unusable_sheet_is_refused(key, images, tmp_path, change, message):
    (tmp_path / "empty").mkdir()
    Image.new("RGB", (8, 6)).save(tmp_path / "empty" / "x.jpg")
    options = {"count": 20, "seed": 0, "images": images, "folder": "new", **change}
    folder = tmp_path / options.pop("folder")
    shown = tmp_path / options.pop("images")
    captions = {"old": OLD, "new": NEW}
    assert message_of(write_sheet, folder, captions, shown, **options).startswith(message)


def test_the_commands_write_a_sheet_and_count_its_answers(images, results, tmp_path):
    sheet = tmp_path / "my sheet"
    place = ("--images", images, "--output", sheet, "--count", 5)
    done = a2("human", "sheet", *results, *place)
    assert done.stdout == f"{sheet}: 5 images; send sheet.html, keep key.json\n"
    judges = [
        judge(rows_of(sheet / "sheet.csv"), tmp_path / f"{n}.csv", for_the_new) for n in range(2)
    ]
    shown = a2("human", "tally", sheet, judges[0]).stdout.splitlines()
    assert shown[:2] == [f"A: {results[0]}", f"B: {results[1]}"]
    assert " ".join(shown[3].split()) == (
        "naturalness 0.0% 0.0% 100.0% +1.0000 +1.0000 to +1.0000 one judge"
    )
    printed = json.loads(a2("human", "tally", sheet, *judges, "--json").stdout)
    assert [(row["second"], row["agreement"]) for row in printed["criteria"]] == [(1, 1)] * 3
    lost = a2("human", "sheet", *results, *place, "--images", tmp_path / "no")
    assert (
        lost.stderr == f"a2: --images is not a folder: {str(tmp_path / 'no')!r}; check the path\n"
    )
    same = a2("human", "sheet", results[0], results[0], *place, code=2)
    assert "A and B are the same; name two captioners" in same.stderr


def test_a_human_reference_is_a_third_candidate_whose_pairs_are_tallied_apart(
    images, results, tmp_path
):
    human = written(tmp_path, {image_id: [f"A human, {image_id}."] for image_id in IDS})
    sheet = tmp_path / "sheet"
    place = ("--images", images, "--output", sheet, "--count", 6)
    done = a2("human", "sheet", *results, *place, "--references", human)
    assert done.stdout == f"{sheet}: 6 images and 18 pairs; send sheet.html, keep key.json\n"
    key, rows = SheetKey.read(sheet), rows_of(sheet / "sheet.csv")
    assert [item.pair for item in key.items] != sorted(item.pair for item in key.items)
    texts = [OLD, NEW, {i: f"a human {i}" for i in IDS}]  # tokens, as captioners write them
    for row, item in zip(rows, key.items, strict=True):
        ordered = [texts[n][item.image_id] for n in item.pair]
        assert [row["left"], row["right"]] == ordered[:: 1 if item.first_is_left else -1]

    def for_the_human(row, criterion):
        first = key.items[int(row["item"]) - 1].first_is_left
        human = [row[side].startswith("a human") for side in ("left", "right")]
        return ANSWERS[2 * human.index(True)] if any(human) else "left" if first else "right"

    path = judge(rows, tmp_path / "x.csv", for_the_human)
    tallies = tally(key, [path])
    assert [row.pair for row in tallies[:: len(CRITERIA)]] == [(0, 1), (0, 2), (1, 2)]
    assert [row.second for row in tallies[:: len(CRITERIA)]] == [0, 1, 1]
    shown = a2("human", "tally", sheet, path).stdout.splitlines()
    heads = [line for line in shown if line.startswith(("A:", "B:"))]
    first, second, human = (f": {name}" for name in (*results, "a human reference"))
    ends = [(first, second), (first, human), (second, human)]
    assert heads == [
        f"{side}{name}" for pair in ends for side, name in zip("AB", pair, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.chromium
def test_the_page_saves_the_answers_as_a_sheet(key, open_page, faults_of, tmp_path):
    page = open_page(tmp_path / "sheet" / "sheet.html", width=360)
    assert page.inner_text("#left") == "60 questions are left"
    for input_ in page.query_selector_all('input[value="right"]'):
        input_.check()
    assert page.inner_text("#left") == "all answered"
    page.click("#save")
    assert page.inner_text("#left") == "write your name first; it names the file"
    page.keyboard.type("Ada B/3")  # its digit is no answer
    with page.expect_download() as started:
        page.click("#save")
    assert started.value.suggested_filename == "answers-Ada-B-3.csv"
    started.value.save_as(tmp_path / "answers.csv")
    tallies = tally(key, [tmp_path / "answers.csv"])
    right = sum(not item.first_is_left for item in key.items) / 20
    assert {row.first for row in tallies} == {right}
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert faults_of(page) == []


@pytest.mark.slow
@pytest.mark.chromium
def test_digits_answer_and_the_next_item_comes_into_view(key, open_page, faults_of, tmp_path):
    page = open_page(tmp_path / "sheet" / "sheet.html", width=768)
    marked = page.locator(".current")
    for digit in "123":
        assert marked.get_attribute("aria-label") == "item 1"
        page.keyboard.press(digit)
    assert marked.get_attribute("aria-label") == "item 2"
    chosen = page.locator("section").first.locator(":checked")
    assert [answer.input_value() for answer in chosen.all()] == list(ANSWERS)
    page.keyboard.press("2")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    assert marked.get_attribute("aria-label") == "item 1"
    assert page.inner_text("#left") == "58 questions are left"
    page.keyboard.press("3")
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert marked.get_attribute("aria-label") == "item 10"
    box = marked.bounding_box()
    assert 0 <= box["y"] < 800
    page.keyboard.press("ArrowLeft")
    assert marked.get_attribute("aria-label") == "item 9"
    page.reload()  # answers are kept
    assert marked.get_attribute("aria-label") == "item 2"
    assert page.inner_text("#left") == "57 questions are left"
    assert faults_of(page) == []


def test_captions_that_differ_from_the_manifest_are_not_judged(images, results, tmp_path):
    folder = tmp_path / "evaluation"
    folder.mkdir()
    path = folder / "captions.json"
    path.write_bytes(results[0].read_bytes())
    seal(folder, [path.name])
    path.write_bytes(path.read_bytes().replace(b"a", b"b"))
    place = ("--images", images, "--output", tmp_path / "sheet", "--count", 5)
    assert a2("human", "sheet", folder, results[1], *place).stderr == (
        f"a2: {str(path)!r} differs from its sha256 in the manifest; "
        f'run "a2 verify --data {folder}", which names the command that restores it\n'
    )
