"""Scores on disk, and reading them back as a baseline."""

import json

import pytest

from a2cap.pipeline.evaluation.metrics_file import read_baseline, write_scores
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.word_groups import score_word_groups
from a2cap.pipeline.report.report import Evaluation
from tests.data.messages import message_of, written


def test_written_scores_are_read_back_as_a_baseline(tmp_path):
    groups = score_word_groups(
        {"1": "a red ball"}, {"1": ["a red ball"]}, {"kinds": {"ball"}, "colours": {"red"}}
    )
    scores = Scores({"CIDEr": 0.5}, {"1": {"CIDEr": 0.5}}, {})
    captions, references = {"1": "A red ball."}, {"1": ["A red ball!"]}
    write_scores(tmp_path, Evaluation("x", captions, references, scores, word_groups=groups))
    found = read_baseline(tmp_path / "metrics.json")
    assert found.metrics == {"CIDEr": 0.5}
    assert found.word_groups == groups.groups
    images = json.loads((tmp_path / "per_image.json").read_text())["images"]
    assert images["1"]["word_groups"]["colours"] == groups.per_image["1"]["colours"]._asdict()


def test_a_baseline_may_have_no_groups_of_words(tmp_path):
    path = written(tmp_path, {"metrics": {"CIDEr": 1}})
    assert read_baseline(path).metrics == {"CIDEr": 1.0}
    assert read_baseline(path).word_groups == {}


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"metrics": []}', '{"metrics": {}, "word_groups": {"kinds": {}}}']
)
def test_a_baseline_without_metrics_is_rejected(tmp_path, content):
    path = written(tmp_path, content)
    assert message_of(read_baseline, path) == (
        f"evaluate.baseline contains no metrics: {str(path)!r}; name a metrics.json"
    )
