"""Truth of captions as a metric: shares over images, CHAIR, and what has no value."""

import numpy as np
import pytest

from a2cap.data.scenes.objects import SceneObject
from a2cap.data.scenes.truth import judge_captions
from a2cap.pipeline.metrics.all_metrics import score
from a2cap.pipeline.metrics.bootstrap import resample
from a2cap.pipeline.metrics.scene_truth import (
    CHAIR,
    TRUTH,
    scene_chair_counts,
    truth_counts,
    truth_values,
)
from tests.data.messages import message_of

BALL = SceneObject("ball", "red", "small", "plain", (10, 10, 30, 30))
CUP = SceneObject("cup", "blue", "large", "striped", (60, 10, 110, 60))
SCENES = {"1": [BALL], "2": [BALL, CUP], "3": [CUP], "4": [CUP]}
CAPTIONS = {
    "1": "there is a red ball",
    "2": "a red ball left of a green cup",
    "3": "a picture of a ball",
    "4": "two red red",
}
EXPECTED = {
    "truth": 1 / 4,
    "category truth": 3 / 4,
    "colour truth": 2 / 3,
    "count truth": 3 / 4,
    "relation truth": 1.0,
    "CHAIR-i": 1 / 4,
    "CHAIR-s": 1 / 4,
}


@pytest.fixture
def scores(without_meteor):
    references = {image_id: ["a red ball"] for image_id in CAPTIONS}
    return score(CAPTIONS, references, judged=judge_captions(CAPTIONS, SCENES))


def test_truth_is_a_share_of_captions_and_of_statements(scores):
    truth = {name: value for name, value in scores.metrics.items() if name in (*TRUTH, *CHAIR)}
    # the captions have no sizes and textures, and compare nothing
    assert truth == pytest.approx(EXPECTED)
    low, high = scores.confidence["truth"]
    assert 0 <= low <= 1 / 4 <= high <= 1
    assert scores.per_image["1"]["truth"] == 1
    assert scores.per_image["2"]["colour truth"] == 1 / 2
    assert "colour truth" not in scores.per_image["3"]


def test_values_over_a_resample_are_those_of_its_images():
    counts = truth_counts(judge_captions(CAPTIONS, SCENES).values())
    some = truth_values(counts[[0, 0, 1]].sum(axis=0))
    assert some[TRUTH.index("truth")] == pytest.approx(2 / 3)
    assert some[TRUTH.index("colour truth")] == pytest.approx(3 / 4)
    assert np.isnan(some[TRUTH.index("size truth")])
    chair = scene_chair_counts(judge_captions(CAPTIONS, SCENES).values())
    assert resample({"CHAIR": chair})["CHAIR-s"].mean() == pytest.approx(1 / 4, abs=0.02)


def test_captions_of_unknown_scenes_are_rejected():
    assert message_of(judge_captions, CAPTIONS, {"1": [BALL]}) == (
        "truth of 3 captions is unknown: data.scenes has no image '2'; "
        "name instances.json of the same scenes"
    )
