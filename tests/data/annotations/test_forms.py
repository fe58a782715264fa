"""Every form of docs/guide/data.md, read as it stands there."""

import json
import re
from pathlib import Path

import pytest

from a2cap.data.annotations.layouts import LAYOUTS
from a2cap.data.annotations.read import read_annotations
from a2cap.pipeline.evaluation.references import read_references
from a2cap.pipeline.evaluation.results import read_captions
from tests.data.messages import message_of
from tests.data.sources.samples import tar_bytes
from tests.experiments import a2

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "data.md"
ROW = re.compile(r"\| ([^|]*) \| (`.*`) \|")
LINES = PAGE.read_text("utf-8").partition("## Forms of captions")[2].partition("\n## ")[0]
FORMS = {
    row[1]: [line.strip("`") for line in row[2].split(" <br> ")]
    for row in filter(None, map(ROW.fullmatch, LINES.split("\n")))
}
NAMED = [form for form in FORMS if form not in ("a JSON list of captions", "lines of text")]
SUFFIXES = {
    "CSV or TSV": "csv",
    "a Flickr token file": "token",
    "lines of text": "txt",
    "JSON Lines of records": "jsonl",
}
TEXTS = {"a": ["A dog."], "b": ["A cat."]}


def write(folder, form):
    """Write the example of a form; return the path that names it."""
    lines = FORMS[form]
    files = [re.fullmatch(r"([\w./]+): (.*)", line) for line in lines]
    if not all(files):
        path = folder / f"x.{SUFFIXES.get(form, 'json')}"
        path.write_text("\n".join(lines).replace("<tab>", "\t"))
        return path
    members = {match[1]: match[2].replace("↵", "\n").encode() for match in files}
    top = {name.partition("/")[0] if "/" in name else "" for name in members}
    images = {
        f"{place}/{name}.jpg".lstrip("/"): b""
        for place, name in zip(sorted(top) * 2, "ab", strict=False)
    }
    if form.startswith("tars"):
        (folder / "x.tar").write_bytes(tar_bytes(members | images))
        return folder / "x.tar"
    for name, content in (members | images).items():
        (folder / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "x" / name).write_bytes(content)
    return folder / "x"


def stem(image_id):
    return image_id.rpartition("/")[2]


def test_the_page_has_the_forms_that_are_read():
    assert list(FORMS) == [layout.name for layout in LAYOUTS]


@pytest.mark.parametrize("form", NAMED)
def test_a_form_of_the_page_is_read_as_annotations_and_as_references(tmp_path, form):
    path = write(tmp_path, form)
    annotations = read_annotations(path)
    assert annotations.layout == form
    words = {stem(image.image_id): image.captions[0].tokens for image in annotations.images}
    assert words == {"a": ("a", "dog"), "b": ("a", "cat")}
    splits = [image.split for image in annotations.images]
    if splits == ["train", "val"]:  # a test split is scored
        assert message_of(read_references, path) == (
            f"no image of {str(path)!r} is in its test split; name other references"
        )
    else:
        references = read_references(path)
        assert {
            stem(i): [t.rstrip(".") for t in texts] for i, texts in references.texts.items()
        } == {
            "a": ["A dog"],
            "b": ["A cat"],
        }


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_the_page_is_read_as_captions_to_score(tmp_path, form):
    captions = read_captions(write(tmp_path, form)).captions
    assert [text.rstrip(".").lower() for text in captions.values()] == ["a dog", "a cat"]


@pytest.mark.parametrize("form", NAMED)
def test_every_form_becomes_json_lines_that_are_read_alike(tmp_path, form):
    path, lines = write(tmp_path, form), tmp_path / "captions.jsonl"
    answer = a2("annotations", path, "--output", lines, code=0)
    first, *_, last = answer.stdout.splitlines()
    assert first.startswith(f"read as {form}: 2 images; 2 captions (1 an image); ")
    assert last == f"{lines}: 2 images"
    assert read_annotations(lines) == read_annotations(path)
    assert json.loads(lines.read_text().splitlines()[0])["image"].endswith("a.jpg")
