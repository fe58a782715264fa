import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from a2.data.errors import InputError
from a2.pipeline import metrics
from a2.pipeline.java import JavaError, find_java
from a2.pipeline.metrics import METRICS, cider, score, tokenize

REFERENCES = {
    "1": ["a man rides a brown horse", "the man is on a horse", "a person riding a horse"],
    "2": ["two dogs play in the snow", "a pair of dogs running through snow"],
    "3": ["a red bus on a street", "the bus is parked", "a bus"],
    "4": ["a plate of food", "food on a table"],
}
CANDIDATES = {
    "1": "a man riding a horse",
    "2": "two dogs in the snow",
    "3": "a cat",
    "4": "",
}
ODD_CAPTIONS = {
    "quotes": ['A "quoted" man (left) can\'t — see…', "m&m's, o'clock; well-lit"],
    "empty": ["", "  ", "."],
    "scripts": ["Éa café 日本 😀", "1 1/2 cups\tof  tea "],
    "last": ["a", ""],
}


@pytest.fixture
def java_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pycocoevalcap's own classes need."""
    monkeypatch.setenv("PATH", f"{find_java().parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_, **__):
        raise JavaError("no java; install it")

    monkeypatch.setattr(metrics, "java_process", refuse)


def as_lists(candidates: dict[str, str]) -> dict[str, list[str]]:
    return {image_id: [caption] for image_id, caption in candidates.items()}


def test_tokens_equal_those_of_pycocoevalcap(java_on_path):
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    annotations = {k: [{"caption": c} for c in v] for k, v in ODD_CAPTIONS.items()}
    assert tokenize(ODD_CAPTIONS) == PTBTokenizer().tokenize(annotations)


def test_tokens_are_lower_case_without_punctuation_and_the_jvm_leaks_no_output(capfd):
    captions = {"1": ["A dog, isn't it?", "Two  cats."], "2": ["One\nline\u2028only\r\n!"]}
    assert tokenize(captions) == {"1": ["a dog is n't it", "two cats"], "2": ["one line only"]}
    assert capfd.readouterr() == ("", "")


def test_pictures_without_captions_keep_their_place_and_need_no_jvm(monkeypatch):
    monkeypatch.setattr(metrics, "run_java", None)
    assert tokenize({"1": [], "2": []}) == {"1": [], "2": []}


def test_a_tokeniser_that_loses_a_line_is_refused(monkeypatch):
    monkeypatch.setattr(metrics, "run_java", lambda *_, **__: "one\n")
    with pytest.raises(JavaError) as caught:
        tokenize({"1": ["one", "two"]})
    assert str(caught.value) == (
        "the tokeniser answered 1 lines for 2 captions; remove control characters from the captions"
    )


def test_a_metric_that_cannot_run_is_reported_and_sinks_no_other(no_java, capfd):
    scores = score(CANDIDATES, REFERENCES)
    assert scores.not_run["METEOR"] == "no java; install it"
    assert list(scores.metrics) == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"]
    assert all(values.keys() == scores.metrics.keys() for values in scores.per_picture.values())
    assert capfd.readouterr().out == ""


def test_every_metric_is_either_measured_or_not_run_with_a_reason(no_java):
    scores = score(CANDIDATES, REFERENCES)
    assert {*scores.metrics, *scores.not_run} == set(METRICS)
    assert scores.not_run["SPICE"] == (
        "this version of a2 does not compute SPICE; score captions.json with pycocoevalcap"
    )


def test_a_candidate_may_be_a_string_or_a_list_of_one(no_java):
    assert score(CANDIDATES, REFERENCES) == score(as_lists(CANDIDATES), REFERENCES)


def test_bleu_rouge_and_cider_equal_those_of_pycocoevalcap(no_java):
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    scores = score(CANDIDATES, REFERENCES)
    bleu, _ = Bleu(4).compute_score(REFERENCES, as_lists(CANDIDATES), verbose=0)
    assert [scores.metrics[f"Bleu_{n}"] for n in (1, 2, 3, 4)] == bleu
    rouge, rouges = Rouge().compute_score(REFERENCES, as_lists(CANDIDATES))
    assert scores.metrics["ROUGE_L"] == rouge
    assert [values["ROUGE_L"] for values in scores.per_picture.values()] == list(rouges)
    assert scores.metrics["CIDEr"] == Cider().compute_score(REFERENCES, as_lists(CANDIDATES))[0]


def test_cider_alone_is_the_cider_of_score(no_java):
    assert cider(CANDIDATES, REFERENCES) == score(CANDIDATES, REFERENCES).metrics["CIDEr"]


def test_captions_equal_to_the_references_are_the_best(no_java):
    first = {image_id: captions[0] for image_id, captions in REFERENCES.items()}
    perfect = score(first, as_lists(first))
    assert perfect.metrics["CIDEr"] == pytest.approx(10, abs=4)
    assert perfect.metrics["ROUGE_L"] == 1
    assert perfect.metrics["Bleu_1"] == pytest.approx(1)
    assert perfect.metrics["CIDEr"] > cider(CANDIDATES, REFERENCES)


def test_scores_do_not_depend_on_the_order_of_pictures(no_java):
    reverse = dict(reversed(CANDIDATES.items()))
    there, back = score(CANDIDATES, REFERENCES), score(reverse, REFERENCES)
    assert there.metrics == pytest.approx(back.metrics)
    assert there.per_picture == back.per_picture


@pytest.mark.parametrize(
    ("candidates", "references", "message"),
    [
        ({}, {}, "nothing to score: 0 captions; caption at least one picture"),
        (
            {"1": "a"},
            {"1": ["a"], "2": ["b"], "3": ["c"]},
            "captions and references are of different pictures: '2' and 1 more are only in one; "
            "hand in both for the same pictures",
        ),
        (
            {"1": ["a", "b"]},
            {"1": ["a"]},
            "image '1' has 2 captions and 1 references; score one against at least one",
        ),
        (
            {"1": "a"},
            {"1": []},
            "image '1' has 1 captions and 0 references; score one against at least one",
        ),
    ],
)
def test_what_cannot_be_paired_is_refused(candidates, references, message):
    with pytest.raises(InputError) as caught:
        score(candidates, references)
    assert str(caught.value) == message


def test_a_missing_pycocoevalcap_is_named(monkeypatch):
    monkeypatch.setattr(metrics, "find_spec", lambda _: None)
    with pytest.raises(JavaError) as caught:
        tokenize({"1": ["a"]})
    assert str(caught.value) == (
        'no metrics: pycocoevalcap is missing; run "pip install pycocoevalcap"'
    )


def test_what_meteor_cannot_score_is_named_and_line_breaks_do_not_reach_it(monkeypatch):
    class Refusing:
        def send(self, line):
            assert line == "SCORE ||| c d ||| a b"

        def receive(self):
            return "Error: no reference"

    monkeypatch.setattr(metrics, "java_process", lambda *_, **__: nullcontext(Refusing()))
    scores = score({"7": "a\nb|||"}, {"7": ["c\rd"]})
    assert scores.not_run["METEOR"] == (
        "METEOR cannot score image '7': 'Error: no reference'; check its caption and references"
    )


@pytest.mark.slow
def test_meteor_equals_that_of_pycocoevalcap(java_on_path, capfd):
    from pycocoevalcap.meteor.meteor import Meteor

    scores = score(CANDIDATES, REFERENCES)
    assert capfd.readouterr() == ("", "")
    peer = Meteor()
    overall, values = peer.compute_score(REFERENCES, as_lists(CANDIDATES))
    for stream in (peer.meteor_p.stdout, peer.meteor_p.stderr):
        stream.close()
    assert scores.metrics["METEOR"] == overall
    assert [scores.per_picture[i]["METEOR"] for i in CANDIDATES] == values


@pytest.mark.slow
def test_nothing_is_written_beside_the_jars_whose_folder_may_have_a_space(monkeypatch, tmp_path):
    installed = metrics._pycocoevalcap()
    folder = tmp_path / "site packages" / "pycocoevalcap"
    for name in ("meteor", "tokenizer"):
        shutil.copytree(installed / name, folder / name, copy_function=link)
    monkeypatch.setattr(metrics, "_pycocoevalcap", lambda: folder)
    before = sorted(folder.rglob("*"))
    scores = score(tokenize({"1": ["A dog."]}), tokenize({"1": ["A dog runs."]}))
    assert scores.metrics["METEOR"] > 0.2
    assert sorted(folder.rglob("*")) == before


def link(source: str, target: str) -> None:
    Path(target).symlink_to(source)
