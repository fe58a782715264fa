"""Values and commands of docs/guide/metrics.md."""

import json
import re

import numpy as np
import pytest

import a2cap
from a2cap.data.captions.coco_objects import mentions_of
from a2cap.pipeline.metrics import cider
from a2cap.pipeline.metrics.metric_table import shown_name
from a2cap.pipeline.metrics.scene_truth import chair_counts, chair_values
from tests.experiments import a2
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
    scores = a2cap.score(captions, dict.fromkeys(captions, texts), metrics=[metric], **options)
    return {caption: value for _, caption, value in stated}, {
        caption: f"{values[metric]:.2f}" for caption, values in scores.per_image.items()
    }


@pytest.mark.parametrize("metric", ["Bleu_2", "METEOR", "ROUGE_L"])
def test_examples_have_the_values_of_the_page(metric):
    stated, values = values_of(metric)
    assert values == stated


def test_the_example_of_chair_has_the_values_of_the_page():
    rows = re.findall(
        r"^\| (.+?) \| (.*?) \| (.*?) \| ([\d.–]+) \| ([\d.]+) \| ([\d.]+) \|$",
        PAGE.read_text(encoding="utf-8").partition("## CHAIR")[2].partition("## Names")[0],
        re.MULTILINE,
    )
    *captions, (_, mentions, absent, *overall) = rows
    assert len(captions) == 3
    texts = [caption for caption, *_ in captions]
    present = {"dog", "couch"} | set(mentions_of("a puppy sleeps on a sofa"))
    counts = chair_counts(texts, [present] * 3)
    named = [mentions_of(caption) for caption in texts]
    assert [", ".join(names) for names in named] == [row[1].strip() for row in captions]
    assert [", ".join(sorted(set(names) - present)) for names in named] == [
        row[2].strip() for row in captions
    ]
    for row, values in zip(captions, chair_values(counts), strict=True):
        shown = ["–" if np.isnan(value) else f"{value:.2f}" for value in values]
        assert shown == list(row[3:])
    assert [int(mentions), int(absent)] == counts.sum(axis=0)[2:4].tolist()
    assert [f"{value:.2f}" for value in chair_values(counts.sum(axis=0))] == overall


@pytest.mark.slow
@pytest.mark.spice
@pytest.mark.usefixtures("models")
def test_examples_of_spice_and_cider_have_the_values_of_the_page(monkeypatch, users_cache):
    for metric, options in (("SPICE", {}), ("CIDEr", {"idf": "coco"})):
        stated, values = values_of(metric, **options)
        assert values == stated
        monkeypatch.setenv("A2_CACHE", str(users_cache))  # COCO was counted there or is now


def test_commands_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frequencies = cider.CorpusFrequencies.count([["a dog"]] * 9)
    monkeypatch.setattr(cider, "coco_frequencies", lambda: frequencies)
    texts = {f"{n:012d}.jpg": text for n, text in enumerate(["A dog.", "two cats", "a man"])}
    coco = [{"id": n, "image_id": n, "caption": text} for n, text in enumerate(texts.values())]
    karpathy = [
        {"filename": name, "split": "test", "sentences": [{"raw": text, "tokens": text.split()}]}
        for name, text in texts.items()
    ]
    contents = {
        "captions.json": json.dumps(coco),
        "theirs.json": json.dumps(texts),
        "captions.jsonl": "\n".join(map(json.dumps, coco)),
        "captions.txt": "\n".join(texts.values()),
        "ours.csv": "".join(
            f"{name},{text}\n" for name, text in {"image": "caption", **texts}.items()
        ),
        "captions_val2014.json": json.dumps({"images": coco, "annotations": coco}),
        "dataset_coco.json": json.dumps({"images": karpathy}),
        "flickr.token": "".join(f"{name}#0\t{text}\n" for name, text in texts.items()),
        "references.json": json.dumps(texts),
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    asked = [words for words, complete in commands(PAGE) if complete]
    for words in asked:
        ran = a2(*words)
        assert re.search(r"^METEOR +1\.0000 ", ran.output, re.MULTILINE), ran.output
    assert contents.keys() <= {word for words in asked for word in words}
    assert (tmp_path / "images.csv").read_text().count("\n") == 4
