"""Votes of captions of the nearest training images, against plain Python and pycocoevalcap."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.captions.vocabulary import EOS, Vocabulary
from a2cap.data.errors import InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import Regions, top_scoring
from a2cap.model.decoding.beam_search import Hypothesis
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.evaluation import neighbours
from a2cap.pipeline.evaluation.evaluate_config import EvaluateConfig
from a2cap.pipeline.evaluation.neighbours import Neighbours, mean_features, nearest_rows
from tests.cider_of_coco import cider_of_coco


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_nearest_rows_are_those_of_a_plain_search(monkeypatch, count):
    monkeypatch.setattr(neighbours, "_BLOCK", 2)
    random = np.random.default_rng(0)
    features = random.normal(size=(5, 6)).astype(np.float32)
    training = random.normal(3, 2, size=(7, 6)).astype(np.float32)
    training[:, 2] = 0.1  # tells nothing, whatever it is elsewhere
    features[:, 2] = 0.1 + 1e-4 * np.arange(5)
    centre, spread = training.astype(float).mean(axis=0), training.astype(float).std(axis=0)
    spread[2] = 1

    def cosine(image, row):
        image, row = (image - centre) / spread, (row - centre) / spread
        return image @ row / np.linalg.norm(image) / np.linalg.norm(row)

    expected = [
        sorted(range(7), key=lambda row: -cosine(image, training[row]))[:count]
        for image in features
    ]
    assert nearest_rows(features, training, count=count).tolist() == expected


def test_an_image_of_the_mean_features_is_near_to_none():
    training = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32)
    nearest = nearest_rows(np.zeros((1, 2), np.float32), training, count=4)
    assert nearest.tolist() == [[0, 1, 2, 3]]


@pytest.fixture
def store(experiment):
    return FeatureStore(experiment.directory("extract") / "features.lmdb")


class Stored(dict[str, Regions]):
    """Regions in memory."""

    feature_width = 8


def test_the_order_of_regions_changes_no_mean(store):
    whole = next(store[image_id] for image_id in store if len(store[image_id]) > 2)
    random = np.random.default_rng(0)
    half = random.normal(size=(len(whole), 8)).astype(np.float16)
    scores = np.linspace(0.9, 0.1, len(whole), dtype=np.float32)
    plain = replace(whole, features=half, scores=scores, relations=None)
    reverse = replace(plain, features=half[::-1], scores=scores[::-1])
    empty = top_scoring(plain, 0)
    for most in (None, 2):
        means = mean_features(Stored(a=plain, b=reverse, c=empty), "abc", 3, most)
        np.testing.assert_array_equal(means[0], means[1])
        np.testing.assert_allclose(means[0], half[:most].astype(float).mean(axis=0), rtol=1e-6)
        assert not means[2].any()


def hypotheses(vocabulary, captions):
    return [Hypothesis((*vocabulary.encode(text.split()), EOS), 0.0, 0.0) for text in captions]


@pytest.fixture
def preprocessed(experiment):
    return experiment.directory("preprocess")


def find(store, preprocessed, image_ids, tmp_path, count=3):
    return Neighbours.find(
        store, preprocessed, image_ids, count=count, max_regions=None, events=EventLog(tmp_path)
    )


class Without(FeatureStore):
    """A store from which some images were left out."""

    left_out = frozenset[str]()

    def __iter__(self):
        return (image_id for image_id in super().__iter__() if image_id not in self.left_out)


@pytest.mark.parametrize("skipped", [0, 2])
def test_votes_are_the_cider_d_with_captions_of_the_nearest_training_images(
    store, preprocessed, tmp_path, skipped
):
    vocabulary = Vocabulary.load(preprocessed / "vocabulary.json")
    captions = CaptionFile(preprocessed / "captions.h5")
    references = load_reference_tokens(preprocessed / "references.json")
    every, images = captions.image_ids("train"), captions.image_ids("test")
    training = every[skipped:]
    partial = Without(store.path)
    partial.left_out = frozenset(every[:skipped])
    vote = find(partial, preprocessed, images, tmp_path)
    means = [mean_features(store, ids, len(ids)) for ids in (images, training)]
    texts = [references[training[0]][0], "a red square", references[images[0]][0], ""]
    documents = [references[image_id] for image_id in every]
    for image_id, rows in zip(images, nearest_rows(*means, count=3), strict=True):
        groups = [references[training[row]] for row in rows]
        expected = [
            np.mean(cider_of_coco([(text, group) for group in groups], documents)) for text in texts
        ]
        votes = vote(image_id, hypotheses(vocabulary, texts))
        assert votes.dtype == torch.float64
        assert votes.tolist() == pytest.approx(16 * np.array(expected), abs=1e-9)


def test_without_a_training_image_the_stage_says_what_to_do(store, preprocessed, tmp_path):
    partial = Without(store.path)
    partial.left_out = frozenset(store)
    with pytest.raises(InputError) as error:
        find(partial, preprocessed, ["1"], tmp_path, count=20)
    assert str(error.value) == (
        f"no training image has features in {str(store.path)!r}, and evaluate.neighbours is 20; "
        "set it to 0, or extract the training images too"
    )


def test_neighbours_need_a_consensus():
    with pytest.raises(ValidationError) as error:
        EvaluateConfig(neighbours=20)
    assert (
        "neighbours is 20, but consensus is false; set consensus to true with a beam_size such as "
        "20, or neighbours to 0"
    ) in str(error.value)
