"""Values and commands of docs/guide/metrics.md."""

import json
import re

import pytest
from click.testing import CliRunner

import a2cap
from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.metrics import cider
from a2cap.pipeline.metrics.all_metrics import METRICS, shown_name
from tests.test_docs_pages import commands
from tests.test_structure import ROOT

PAGE = ROOT / "docs" / "guide" / "metrics.md"


def values_of(metric, **options):
    """Return what the table of a metric states, and its values for the same captions."""
    header = rf"\| \| caption \| {shown_name(metric)} \|\n.*\n((?:\|.*\n)+)"
    before, rows, _ = re.split(header, PAGE.read_text(encoding="utf-8"))
    texts = re.findall('"([^"]+)"', before.rpartition("eferences:")[2].replace("\n", " "))
    stated = re.findall(r"\| (right|wrong) \| (.+) \| (\d\.\d\d) \|", rows)
    assert {kind for kind, *_ in stated} == {"right", "wrong"}
    captions = {caption: caption for _, caption, _ in stated}
    found = a2cap.score(captions, dict.fromkeys(captions, texts), metrics=[metric], **options)
    return {caption: value for _, caption, value in stated}, {
        caption: f"{values[metric]:.2f}" for caption, values in found.per_image.items()
    }


@pytest.mark.parametrize("metric", ["Bleu_2", "METEOR", "ROUGE_L"])
def test_examples_have_the_values_of_the_page(metric):
    stated, found = values_of(metric)
    assert metric in METRICS
    assert found == stated


@pytest.mark.slow
def test_examples_of_cider_have_the_values_of_the_page(monkeypatch, users_cache):
    monkeypatch.setenv("A2_CACHE", str(users_cache))  # COCO was counted by an earlier run or now
    cider.coco_frequencies.cache_clear()
    stated, found = values_of("CIDEr", idf="coco")
    cider.coco_frequencies.cache_clear()
    assert found == stated


@pytest.mark.slow
@pytest.mark.spice
@pytest.mark.usefixtures("models")
def test_examples_of_spice_have_the_values_of_the_page():
    stated, found = values_of("SPICE")
    assert found == stated


def test_commands_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        cider, "coco_frequencies", lambda: cider.CorpusFrequencies.count([["a dog"]] * 9)
    )
    files = [(f"{n:012d}.jpg", text) for n, text in enumerate(["A dog.", "two cats", "a man"])]
    sentences = [{"raw": text, "tokens": text.split(), "sentid": 1} for _, text in files]
    karpathy = [
        {"filename": name, "split": "test", "sentences": [sentence]}
        for (name, _), sentence in zip(files, sentences, strict=True)
    ]
    coco = [{"id": n, "image_id": n, "caption": text} for n, (_, text) in enumerate(files)]
    table = "".join(f"{name},{text}\n" for name, text in files)
    contents = {
        "captions.json": json.dumps(coco),
        "theirs.json": json.dumps(dict(files)),
        "captions.jsonl": "\n".join(map(json.dumps, coco)),
        "captions.txt": "\n".join(text for _, text in files),
        "ours.csv": f"image,caption\n{table}",
        "captions_val2014.json": json.dumps({"images": coco, "annotations": coco}),
        "dataset_coco.json": json.dumps({"images": karpathy}),
        "flickr.token": "".join(f"{name}#0\t{text}\n" for name, text in files),
        "references.json": json.dumps({name: [text] for name, text in files}),
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    asked = [words for words, complete in commands(PAGE) if complete]
    for words in asked:
        ran = CliRunner().invoke(cli, words)
        assert ran.exit_code == 0, ran.output
        assert re.search(r"^METEOR +1\.0000 ", ran.output, re.MULTILINE), ran.output
    assert contents.keys() <= {word for words in asked for word in words}
    assert (tmp_path / "images.csv").read_text().count("\n") == 4
