"""Scores of captions in the forms that Python programs hold."""

from pathlib import Path

import pytest

import a2cap
from tests.data.messages import message_of, written

TEXTS = ["a red dog runs", "two dogs"]
GROUPS = [["A red dog runs.", "The dog is running."], ["Two cats sleep.", "Cats."]]
BLEU = ["Bleu_1"]
RESULTS = [{"image_id": 49, "caption": TEXTS[0]}, {"image_id": 5, "caption": TEXTS[1]}]


@pytest.mark.parametrize(
    ("captions", "references", "ids"),
    [
        (TEXTS, GROUPS, ["0", "1"]),
        (iter(TEXTS), iter(GROUPS), ["0", "1"]),
        (dict(zip((49, 5), TEXTS, strict=True)), dict(zip((49, 5), GROUPS, strict=True)), [49, 5]),
        (RESULTS, dict(zip(("49", "5"), GROUPS, strict=True)), [49, 5]),
        ({49: [TEXTS[0]], 5: [TEXTS[1]]}, dict(zip((49, 5), GROUPS, strict=True)), [49, 5]),
        (
            RESULTS,
            [
                {"image_id": n, "caption": text}
                for n, group in zip((49, 5), GROUPS, strict=True)
                for text in group
            ],
            [49, 5],
        ),
    ],
)
def test_captions_by_id_in_order_or_as_results_have_equal_scores(captions, references, ids):
    scores = a2cap.score(captions, references, metrics=BLEU)
    assert scores.metrics["Bleu_1"] == pytest.approx(5 / 6)
    assert list(scores.per_image) == ids


def test_files_of_any_form_and_a_single_caption_are_scored(tmp_path):
    captions = written(tmp_path, RESULTS, "res.json")
    references = written(tmp_path, {"49": GROUPS[0], "5": GROUPS[1]}, "ref.json")
    for kind in (str, Path):
        scores = a2cap.score(kind(captions), kind(references), metrics=BLEU)
        assert scores.metrics["Bleu_1"] == pytest.approx(5 / 6)
        assert list(scores.per_image) == [49, 5]
    for references in ("A red dog.", ["A red dog.", "Dogs"]):
        scores = a2cap.score("a red dog", references, metrics=BLEU)
        assert scores.metrics["Bleu_1"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        (
            [{"image_id": 1}],
            GROUPS,
            "item 0 of captions: no field of the caption among 'image_id'; name it as "
            "data.fields.caption, of a2 score as --caption-column; fix or remove it",
        ),
        ({1: ["a", "b"]}, {1: ["c"]}, "caption of image 1 is not a text: ['a', 'b']; give a text"),
        (
            ["a", "b"],
            [["a"]],
            "captions and references differ in number: 2 and 1; "
            "give one list of references per caption",
        ),
        (
            {"1": "a"},
            [["a"]],
            "captions and references are of different kinds: a mapping and a sequence; "
            "give two mappings by image id, or two sequences",
        ),
        (
            ["a dog"],
            ["a dog"],
            "references of image 0 are not a list of texts: 'a dog'; "
            "give a list of one or more texts per caption",
        ),
        (
            {"1": "a dog"},
            {"1": None},
            "references of image '1' are not a list of texts: None; "
            "give a list of one or more texts per caption",
        ),
        ([None], [["a"]], "caption of image '0' is not a text: None; give a text"),
    ],
)
def test_other_forms_and_numbers_of_captions_are_rejected(captions, references, message):
    assert message_of(a2cap.score, captions, references, metrics=BLEU) == message
