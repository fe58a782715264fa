"""Extractions of generated scenes with small random weights."""

import shutil

import pytest

from a2cap.data.features.shard import Shard
from a2cap.data.features.store import FeatureStore
from a2cap.extract.config import ExtractConfig
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.extraction.extract import extract_features
from a2cap.pipeline.extraction.inputs import ExtractionInputs
from a2cap.pipeline.extraction.shards import extract_shard, join_shards
from a2cap.pipeline.runtime.config import RuntimeConfig

GIVEN = ExtractConfig(
    weights="w", boxes="given", min_side=96, max_side=96, roi_size=7, precision="exact"
)
DETECT = GIVEN.model_copy(
    update={"boxes": "detect", "min_regions": 4, "max_regions": 8, "proposals": 20}
)
IDS = [f"{number:012d}" for number in range(1, 41)]


class Run:
    """An extraction into one directory, which can be repeated."""

    def __init__(self, directory, weights, images, boxes, config=None):
        self.directory = directory
        config = config or (DETECT if boxes is None else GIVEN)
        runtime = RuntimeConfig(device="cpu", threads=1)
        self.inputs = ExtractionInputs(config, weights, images, boxes, runtime)

    @property
    def path(self):
        return self.directory / "features.lmdb"

    @property
    def store(self):
        return FeatureStore(self.path)

    def extract(self):
        self.directory.mkdir(exist_ok=True)
        events = EventLog(self.directory)
        return extract_features(self.inputs, directory=self.directory, events=events)

    def folder(self, number, count):
        return self.path / Shard(number, count).folder

    def fill(self, number, count):
        folder = self.folder(number, count)
        folder.mkdir(parents=True, exist_ok=True)
        shard, events = Shard(number, count), EventLog(folder)
        return extract_shard(self.inputs, shard, directory=self.directory, events=events)

    def fill_all(self, count):
        for number in range(count):
            self.fill(number, count)

    def join(self):
        events = EventLog(self.directory)
        return join_shards(self.inputs, directory=self.directory, events=events)


@pytest.fixture
def weights(experiment):
    return experiment.weights


@pytest.fixture
def scenes(experiment, tmp_path):
    """A copy of the generated scenes: forty images by id, and the file of their boxes."""
    folder = shutil.copytree(experiment.scenes, tmp_path / "scenes")
    images = {image_id: folder / "images" / f"{image_id}.jpg" for image_id in IDS}
    return images, folder / "instances.json"


@pytest.fixture
def new(tmp_path, weights, scenes):
    """Prepare an extraction into a new directory, of given boxes or of detected regions."""

    def make(name="run", *, images=None, given=True, **options):
        all_images, boxes = scenes
        arguments = {"weights": weights, "boxes": boxes if given else None, **options}
        return Run(tmp_path / name, images=all_images if images is None else images, **arguments)

    return make
