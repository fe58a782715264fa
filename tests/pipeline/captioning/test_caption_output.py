"""Captions in files: what is appended, what a second run skips, and what is refused."""

import json
from pathlib import Path

import pytest

from a2cap.data.errors import InputError
from a2cap.pipeline.captioning.caption_output import caption_output
from tests.data.messages import message_of


def line(name, caption="a dog", model="photos"):
    beams = [{"caption": caption, "score": -1.5}]
    return {"image": name, "model": model, "caption": caption, "beams": beams}


def rows(path):
    if path.suffix == ".jsonl":
        return [json.loads(text) for text in path.read_text().splitlines()]
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()


@pytest.fixture(params=["captions.jsonl", "captions.parquet"])
def path(request, tmp_path):
    if request.param.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    return tmp_path / request.param


def test_a_second_run_adds_to_the_first(path):
    for name in ("a.jpg", "b.jpg"):
        with caption_output(path, model="photos") as output:
            assert output.has(Path("a.jpg")) == (name == "b.jpg")
            assert not output.has(Path("b.jpg"))
            output.write(Path(name), line(name))
    assert rows(path) == [line("a.jpg"), line("b.jpg")]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_lines_are_there_at_once_and_half_a_line_is_written_again(tmp_path):
    path = tmp_path / "captions.jsonl"
    with caption_output(path, model="photos") as output:
        output.write(Path("a.jpg"), line("a.jpg"))
        assert rows(path) == [line("a.jpg")]
    with path.open("a") as file:
        file.write('{"image": "b.jpg", "capt')
    with caption_output(path, model="photos") as output:
        assert not output.has(Path("b.jpg"))
        output.write(Path("b.jpg"), line("b.jpg"))
    assert rows(path) == [line("a.jpg"), line("b.jpg")]


def test_a_run_of_parquet_that_was_killed_leaves_its_lines(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "captions.parquet"
    (tmp_path / "captions.parquet.jsonl").write_text(f"{json.dumps(line('a.jpg'))}\n")
    with caption_output(path, model="photos") as output:
        assert output.has(Path("a.jpg"))
    assert rows(path) == [line("a.jpg")]


def test_sidecars_lie_beside_their_images(tmp_path):
    image = tmp_path / "dog.jpg"
    output = caption_output(Path("sidecars"), model="photos")
    assert not output.has(image)
    output.write(image, line(str(image)))
    assert (tmp_path / "dog.txt").read_text() == "a dog\n"
    assert output.has(image)
    assert not caption_output(Path("sidecars"), model="photos", force=True).has(image)


def test_captions_of_another_model_are_refused_and_replaced_by_force(path):
    with caption_output(path, model="photos") as output:
        output.write(Path("a.jpg"), line("a.jpg"))
    written = path.read_bytes()
    assert message_of(caption_output, path, model="scenes", error=InputError) == (
        f"captions of two models in one file: {str(path)!r} has those of 'photos', this is "
        "'scenes'; name another --output, or caption all images again with --force"
    )
    assert path.read_bytes() == written
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with caption_output(path, model="scenes", force=True) as output:
        assert not output.has(Path("a.jpg"))
        output.write(Path("a.jpg"), line("a.jpg", "a lamp", "scenes"))
    assert rows(path) == [line("a.jpg", "a lamp", "scenes")]


def test_other_files_are_refused(tmp_path):
    assert message_of(caption_output, Path("captions.csv"), model="photos", error=InputError) == (
        "--output has an unknown suffix: 'captions.csv'; name a .jsonl or .parquet file, or "
        "'sidecars' for a text file beside each image"
    )
    path = tmp_path / "other.jsonl"
    path.write_text('{"images": []}\n')
    assert message_of(caption_output, path, model="photos", error=InputError) == (
        f"not a file of captions: {str(path)!r} has the line '{{\"images\": []}}'"
        "; name another --output"
    )
    assert path.read_text() == '{"images": []}\n'
