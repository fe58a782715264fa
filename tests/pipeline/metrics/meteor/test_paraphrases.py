"""The table of paraphrases gives the same pairs as reading all of it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.pipeline.metrics.meteor import paraphrases
from a2cap.pipeline.metrics.meteor.paraphrases import LONGEST, ParaphraseFile, phrases_of, table_of

SENTENCE = st.lists(st.sampled_from(["a", "a0", "b", "é", "0.5"]), max_size=10)
PHRASE = st.lists(st.sampled_from(["a", "a0", "b", "é", "0.5"]), min_size=1, max_size=3)


@pytest.mark.slow
@given(
    st.dictionaries(PHRASE.map(" ".join), st.lists(PHRASE.map(" ".join), min_size=1, unique=True)),
    st.lists(SENTENCE, max_size=4),
    st.sampled_from([1, 16, 64, 4096]),
)
def test_pairs_equal_those_of_a_search_of_all_rows(table, captions, block):
    rows = [
        (phrase.encode(), target.encode()) for phrase in sorted(table) for target in table[phrase]
    ]
    text = b"".join(b"0.12345\n%b\n%b\n" % row for row in rows)
    wanted = {phrase for words in captions for phrase in phrases_of(words)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paraphrases, "_BLOCK", block)
        file = ParaphraseFile(text)
    every, few = (
        [row for part in file.parts(w) for row in zip(*part, strict=True)] for w in (None, wanted)
    )
    assert every == rows
    assert few == [row for row in rows if wanted.issuperset(row)]
    # a table of the wanted rows and one of all give the same pairs of the same sentences
    for group in (captions, [], [["z"], []]):
        first, second = (
            named_pairs(table_of(parts), group) for parts in (file.parts(), file.parts(wanted))
        )
        assert first == second


def named_pairs(table, sentences):
    """Return the pairs as occurrences of their phrases, in the order of the table."""
    spans = table.occurrences(sentences)
    places = {}
    for phrase, *place in zip(spans.phrase, spans.sentence, spans.start, spans.length, strict=True):
        places.setdefault(phrase, []).append(place)
    _, sources, targets = table.pairs(spans.phrase, spans.phrase)
    return [(places[s], places[t]) for s, t in zip(sources, targets, strict=True)]


@given(SENTENCE)
def test_phrases_are_all_sequences_of_up_to_seven_words(words):
    expected = [
        " ".join(words[start : start + size]).encode()
        for size in range(1, LONGEST + 1)
        for start in range(len(words) - size + 1)
    ]
    assert sorted(phrases_of(words)) == sorted(expected)


@pytest.mark.slow
def test_the_file_is_sorted_and_its_rows_can_be_recognised():
    file = paraphrases.paraphrase_file()
    assert len(file._text) == paraphrases._SIZE
    lines = file._text.split(b"\n")
    phrases, targets = lines[1::3], lines[2::3]
    assert all(phrase <= following for phrase, following in pairwise(phrases))
    assert max(len(phrase.split(b" ")) for phrase in {*phrases, *targets}) == LONGEST
    numbers = {line for line in lines[::3] if paraphrases._ROW.match(line + b"\nx")}
    assert numbers.isdisjoint(phrases) and numbers.isdisjoint(targets)
    assert len(file._first) > 30_000
