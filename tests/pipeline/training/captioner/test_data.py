"""Tests of the data of training: what is skipped, and what is rejected."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import InputError, StoreError
from a2cap.data.regions import Regions, cell_boxes
from a2cap.model.config import SpatialConfig, UpDownConfig
from a2cap.pipeline.training.captioner import task
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyOptimizer
from a2cap.pipeline.training.captioner.data import read_training_data, require_cells
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
    listed = [json.dumps({"id": name, "reason": "unreadable"}) for name in image_ids]
    (features / "skipped.jsonl").write_text("".join(f"{line}\n" for line in listed))


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

    def score(candidates, references):
        validated.update(candidates)
        return 0.5

    monkeypatch.setattr(CrossEntropyOptimizer, "step", step)
    monkeypatch.setattr(task, "cider", score)
    replace(train, features=features)(tmp_path / "model", "train.epochs=1")
    assert seen == set(data.captions.image_ids("train")) - left_out
    assert validated == set(data.validation) - left_out


def test_training_without_validation_images_is_rejected(train, tmp_path):
    data = read_training_data(train.features, train.captions)
    features = copied(train.features, tmp_path / "features")
    skip(features, data.validation)
    assert message_of(replace(train, features=features), tmp_path / "model") == (
        "no validation image has features: all are in "
        f"{str(features / 'skipped.jsonl')!r}; fix their files and extract again"
    )


class OneImage(dict[str, Regions]):
    path = Path("features.lmdb")


def test_a_captioner_with_positions_of_cells_refuses_other_features():
    grid = cell_boxes(2, (0, 0, 90, 60))
    moved = grid + np.array([[7, 0, 0, 0]], np.float32)
    cases = (
        (
            moved[:3],
            "are not the cells of a grid, whose positions model.kind=spatial needs; extract with "
            "extract.boxes=grid, or choose another model.kind",
        ),
        (grid, "have 4 cells per image, model.cells is 196; set model.cells=4"),
    )
    for boxes, problem in cases:
        count = len(boxes)
        regions = Regions(boxes, np.ones((count, 2)), np.ones(count), np.ones(count), None, 90, 60)
        store = OneImage({"1": regions})
        with pytest.raises(InputError) as error:
            require_cells(SpatialConfig(), store)
        assert str(error.value) == f"features of 'features.lmdb' {problem}"
        require_cells(UpDownConfig(), store)
    require_cells(SpatialConfig(cells=4), store)
