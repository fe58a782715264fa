"""Tests of the data of training: what is skipped, and what is rejected."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import InputError, StoreError
from a2cap.data.files.sealed_folder import SkippedItem, read_manifest, write_manifest
from a2cap.data.regions import Regions, cell_boxes
from a2cap.model.captioners.recurrent.up_down_config import UpDownConfig
from a2cap.model.captioners.spatial_config import SpatialConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.pipeline.training.captioner import caption_validation
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyOptimizer
from a2cap.pipeline.training.captioner.training_data import (
    read_training_data,
    require_kind_of_regions,
)
from tests.data.messages import message_of


def copied(directory, folder):
    return Path(shutil.copytree(directory, folder, symlinks=True))


def rename_image(captions, index, image_id):
    """Give the image at a position in captions.h5 another id."""
    with h5py.File(captions / "captions.h5", "r+") as file:
        names = file["image_ids"][...]
        names[index] = image_id.encode()
        file["image_ids"][...] = names
        return file["splits"].asstr()[index]


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_image_without_features_is_rejected_by_its_id(train, tmp_path, split):
    captions = copied(train.captions, tmp_path / "captions")
    with h5py.File(captions / "captions.h5") as file:
        index = file["splits"].asstr()[...].tolist().index(split)
    rename_image(captions, index, "000000999999")
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


def skip(features, image_ids):
    skipped = tuple(SkippedItem(name, "unreadable") for name in image_ids)
    before = read_manifest(features)
    write_manifest(features, before.model_copy(update={"skipped": skipped}))


@pytest.mark.slow
def test_images_skipped_by_extraction_are_not_used(train, tmp_path, monkeypatch):
    data = read_training_data(train.features, train.captions)
    left_out = {data.captions.image_ids("train")[0], data.validation[0]}
    features = copied(train.features, tmp_path / "features")
    skip(features, sorted(left_out))
    seen, validated = set(), set()
    update = CrossEntropyOptimizer.step

    def step(self, parts, number):
        seen.update(parts[0].image_ids)
        return update(self, parts, number)

    def score(metric, candidates, references):
        validated.update(candidates)
        return 0.5

    monkeypatch.setattr(CrossEntropyOptimizer, "step", step)
    monkeypatch.setattr(caption_validation, "corpus_score", score)
    replace(train, features=features)(tmp_path / "model", "train.epochs=1")
    assert seen == set(data.captions.image_ids("train")) - left_out
    assert validated == set(data.validation) - left_out


def test_training_without_validation_images_is_rejected(train, tmp_path):
    data = read_training_data(train.features, train.captions)
    features = copied(train.features, tmp_path / "features")
    skip(features, data.validation)
    assert message_of(replace(train, features=features), tmp_path / "model") == (
        "no validation image has features: all were skipped in "
        f"{str(features)!r}; fix their files and extract again"
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
