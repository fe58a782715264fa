"""PTB tokens equal pycocoevalcap's, and those of references are cached."""

import pytest

from a2cap.pipeline.metrics import tokenization
from a2cap.pipeline.metrics.java import JavaError
from a2cap.pipeline.metrics.tokenization import tokenize, tokenize_references
from tests.data.messages import message_of

ODD_CAPTIONS = {
    "quotes": ['A "quoted" man (left) can\'t — see…', "m&m's, o'clock; well-lit"],
    "empty": ["", "  ", "."],
    "scripts": ["Éa café 日本 😀", "1 1/2 cups\tof  tea "],
    "last": ["a", ""],
}


def test_tokens_equal_those_of_pycocoevalcap(java_on_path):
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    annotations = {k: [{"caption": c} for c in v] for k, v in ODD_CAPTIONS.items()}
    assert tokenize(ODD_CAPTIONS) == PTBTokenizer().tokenize(annotations)


def test_tokens_are_lower_case_without_punctuation_and_the_jvm_leaks_no_output(capfd):
    captions = {"1": ["A dog, isn't it?", "Two  cats."], "2": ["One\nline\u2028only\r\n!"]}
    assert tokenize(captions) == {"1": ["a dog is n't it", "two cats"], "2": ["one line only"]}
    assert capfd.readouterr() == ("", "")


def test_images_without_captions_need_no_jvm(monkeypatch):
    monkeypatch.setattr(tokenization, "run_java", None)
    assert tokenize({"1": [], "2": []}) == {"1": [], "2": []}


def test_a_lost_line_of_the_tokeniser_is_reported(monkeypatch):
    monkeypatch.setattr(tokenization, "run_java", lambda *_, **__: "one\n")
    assert message_of(tokenize, {"1": ["one", "two"]}, error=JavaError) == (
        "the tokeniser returned 1 lines for 2 captions; remove control characters from the captions"
    )


def test_a_missing_pycocoevalcap_is_reported(monkeypatch):
    monkeypatch.setattr(tokenization, "find_spec", lambda _: None)
    assert message_of(tokenize, {"1": ["a"]}, error=JavaError) == (
        'pycocoevalcap is not installed; run "pip install pycocoevalcap"'
    )


@pytest.mark.slow
def test_tokens_of_references_are_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("A2_CACHE", str(tmp_path))
    captions = {"b": ["A dog.", "Dogs!"], "a": []}
    assert tokenize_references(captions) == tokenize(captions)
    with monkeypatch.context() as without_java:
        without_java.setattr(tokenization, "run_java", None)
        again = tokenize_references(captions)
    assert list(again.items()) == [("b", ["a dog", "dogs"]), ("a", [])]
    assert tokenize_references({**captions, "b": ["A cat."]})["b"] == ["a cat"]


@pytest.mark.slow
def test_damaged_tokens_are_recomputed(monkeypatch, tmp_path):
    monkeypatch.setenv("A2_CACHE", str(tmp_path))
    tokenize_references({"1": ["A dog."]})
    [entry] = (tmp_path / "tokens").iterdir()
    whole = entry.read_bytes()
    for damaged in (whole[:-3], b"", whole.replace(b"dog", b"cat")):
        entry.write_bytes(damaged)
        assert tokenize_references({"1": ["A dog."]}) == {"1": ["a dog"]}
        assert entry.read_bytes() == whole
