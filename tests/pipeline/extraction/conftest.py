"""Extractions of generated scenes with small random weights."""

import shutil

import pytest

from a2cap.data.features.store import FeatureStore
from a2cap.extract.extract_config import ExtractConfig
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input, Inputs, file_state
from a2cap.pipeline.engine.shard_stripe import Stripe
from a2cap.pipeline.extraction.extract_images import extract_images, extract_stripe
from a2cap.pipeline.extraction.images import ExtractionInputs, ImageFiles
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

GIVEN = ExtractConfig(
    weights="w", boxes="given", min_side=96, max_side=96, roi_size=7, precision="exact"
)
DETECT = GIVEN.model_copy(
    update={"boxes": "detect", "min_regions": 4, "max_regions": 8, "proposals": 20}
)
IDS = [f"{number:012d}" for number in range(1, 21)]


class Run:
    """An extraction into one directory, which can be repeated."""

    def __init__(self, directory, weights, images, boxes, config=None, **runtime):
        self.directory = directory
        config = config or (DETECT if boxes is None else GIVEN)
        runtime = RuntimeConfig(device="cpu", threads=1, **runtime)
        if isinstance(images, dict):
            images = ImageFiles(images)
        self.inputs = ExtractionInputs(config, weights, images, boxes, runtime)
        paths = getattr(images, "paths", {}).values()
        promised = {path: ("", file_state(path)) for path in paths if path and path.exists()}
        self.promised = Inputs({"images": Input(directory, "", promised)})

    @property
    def path(self):
        return self.directory / "features.lmdb"

    @property
    def store(self):
        return FeatureStore(self.path)

    def extract(self):
        self.directory.mkdir(exist_ok=True)
        events = EventLog(self.directory)
        return extract_images(self.inputs, self.directory, self.promised, events)

    def fill(self, number, count):
        """Fill a stripe; return how many shards are missing."""
        self.directory.mkdir(exist_ok=True)
        events, stripe = EventLog(self.directory), Stripe(number, count)
        return extract_stripe(self.inputs, stripe, self.directory, self.promised, events)


@pytest.fixture
def weights(experiment):
    return experiment.weights


@pytest.fixture
def scenes(experiment, tmp_path):
    """A copy of the generated scenes: twenty images by id, and the file of their boxes."""
    folder = shutil.copytree(experiment.scenes, tmp_path / "scenes")
    images = {image_id: folder / "images" / f"{image_id}.jpg" for image_id in IDS}
    return images, folder / "instances.json"


@pytest.fixture
def new(tmp_path, weights, scenes):
    """Prepare an extraction into a new directory, of given boxes or of detected regions."""

    def make(name="run.partial", *, images=None, given=True, **options):
        all_images, boxes = scenes
        arguments = {"weights": weights, "boxes": boxes if given else None, **options}
        return Run(tmp_path / name, images=all_images if images is None else images, **arguments)

    return make


@pytest.fixture
def small_shards(monkeypatch):
    """Make shards of eight images: three of the twenty."""
    monkeypatch.setattr("a2cap.pipeline.extraction.images.SHARD_SIZE", 8)
