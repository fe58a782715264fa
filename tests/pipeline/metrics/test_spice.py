"""SPICE equals its own program, and parsed references are cached."""

import json
import shutil
import subprocess
import zipfile
from contextlib import contextmanager

import pytest

from a2cap.data.files.cache import write_entry
from a2cap.pipeline.metrics import all_metrics as metrics
from a2cap.pipeline.metrics import spice
from a2cap.pipeline.metrics.all_metrics import score
from a2cap.pipeline.metrics.java import JavaError, find_java
from a2cap.pipeline.metrics.spice import PARTS, spice_jars, spice_obstacle, spice_values
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
    "Cardinality": None,
    "Color": 1,
    "Size": None,
}


class Parser:
    """Fake of SpiceLines: each word is an object, and the score is the number of common ones."""

    def __init__(self):
        self.parsed = []

    def ask(self, lines):
        return [self._answer(json.loads(line)) for line in lines]

    def _answer(self, question):
        if isinstance(question, list):
            self.parsed += question
            return json.dumps([[[word] for word in caption.split()] for caption in question])
        common = [tuples for tuples in question["test"] if tuples in question["refs"][0]]
        parts = {part: {"f": None} for part in PARTS}
        return json.dumps({"All": {"f": float(len(common))}, **parts, "Object": {"f": 0.5}})


@pytest.fixture
def parser(monkeypatch, tmp_path):
    """Replace the JVM, with an empty cache folder."""
    made = Parser()

    @contextmanager
    def process(*_, **__):
        yield made

    monkeypatch.setenv("A2_CACHE", str(tmp_path))
    monkeypatch.setattr(spice, "java_process", process)
    monkeypatch.setattr(spice, "spice_jars", list)
    return made


def test_each_caption_is_parsed_once_and_references_are_cached(parser):
    progress: list[int] = []
    references = [["a dog", "dogs"], ["a dog"]]
    spice_values(["a cat", "a cat"], references, advance=progress.append)
    assert parser.parsed == ["a dog", "dogs", "a cat"]
    assert sum(progress) == 5
    spice_values(["dogs", "a bus"], references, advance=progress.append)
    assert parser.parsed[3:] == ["a bus"]
    assert sum(progress) == 10


def test_an_interrupted_parse_is_resumed(parser, monkeypatch):
    monkeypatch.setattr(spice, "_PARSE_BATCH", 1)
    monkeypatch.setattr(spice, "_SAVE_EVERY", 2)
    references, written = [["one", "two", "three"]], []
    monkeypatch.setattr(
        spice, "write_entry", lambda *entry: written.append(entry) or write_entry(*entry)
    )

    def stop(line):
        if "three" in line[0]:
            raise KeyboardInterrupt
        return Parser.ask(parser, line)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(parser, "ask", stop)
        with pytest.raises(KeyboardInterrupt):
            spice_values(["one"], references, advance=print)
    assert parser.parsed == ["one", "two"]
    spice_values(["one"], references, advance=print)
    assert parser.parsed == ["one", "two", "three"]
    assert len(written) == 2


def test_parts_are_averaged_over_the_images_that_have_them(parser, monkeypatch):
    monkeypatch.setattr(metrics, "_SLOW", {"SPICE": metrics._SLOW["SPICE"]})  # keeps the order
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
    message = 'SPICE needs Stanford CoreNLP 3.6.0; run "a2 weights fetch spice" first'
    assert message_of(spice_jars, error=JavaError) == message
    assert spice_obstacle() == message
    assert message_of(score, {"1": "a"}, {"1": ["a"]}, no_spice=None, error=JavaError) == message


@pytest.mark.slow
def test_the_compiled_class_equals_the_source(models, tmp_path):
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("no javac; install a JDK")
    version = subprocess.run([javac, "-version"], capture_output=True, check=True, text=True)
    if not version.stdout.startswith("javac 17."):
        pytest.skip(f"spice-lines.jar was compiled by javac 17, this is {version.stdout.strip()}")
    lines_jar, *others = spice_jars()
    source = lines_jar.with_name("SpiceLines.java")
    options = ["--release", "8", "-nowarn", "-cp", ":".join(map(str, others)), "-d", str(tmp_path)]
    subprocess.run([javac, *options, str(source)], capture_output=True, check=True)
    name = "edu/anu/spice/SpiceLines.class"
    with zipfile.ZipFile(lines_jar) as jar:
        assert jar.namelist() == [name]
        assert jar.read(name) == (tmp_path / name).read_bytes()


@pytest.mark.slow
@pytest.mark.spice
def test_scores_equal_those_of_spice_s_own_program(models, capfd):
    """Source: edu.anu.spice.SpiceScorer of spice-1.0.jar, run on OpenJDK 17 with Nashorn 15.4."""
    progress: list[int] = []
    found = spice_values(CANDIDATES, REFERENCES, advance=progress.append)
    assert [image.overall for image in found] == GOLDEN
    assert found[0].parts == GOLDEN_PARTS
    assert sum(progress) == len(CANDIDATES) + sum(map(len, REFERENCES))
    assert capfd.readouterr() == ("", "")
    again = spice_values(CANDIDATES, REFERENCES, advance=progress.append)
    assert again == found
    assert find_java().is_file()
