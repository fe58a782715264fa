"""All metrics of one set of captions: values, intervals, and reasons for missing ones."""

import math

import numpy as np
import pytest

from a2cap.pipeline.metrics import cider as cider_module
from a2cap.pipeline.metrics.all_metrics import corpus_score, score
from a2cap.pipeline.metrics.cider import CorpusFrequencies
from a2cap.pipeline.metrics.metric_table import DEFAULTS, NAMEABLE
from tests.data.messages import message_of
from tests.pipeline.metrics import captions

CANDIDATES = {str(number): caption for number, caption in enumerate(captions.CANDIDATES[:4], 1)}
REFERENCES = {str(number): group for number, group in enumerate(captions.REFERENCES[:4], 1)}


pytestmark = pytest.mark.usefixtures("without_meteor")


def as_lists(candidates: dict[str, str]) -> dict[str, list[str]]:
    return {image_id: [caption] for image_id, caption in candidates.items()}


def test_spice_that_was_not_requested_has_a_reason(capfd):
    scores = score(CANDIDATES, REFERENCES)
    assert scores.not_run == {"SPICE": "it was not asked for; set evaluate.spice to true"}
    assert list(scores.metrics) == [
        name for name in DEFAULTS if name not in ("METEOR", "SPICE", "SPIDEr")
    ]
    assert all(values.keys() == scores.metrics.keys() for values in scores.per_image.values())
    assert capfd.readouterr().out == ""


def test_a_candidate_may_be_a_string_or_a_list_of_one():
    assert score(CANDIDATES, REFERENCES) == score(as_lists(CANDIDATES), REFERENCES)


def test_a_metric_alone_equals_that_of_score():
    metrics = score(CANDIDATES, REFERENCES).metrics
    for name in ("CIDEr", "Bleu_4"):
        assert corpus_score(name, CANDIDATES, REFERENCES) == metrics[name]


def test_captions_equal_to_the_references_score_highest():
    first = {image_id: captions[0] for image_id, captions in REFERENCES.items()}
    perfect = score(first, as_lists(first))
    assert perfect.metrics["CIDEr"] == pytest.approx(10, abs=4)
    assert perfect.metrics["ROUGE_L"] == 1
    assert perfect.metrics["Bleu_1"] == pytest.approx(1)
    assert perfect.metrics["CIDEr"] > score(CANDIDATES, REFERENCES).metrics["CIDEr"]


def test_scores_do_not_depend_on_the_order_of_images():
    reverse = dict(reversed(CANDIDATES.items()))
    there, back = score(CANDIDATES, REFERENCES), score(reverse, REFERENCES)
    assert there.metrics == pytest.approx(back.metrics)
    for image_id, values in there.per_image.items():
        assert values == pytest.approx(back.per_image[image_id])


@pytest.mark.parametrize(
    ("candidates", "references", "message"),
    [
        ({}, {}, "nothing to score: 0 captions; caption at least one image"),
        (
            {"1": "a"},
            {"1": ["a"], "2": ["b"], "3": ["c"], "4": ["d"]},
            "captions and references are of different images: only captions have none, only "
            "references have 2, 3 and 1 more; give both for the same images",
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
def test_unmatched_captions_and_references_are_rejected(candidates, references, message):
    assert message_of(score, candidates, references) == message


def test_one_image_has_no_cider_and_no_intervals():
    scores = score({"1": "a dog"}, {"1": ["a dog", "dogs"]})
    assert "CIDEr" not in scores.metrics
    assert scores.not_run["CIDEr"] == (
        "its document frequencies are those of the scored references, and an n-gram of the only "
        "image has no weight; score more images, or weigh by idf coco"
    )
    assert (scores.confidence, scores.warnings) == ({}, [])


def test_frequencies_of_coco_give_few_images_a_cider(monkeypatch):
    frequencies = CorpusFrequencies.count([["a dog"]] * 9 + [["a red cat"]])
    monkeypatch.setattr(cider_module, "coco_frequencies", lambda: frequencies)
    scores = score({"1": "a red cat"}, {"1": ["a red cat"]}, idf="coco")
    assert scores.metrics["CIDEr"] == pytest.approx(7.5)  # three of four orders match
    assert (scores.not_run.keys(), scores.warnings) == ({"SPICE"}, [])
    words = score({"1": "a cat"}, {"1": ["a cat"]}, idf="coco", tokenizer="unicode")
    assert words.not_run["CIDEr"] == (
        "its document frequencies, those of COCO's captions, are of PTB tokens"
    )
    assert message_of(score, CANDIDATES, REFERENCES, idf="corpus") == (
        "unknown idf: 'corpus'; use one of references, coco"
    )


def test_few_images_are_a_warning_in_every_form():
    scores = score(CANDIDATES, REFERENCES)
    [warning] = scores.warnings
    assert warning.startswith("CIDEr weighs n-grams by their frequency in the references of 4 ")
    assert str(scores).splitlines()[-1] == f"warning: {warning}"
    assert warning in scores._repr_html_()
    many = {str(n): "a dog" for n in range(50)}
    assert score(many, as_lists(many)).warnings == []


def test_only_the_chosen_metrics_are_computed():
    scores = score(CANDIDATES, REFERENCES, metrics=["CIDEr", "Bleu_4"])
    assert list(scores.metrics) == ["Bleu_4", "CIDEr"]
    assert scores.not_run == {}
    assert message_of(score, CANDIDATES, REFERENCES, metrics=["BLEU"]) == (
        f"unknown metric: 'BLEU'; use some of {', '.join(NAMEABLE)}"
    )


def test_bleu_without_brevity_penalty_is_a_row_where_it_differs():
    short = {name: " ".join(text.split()[:3]) for name, text in CANDIDATES.items()}
    scores = score(short, REFERENCES)
    with_penalty = [scores.metrics[f"Bleu_{n}"] for n in range(1, 5)]
    sums = np.sum(list(scores.statistics["BLEU"].values()), axis=0)
    penalty = math.exp(1 - sums[1] / sums[0])  # Papineni et al. 2002, section 2.3
    assert penalty < 1
    assert [penalty * v for v in scores.unpenalised_bleu] == pytest.approx(with_penalty)
    shown = " ".join(f"{value:.4f}" for value in scores.unpenalised_bleu)
    assert f"\nBLEU-1 to 4 without brevity penalty: {shown}\n" in f"{scores}\n"
    long = {name: " ".join([text] * 9) for name, text in CANDIDATES.items()}
    assert "brevity penalty" not in str(score(long, REFERENCES))
