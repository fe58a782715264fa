"""Tests of the data of training: what is skipped, and what is rejected."""

import shutil
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from a2cap.data.captions.vocabulary import EOS, PAD, Vocabulary
from a2cap.data.errors import InputError, StoreError
from a2cap.data.files.sealed_folder import SkippedItem, read_manifest, write_manifest
from a2cap.data.regions import Regions, cell_boxes
from a2cap.model.captioners.attributes.lstm_a_config import LstmAConfig
from a2cap.model.captioners.gcn_lstm_config import GcnLstmConfig
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.captioners.recurrent.up_down_config import UpDownConfig
from a2cap.model.captioners.spatial_config import SpatialConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.pipeline.training.captioner.cross_entropy import start_from_frequencies
from a2cap.pipeline.training.captioner.training_data import (
    read_training_data,
    require_kind_of_regions,
    unseen_attributes,
)
from tests.data.messages import message_of


def copied(directory, folder):
    return Path(shutil.copytree(directory, folder, symlinks=True))


def test_an_image_without_features_is_rejected_by_its_id(train, tmp_path):
    captions = copied(train.captions, tmp_path / "captions")
    with h5py.File(captions / "captions.h5", "r+") as file:
        index = file["splits"].asstr()[...].tolist().index("val")  # whose batches come last
        file["image_ids"][index] = b"000000999999"
    store = train.features / "features.lmdb"
    without = replace(train, captions=captions)
    assert message_of(without, tmp_path / "model", error=StoreError) == (
        f"no features for 1 images in {str(store)!r}: '000000999999'; run \"a2 extract\" first"
    )
    assert not list((tmp_path / "model").glob("checkpoints/step-*"))


def test_captions_and_vocabulary_that_do_not_match_are_rejected(train, tmp_path):
    captions = copied(train.captions, tmp_path / "captions")
    vocabulary = Vocabulary.load(captions / "vocabulary.json")
    Vocabulary((*vocabulary.words, "zebra"), vocabulary.preset).save(captions / "vocabulary.json")
    assert message_of(replace(train, captions=captions), tmp_path / "model") == (
        f'captions and vocabulary do not match: {str(captions)!r}; run "a2 preprocess --force"'
    )


def test_training_without_validation_images_is_rejected(train, tmp_path):
    data = read_training_data(train.features, train.captions)
    features = copied(train.features, tmp_path / "features")
    skipped = tuple(SkippedItem(name, "unreadable") for name in data.validation)
    before = read_manifest(features)
    write_manifest(features, before.model_copy(update={"skipped": skipped}))
    assert message_of(replace(train, features=features), tmp_path / "model") == (
        "no validation image has features: all were skipped in "
        f"{str(features)!r}; fix their files and extract again"
    )


def test_attributes_that_no_training_caption_contains_are_named(train):
    data = read_training_data(train.features, train.captions)
    words = len(data.vocabulary) - 4
    assert unseen_attributes(TransformerConfig(), data) == []
    assert unseen_attributes(LstmAConfig(attributes=words), data) == []
    more = Vocabulary((*data.vocabulary.words, "zebra"), data.vocabulary.preset)
    data = replace(data, vocabulary=more)
    assert unseen_attributes(LstmAConfig(attributes=words), data) == []
    assert unseen_attributes(LstmAConfig(attributes=words + 1), data) == ["zebra"]


def test_the_output_bias_starts_at_the_log_frequency_of_each_token(train):
    data = read_training_data(train.features, train.captions)
    captioner = make_captioner(
        UpDownConfig(width=8, embedding=4, attention_width=4),
        feature_width=data.store.feature_width,
        vocabulary_size=len(data.vocabulary),
    )
    rows = [row for name in data.training for row in data.captions.captions(name).tolist()]
    counts = Counter(token for row in rows for token in row[: row.index(EOS) + 1])
    assert counts[EOS] == len(rows)
    assert not counts[PAD]
    start_from_frequencies(captioner, data)
    total = counts.total() + len(data.vocabulary)
    shares = captioner.decoder.output.bias.softmax(dim=0).tolist()
    assert shares == pytest.approx([(counts[t] + 1) / total for t in range(len(shares))])


def test_an_output_layer_without_a_bias_cannot_start_from_frequencies(train, tmp_path):
    sizes = ("width=8", "heads=2", "feed_forward=8", "encoder_layers=1", "decoder_layers=1")
    m2 = ("model=m2", *(f"model.{size}" for size in sizes))
    assert message_of(train, tmp_path / "model", *m2, "train.frequency_bias=true") == (
        "train.frequency_bias is true, but the output layer of model.kind=m2 has no bias; set "
        "train.frequency_bias=false"
    )


class OneImage(dict[str, Regions]):
    path = Path("features.lmdb")


GRID = cell_boxes(2, (0, 0, 90, 60))
DETECTED = (GRID + np.array([[7, 0, 0, 0]], np.float32))[:3]
WITH_BOXES = TransformerConfig(box_geometry="linear")


@pytest.mark.parametrize(
    ("model", "boxes", "max_regions", "problem"),
    [
        (
            SpatialConfig(),
            DETECTED,
            None,
            "are not the cells of a grid, whose positions model.kind=spatial needs; extract with "
            "extract.boxes=grid, or choose another model.kind",
        ),
        (
            SpatialConfig(),
            GRID,
            None,
            "have 4 cells per image, model.cells is 196; set model.cells=4",
        ),
        (
            UpDownConfig(),
            GRID,
            3,
            "have 4 cells per image of equal score, and train.max_regions=3 would drop the lower "
            "part of each image; set train.max_regions=null",
        ),
        (
            WITH_BOXES,
            0 * DETECTED,
            None,
            "have no boxes, which model.box_geometry=linear needs; extract features with boxes, or "
            "set model.box_geometry=none",
        ),
        (
            GcnLstmConfig(graph="semantic"),
            DETECTED,
            None,
            "have no relations, which model.graph=semantic needs; add them with a2 convert "
            "--relations FILE, or set model.graph=spatial",
        ),
        (SpatialConfig(cells=4), GRID, 4, None),
        (SpatialConfig(cells=3), 0 * DETECTED, None, None),
        (UpDownConfig(), DETECTED, 2, None),
        (WITH_BOXES, GRID, None, None),
    ],
)
def test_features_of_another_kind_than_a_captioner_needs_are_refused(
    model, boxes, max_regions, problem
):
    ones = np.ones(len(boxes), np.float32)
    features = np.ones((len(boxes), 2), np.float32)
    store = OneImage({"1": Regions(boxes, features, ones, ones.astype(np.int32), None, 90, 60)})
    expected = nullcontext() if problem is None else pytest.raises(InputError)
    with expected as error:
        require_kind_of_regions(model, store, max_regions=max_regions)
    assert problem is None or str(error.value) == f"features of 'features.lmdb' {problem}"
