"""PTB tokens equal those of the jar that pycocoevalcap runs."""

import random
import zipfile

import pytest

from a2cap.data.errors import InputError
from a2cap.pipeline.metrics import pycocoevalcap, tokenization
from a2cap.pipeline.metrics.ptb_lexer import Automaton
from a2cap.pipeline.metrics.tokenization import ptb_tokens, tokenize
from tests.data.messages import message_of

ODD_CAPTIONS = {
    "quotes": ['A "quoted" man (left) can\'t — see…', "m&m's, o'clock; well-lit"],
    "empty": ["", "  ", "."],
    "scripts": ["Éa café 日本 😀", "1 1/2 cups\tof  tea "],
    "abbreviations": ["the U.S. 5 p.m. etc. Mr. K.", "Lower", "Mr. K.", "lower", "on t.v. "],
    "signs": ["http://a.b/c?d=e&f <b>x</b> &amp; :-) £3.50 ½ 7 ⁄ 8 so\xadft 5'10\" \x96 \x80"],
    "words": ["cannot gonna 'tis dogs' 90's x-ray and/or AT&T (555) 123-4567 lemme ΣΊΣ ΑΣ8Ν"],
    "blanks": ["R&B  \xa0www.a.com", "\u3000a\u200bb\ufeff ", "foo@bar.com\u3000 "],
    "last": ["a", ""],
}

PIECES = [word for group in ODD_CAPTIONS.values() for caption in group for word in caption.split()]


def odd_strings(count: int) -> list[str]:
    """Return random sequences of odd words and of characters from many scripts."""
    generator = random.Random(0)
    characters = [*map(chr, [*range(32, 127), *range(160, 592), *range(0x2010, 0x2050)]), "😀"]

    def text() -> str:
        pieces = PIECES if generator.random() < 0.6 else characters
        blank = generator.choice(["", " ", "  "])
        return blank.join(generator.choice(pieces) for _ in range(generator.randint(0, 12)))

    return [tokenization.LINE_BREAKS.sub(" ", text()) for _ in range(count)]


@pytest.mark.parametrize("captions", [ODD_CAPTIONS, {"1": odd_strings(2000)}], ids=["named", "odd"])
def test_tokens_equal_those_of_pycocoevalcap(java_on_path, captions):
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    annotations = {k: [{"caption": c} for c in v] for k, v in captions.items()}
    assert tokenize(captions) == PTBTokenizer().tokenize(annotations)


def test_tokens_are_lower_case_without_punctuation():
    captions = {"1": ["A dog, isn't it?", "Two  cats."], "2": ["One\nline\u2028only\r\n!"], "3": []}
    assert tokenize(captions) == {
        "1": ["a dog is n't it", "two cats"],
        "2": ["one line only"],
        "3": [],
    }


def test_a_known_word_does_not_change_the_tokens_of_a_caption():
    for caption in ("2 1/2 men", "2 men", "on 1/2 a day", "etc. and", "etc. And", "table. "):
        first = ptb_tokens(caption)
        for words in (tokenization._inner, tokenization._last, tokenization._wider):
            words.clear()
        assert ptb_tokens(caption) == first


def test_the_next_caption_decides_if_a_letter_keeps_its_point():
    assert [ptb_tokens("The letter K.", following) for following in ("A dog", "a dog")] == [
        "the letter k",
        "the letter k.",
    ]


def test_memory_for_known_words_is_bounded(monkeypatch):
    tokenization._inner.clear()  # of words of other tests
    monkeypatch.setattr(tokenization, "_MOST_WORDS", 3)
    assert ptb_tokens("one two three four five six.") == "one two three four five six"
    assert len(tokenization._inner) <= 3


def test_a_missing_pycocoevalcap_is_reported(monkeypatch):
    monkeypatch.setattr(pycocoevalcap, "find_spec", lambda _: None)
    assert message_of(pycocoevalcap.metric_file, "any", error=InputError) == (
        'pycocoevalcap is not installed; run "pip install pycocoevalcap"'
    )


def test_a_jar_of_another_version_is_rejected(tmp_path):
    jar = tmp_path / "other.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("edu/stanford/nlp/process/PTBLexer.class", b"other")
    assert message_of(Automaton.read, jar, error=InputError) == (
        f"{str(jar)!r} contains another PTBLexer than CoreNLP 3.4.1; "
        'run "pip install --force-reinstall pycocoevalcap==1.2"'
    )
