"""SPICE equals its own program, and parsed references are cached."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from a2cap.pipeline.metrics import metric_table, spice
from a2cap.pipeline.metrics.all_metrics import score
from a2cap.pipeline.metrics.spice import PARTS, spice_jars, spice_obstacle, spice_statistics
from a2cap.pipeline.runtime.java import JavaError
from tests.data.messages import message_of

CANDIDATES = [
    "a man riding a brown horse",
    "two small dogs in the white snow",
    "a cat",
    "",
    "a bus is parked now",
]
REFERENCES = [
    [
        "a man rides a brown horse on the beach",
        "the man is on a horse",
        "a person riding a horse",
    ],
    ["two dogs play in the snow", "a pair of small dogs running through snow"],
    ["a red bus on a street", "the bus is parked", "a big bus"],
    ["a plate of food", "food on a table"],
    ["a bus is parked now"],
]
GOLDEN = [0.5, 0.5333333333333333, 0, 0, 1]
GOLDEN_PARTS = {
    "Object": 0.5714285714285715,
    "Relation": 0,
    "Attribute": 0.6666666666666666,
    "Cardinality": np.nan,
    "Color": 1,
    "Size": np.nan,
}


class Program:
    """Fake of SPICE's program: a caption is parsed unless its database contained it before.

    References come first, then candidates. Each word is an object, and the score is the number of
    words that the first reference has.
    """

    def __init__(self):
        self.parsed: list[list[str]] = []

    def __call__(self, arguments):
        program = arguments[arguments.index(spice._PROGRAM) :]
        items = json.loads(Path(program[1]).read_text())
        options = dict(pairwise(program))
        database = Path(options.get("-cache", "")) / "data.mdb"
        known = json.loads(database.read_text()) if database.is_file() else []
        self.parsed.append([])
        for captions in ([c for item in items for c in item["refs"]], [i["test"] for i in items]):
            missing = [caption for caption in captions if caption not in known]
            self.parsed[-1] += missing
            known += missing if "-cache" in options else []
        if "-cache" in options:
            database.write_text(json.dumps(known))
        if "-out" not in options:
            return
        rows = [{"image_id": item["image_id"], "scores": self._scores(item)} for item in items]
        Path(options["-out"]).write_text(json.dumps(rows))

    def _scores(self, item):
        common = set(item["test"].split()) & set(item["refs"][0].split())
        parts = {part: {"f": None} for part in PARTS}
        return {"All": {"f": float(len(common))}, **parts, "Object": {"f": 0.5}}


@pytest.fixture
def program(monkeypatch, tmp_path):
    """Replace the JVM, with an empty cache folder."""
    made = Program()
    monkeypatch.setenv("A2_CACHE", str(tmp_path))
    monkeypatch.setattr(spice, "run_java", made)
    monkeypatch.setattr(spice, "spice_jars", list)
    monkeypatch.setattr(spice, "_HAS_CACHE", True)
    return made


def test_each_caption_is_parsed_once_and_parsed_references_are_kept(program):
    progress: list[int] = []
    references = [["a dog", "dogs"], ["a dog"]]
    spice_statistics(["a cat", "a cat"], references, progress.append)
    assert program.parsed == [["a dog", "dogs", "a cat"], []]
    assert sum(progress) == 5
    values = spice_statistics(["dogs", "a bus"], references, progress.append)
    assert program.parsed[2:] == [["a bus"], []]
    assert values[:, 0].tolist() == [0, 1]
    assert sum(progress) == 10


def test_no_images_have_no_scores(program):
    assert spice_statistics([], [], print).shape == (0, 1 + len(PARTS))


def test_candidates_of_an_earlier_evaluation_are_not_kept(program, tmp_path):
    references = [["a dog"]]
    spice_statistics(["a dog"], references, print)
    [entry] = (tmp_path / "spice").iterdir()
    before = entry.read_bytes()
    for caption in ("a bus", "a car"):
        spice_statistics([caption], references, print)
    assert program.parsed == [["a dog"], [], ["a bus"], [], ["a car"], []]
    assert entry.read_bytes() == before


def test_an_interrupted_parse_is_resumed(program, monkeypatch):
    monkeypatch.setattr(spice, "_CAPTIONS", 1)
    monkeypatch.setattr(spice, "_IMAGES", 2)
    references = [["one"], ["two"], ["three"]]

    def stop(arguments):
        if len(program.parsed) == 2:
            raise KeyboardInterrupt
        program(arguments)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(spice, "run_java", stop)
        with pytest.raises(KeyboardInterrupt):
            spice_statistics(["one", "two", "three"], references, print)
    assert program.parsed == [["one"], ["two"]]
    values = spice_statistics(["one", "two", "three"], references, print)
    assert program.parsed[2:] == [["three"], [], []]
    assert values[:, 0].tolist() == [1, 1, 1]


def test_a_damaged_entry_of_the_cache_is_parsed_again(program, tmp_path):
    spice_statistics(["a dog"], [["a dog"]], print)
    [entry] = (tmp_path / "spice").iterdir()
    entry.write_bytes(entry.read_bytes()[:-1])
    spice_statistics(["a dog"], [["a dog"]], print)
    assert program.parsed == [["a dog"], []] * 2


def test_without_its_database_the_program_parses_the_captions_as_they_are(program, monkeypatch):
    """LMDB of the jar is machine code of x86-64."""
    monkeypatch.setattr(spice, "_HAS_CACHE", False)
    for _ in range(2):
        values = spice_statistics(["a cat", "a cat"], [["a dog"], ["a cat"]], print)
        assert values[:, 0].tolist() == [1, 2]
    assert program.parsed == [["a dog", "a cat", "a cat", "a cat"]] * 2


def test_parts_are_averaged_over_the_images_that_have_them(program, monkeypatch):
    monkeypatch.delitem(metric_table.FAMILIES, "METEOR")
    scores = score({"1": "dog", "2": "cat"}, {"1": ["dog"], "2": ["bus"]}, no_spice=None)
    assert scores.not_run == {}
    assert list(scores.per_image["1"]) == [*list(scores.metrics)]
    assert scores.metrics["SPICE"] == sum(p["SPICE"] for p in scores.per_image.values()) / 2
    assert scores.spice == {"Object": 0.5}
    assert scores.spice_per_image["2"] == dict.fromkeys(PARTS) | {"Object": 0.5}
    assert scores.confidence["SPICE"][0] <= scores.metrics["SPICE"]


@pytest.mark.slow
def test_the_error_without_the_parser_names_the_command_that_downloads_it(monkeypatch, tmp_path):
    monkeypatch.setenv("A2_CACHE", str(tmp_path))
    message = 'SPICE needs its parser and Rhino; run "a2 weights fetch spice" first'
    assert message_of(spice_jars, error=JavaError) == message
    assert spice_obstacle() == message
    assert message_of(score, {"1": "a"}, {"1": ["a"]}, no_spice=None, error=JavaError) == message


@pytest.mark.slow
@pytest.mark.spice
@pytest.mark.parametrize("has_cache", [True, False])
def test_scores_equal_those_of_spice_s_own_program(models, capfd, monkeypatch, has_cache):
    """Source: edu.anu.spice.SpiceScorer of spice-1.0.jar, run on OpenJDK 17 with Nashorn 15.4."""
    monkeypatch.setattr(spice, "_HAS_CACHE", has_cache and spice._HAS_CACHE)
    progress: list[int] = []
    values = spice_statistics(CANDIDATES, REFERENCES, progress.append)
    assert values[:, 0].tolist() == GOLDEN
    np.testing.assert_array_equal(values[0, 1:], [GOLDEN_PARTS[part] for part in PARTS])
    assert sum(progress) == len(CANDIDATES) + sum(map(len, REFERENCES))
    assert capfd.readouterr() == ("", "")
    again = spice_statistics(CANDIDATES, REFERENCES, progress.append)
    np.testing.assert_array_equal(again, values)
