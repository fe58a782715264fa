import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2cap.data.captions.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from tests.data.messages import message_of, written

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
WORDS = st.lists(
    st.text(st.characters(categories=["L", "N"]), min_size=1).filter(str.strip),
    min_size=1,
    unique=True,
)


def counted(**counts: int) -> Vocabulary:
    return Vocabulary.from_counts(counts, min_count=1)


@given(WORDS)
def test_decoding_inverts_encoding_for_known_words(words):
    vocabulary = Vocabulary.from_counts(dict.fromkeys(words, 1), min_count=1)
    numbers = vocabulary.encode(words)
    assert min(numbers) > UNK
    assert max(numbers) < len(vocabulary) == len(words) + 4
    assert [vocabulary.word(number) for number in numbers] == words
    assert vocabulary.decode(numbers) == " ".join(words)


@pytest.mark.slow
@settings(max_examples=30)
@given(words=WORDS)
def test_a_saved_vocabulary_is_loaded(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.json"
    vocabulary = Vocabulary.from_counts(dict.fromkeys(words, 9), "m2")
    vocabulary.save(path)
    assert Vocabulary.load(path) == vocabulary
    assert Vocabulary.load(path).digest == vocabulary.digest


def test_special_tokens_have_the_ids_0_to_3():
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert tuple(counted(dog=1).word(number) for number in range(4)) == SPECIALS


def test_words_are_sorted_by_count_then_alphabetically():
    assert counted(dog=1, cat=1, a=7, the=2).words[4:] == ("a", "the", "cat", "dog")


def test_decoding_stops_at_eos_and_omits_pad_and_bos():
    vocabulary = counted(a=2, dog=1)
    assert vocabulary.decode([BOS, PAD, 4, 5, EOS, 4, PAD]) == "a dog"
    assert vocabulary.decode([EOS]) == ""


def test_an_unknown_word_and_the_text_of_a_special_token_are_encoded_as_unk():
    vocabulary = Vocabulary.from_counts(dict.fromkeys([*SPECIALS, "dog"], 9))
    assert vocabulary.words == (*SPECIALS, "dog")
    assert vocabulary.encode([*SPECIALS, "dog", "cat"]) == [UNK] * 4 + [4, UNK]
    assert vocabulary.decode([4, UNK]) == "dog <unk>"


@pytest.mark.parametrize("number", [-1, 5])
def test_an_id_outside_the_vocabulary_is_rejected(number):
    assert message_of(counted(dog=1).word, number) == (
        f"no token {number} in a vocabulary of 5; "
        "use the vocabulary that the captions or the model were made with"
    )


def test_counts_without_a_frequent_word_are_rejected():
    assert message_of(Vocabulary.from_counts, {"a": 3}) == (
        "no word occurs 5 times or more (most frequent: 3); "
        "lower preprocess.min_count or add captions"
    )
    assert "(most frequent: 0)" in message_of(Vocabulary.from_counts, {})


def test_the_digest_covers_words_and_preset():
    digests = {
        counted(a=2, dog=1).digest,
        counted(a=1, dog=2).digest,
        Vocabulary.from_counts({"a": 9, "dog": 8}, "m2").digest,
    }
    assert len(digests) == 3
    assert counted(a=2, dog=1).digest == counted(dog=3, a=5).digest
    # a value of a2: every checkpoint contains a digest, so the format must not change
    assert (
        counted(a=2, dog=1).digest
        == "9c0369390c7dab9a367a55292d57c5884bdd45a425072babec1e664b93a09f8f"
    )


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "not a JSON object"),
        ({"words": [1], "preset": "m2"}, "a word is not a string"),
        ({"words": ["a"], "preset": "m2"}, "the words do not start with <pad> <bos> <eos> <unk>"),
        ({"words": [*SPECIALS, "a", "a"], "preset": "m2"}, "duplicate word"),
        ({"words": [*SPECIALS, "a"], "preset": "x"}, "unknown preset 'x'"),
        ({"words": SPECIALS, "preset": "m2", "tokenizer": 1}, "unknown tokenizer 1"),
        ({"words": [*SPECIALS, "a"]}, "no key 'preset'"),
        ({"words": [*SPECIALS, "a"], "preset": ["m2"]}, "'preset' is not a string"),
    ],
)
def test_a_file_of_another_format_is_rejected(tmp_path, document, problem):
    path = written(tmp_path, document)
    assert message_of(Vocabulary.load, path) == (
        f'not a vocabulary: {str(path)!r} ({problem}); run "a2 preprocess" again'
    )
