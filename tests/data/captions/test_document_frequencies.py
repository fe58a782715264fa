import zipfile
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pycocoevalcap.cider.cider_scorer import CiderScorer

from a2cap.data.captions.document_frequencies import DocumentFrequencies, count_document_frequencies
from a2cap.data.captions.vocabulary import Vocabulary
from tests.data.messages import message_of

VOCABULARY = Vocabulary.from_counts({"a": 9, "dog": 8, "cat": 7})
REFERENCES = {"1": ["a dog runs", "a dog"], "2": ["the dog runs"], "3": []}
SENTENCES = st.lists(st.sampled_from(["a", "dog", "cat", "<unk>", "é"]), max_size=7).map(" ".join)


def counts_by_ngram(frequencies, counts):
    return {
        tuple(frequencies.words[number] for number in ngram if number >= 0): count
        for ngram, count in zip(frequencies.ngrams.tolist(), counts.tolist(), strict=True)
    }


@pytest.mark.slow
@example({"1": ["a dog a", "a"], "2": ["dog"], "3": []})
@example({"1": ["", ""], "2": []})  # <eos> alone
@example({"1": [], "2": []})
@given(st.dictionaries(st.text(), st.lists(SENTENCES, max_size=5), min_size=1, max_size=6))
def test_counts_are_those_of_pycocoevalcap(references):
    by_image, by_caption = CiderScorer(), CiderScorer()
    for group in references.values():
        ended = [f"{sentence} <eos>" for sentence in group]
        by_image.cook_append(None, ended)
        for sentence in ended:
            by_caption.cook_append(None, [sentence])
    frequencies = count_document_frequencies(references, VOCABULARY)
    assert frequencies.ngrams.shape == (len(frequencies.counts), 4)
    for scorer, counts, documents in (
        (by_image, frequencies.counts, frequencies.documents),
        (by_caption, frequencies.caption_counts, frequencies.captions),
    ):
        scorer.compute_doc_freq()
        assert counts_by_ngram(frequencies, counts) == scorer.document_frequency
        assert documents == len(scorer.crefs)


def test_the_text_of_a_special_token_is_an_ordinary_word():
    frequencies = count_document_frequencies({"1": ["<unk>"]}, VOCABULARY)
    assert frequencies.words[len(VOCABULARY) :] == ("<unk>",)
    own, end = len(VOCABULARY), 2
    assert frequencies.ngrams.tolist() == [[end, -1, -1, -1], [own, -1, -1, -1], [own, end, -1, -1]]


def test_ngrams_are_sorted_and_padded_with_minus_one():
    table = count_document_frequencies({"1": ["dog a dog"]}, VOCABULARY)
    a, dog = VOCABULARY.encode(["a", "dog"])
    end = 2
    assert table.ngrams.tolist() == [
        [end, -1, -1, -1],
        [a, -1, -1, -1],
        [dog, -1, -1, -1],
        [a, dog, -1, -1],
        [dog, end, -1, -1],
        [dog, a, -1, -1],
        [a, dog, end, -1],
        [dog, a, dog, -1],
        [dog, a, dog, end],
    ]
    integers = {table.ngrams.dtype, table.counts.dtype, table.caption_counts.dtype}
    assert integers == {np.dtype(np.int32)}


def test_counting_no_references_is_rejected():
    assert message_of(count_document_frequencies, {}, VOCABULARY) == (
        "no reference captions to count; check the training split"
    )


def test_saved_frequencies_are_loaded(tmp_path):
    path = tmp_path / "x.npz"
    frequencies = count_document_frequencies(REFERENCES, VOCABULARY)
    assert frequencies.words == (*VOCABULARY.words, "runs", "the")
    frequencies.save(path)
    loaded = DocumentFrequencies.load(path)
    for field in fields(DocumentFrequencies):
        np.testing.assert_array_equal(getattr(loaded, field.name), getattr(frequencies, field.name))


def test_equal_counts_give_equal_bytes_at_any_time(tmp_path):
    for name in ("a.npz", "b.npz"):
        count_document_frequencies(REFERENCES, VOCABULARY).save(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_missing_damaged_and_truncated_files_are_rejected(tmp_path):
    path = tmp_path / "x.npz"
    missing = f'no file {str(path)!r}; run "a2 preprocess" first'
    assert message_of(DocumentFrequencies.load, path) == missing
    count_document_frequencies(REFERENCES, VOCABULARY).save(path)
    for content in (b"", b"PK", b"hello", b"\x93NUMPY", path.read_bytes()[:-30]):
        path.write_bytes(content)
        message = message_of(DocumentFrequencies.load, path)
        assert message.startswith(f"damaged document frequencies {str(path)!r} (")
        assert message.endswith('); run "a2 preprocess" again')


@pytest.mark.parametrize(
    ("ngrams", "counts", "problem"),
    [
        ([[4, -1, -1, -1]], [1, 2], "shapes of n-grams and counts differ"),
        ([[4, -1, -1]], [1], "shapes of n-grams and counts differ"),
        ([[99, -1, -1, -1]], [1], "an n-gram contains an unknown word"),
    ],
)
def test_inconsistent_arrays_are_rejected(tmp_path, ngrams, counts, problem):
    path = tmp_path / "x.npz"
    numbers = np.array(counts, np.int32)
    rows = np.array(ngrams, np.int32)
    DocumentFrequencies(VOCABULARY.words, rows, numbers, 1, numbers, 5).save(path)
    assert message_of(DocumentFrequencies.load, path) == (
        f'damaged document frequencies {str(path)!r} ({problem}); run "a2 preprocess" again'
    )
