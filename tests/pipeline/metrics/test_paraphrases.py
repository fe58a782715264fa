"""Subset of the paraphrase table for captions, and its cache."""

import gzip

import pytest

from a2cap.pipeline.metrics import paraphrases
from a2cap.pipeline.metrics.paraphrases import paraphrases_for, runs_of, usable_pairs

PAIRS = [
    (".1", "a dog", "the dog"),
    (".2", "a dog", "one hound"),
    (".3", "dog a", "the dog"),
    (".4", "'s dog", "the dog"),
    (".5", "...", "the"),
    (".6", "the dog", "a dog"),
    (".7", "dog", "e-mail"),
]


@pytest.fixture
def table(tmp_path, monkeypatch):
    folder = tmp_path / "pycocoevalcap"
    path = folder / "meteor" / "data" / "paraphrase-en.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for p in PAIRS for line in p).encode()))
    monkeypatch.setattr(paraphrases, "pycocoevalcap_folder", lambda: folder)
    monkeypatch.setenv("A2_CACHE", str(tmp_path / "cache"))
    return path


def probabilities(blocks):
    return [float(block.split(b"\n")[0]) for block in blocks]


@pytest.mark.parametrize("block", [1 << 22, 7])
def test_usable_pairs_keep_their_order(table, monkeypatch, block):
    monkeypatch.setattr(paraphrases, "_BLOCK", block)
    runs = runs_of(["A dog", "the DOG 's e-mail"])
    assert probabilities(usable_pairs(table, runs)) == [0.1, 0.5, 0.6, 0.7]
    assert probabilities(usable_pairs(table, runs_of([]))) == []
    assert b"".join(usable_pairs(table, runs)).startswith(b".1\na dog\nthe dog\n")


def test_the_table_is_cached_for_the_references_and_rebuilt_for_new_words(table, monkeypatch):
    first = paraphrases_for(["the dog"], [["a dog"]])
    assert gzip.decompress(first).split(b"\n")[::3] == [b".1", b".5", b".6", b""]
    table.unlink()
    assert paraphrases_for(["dog"], [["a dog"]]) == first
    with pytest.raises(FileNotFoundError):
        paraphrases_for(["a hound"], [["a dog"]])
    with pytest.raises(FileNotFoundError):
        paraphrases_for(["the dog"], [["a dog", "a dog"]])
