"""Stage extract: images to region features in a store of shards, or features from elsewhere."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from a2cap.data.data_config import DataConfig
from a2cap.data.errors import ConfigError
from a2cap.data.files.paths import require_file
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.extract.extract_config import OWN_ENCODER, ExtractConfig
from a2cap.extract.extractor_record import CODE_VERSION as RECORDED_VERSION
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.pipeline.engine.artifact_names import (
    ENCODER,
    EXTRACT,
    EXTRACTOR,
    FEATURES,
    TRAIN_ENCODER,
    WEIGHTS,
)
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input, Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.engine.shard_stripe import Stripe
from a2cap.pipeline.extraction.images import SHARD_SIZE, ExtractionInputs, given_boxes
from a2cap.pipeline.extraction.imported import OWN_IDS
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.stages.checks import Check, known
from a2cap.pipeline.stages.input_files import ExperimentFiles
from a2cap.pipeline.stages.stage import OutcomeOf, Stage
from a2cap.pipeline.weights.detectors import settings_of_weights, weights_file

if TYPE_CHECKING:
    from a2cap.pipeline.stages.plan import Plan


@dataclass(frozen=True)
class Extract(Stage):
    """Extraction of region features."""

    extract: ExtractConfig
    data: DataConfig
    runtime: RuntimeConfig
    files: ExperimentFiles

    name = EXTRACT
    version = 6 + RECORDED_VERSION
    always = ("images",)

    @cached_property
    def _computed(self) -> ExtractConfig:
        """The section with the precision that `auto` is on this processor."""
        precision = self.extract.precision_in_key
        if precision == "auto":
            # imports torch
            from a2cap.pipeline.runtime.training_precision import extraction_precision

            precision = extraction_precision(self.extract, self.runtime)
        return self.extract.model_copy(update={"precision": precision})

    def prepare(self, result: OutcomeOf, folder: Path) -> PreparedStage:
        """Return the stage with images, weights and given boxes, which processes can share."""
        files, weights = self.files, self.extract.weights
        if weights == OWN_ENCODER:
            path = result(TRAIN_ENCODER).directory / ENCODER
        else:
            path = weights_file(self.extract)
        inputs = {"images": files.extracted(), "weights": files.file(path, "extract.weights")}
        if self.extract.boxes == "given":
            inputs["instances"] = files.file(self.data.instances, "data.instances")
        # the digest of the weights is among the inputs, in place of their path
        fields = {"extract": self._computed.model_dump(mode="json", exclude={"weights"})}
        outputs = (FEATURES, EXTRACTOR, WEIGHTS)
        work, share = self.work, self._share
        return PreparedStage(self.name, self.version, fields, inputs, outputs, work, share)

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Check images, their splits, weights, boxes, device, memory and disk."""
        return {
            "images": plan.images,
            "splits": plan.shared_files,
            "weights": lambda: self._weights(plan),
            "boxes": lambda: self._boxes(plan),
            "device": plan.device,
            "memory": plan.detector_memory,
            "disk": lambda: self._disk(plan),
        }

    def _share(self, stripe: Stripe, folder: Path, inputs: Inputs, events: EventLog) -> int:
        from a2cap.pipeline.extraction.extract_images import extract_stripe

        return extract_stripe(self._inputs(inputs), stripe, folder, inputs, events)

    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Extract the shards that are missing, here or on a Ray cluster, and seal the store."""
        from a2cap.pipeline.extraction.extract_images import extract_images

        return extract_images(self._inputs(inputs), folder, inputs, events)

    def remarks(self, result: Path) -> list[str]:
        """Return what makes features extracted now differ by rounding; of a part, what is done."""
        if result.suffix == ".partial":
            done = len(list((result / FEATURES).glob("[0-9]*")))
            return [f"finished shards of {SHARD_SIZE:,} images: {done:,}"]
        threads = self.runtime.threads
        changed = ExtractorRecord.read(result / EXTRACTOR).changed_libraries(threads=threads)
        return [f"{', '.join(changed)}: only rounding would differ"] if changed else []

    def _inputs(self, inputs: Mapping[str, Input]) -> ExtractionInputs:
        images = self.files.listed(inputs["images"])
        boxes = inputs["instances"].path if "instances" in inputs else None
        return ExtractionInputs(self._computed, inputs["weights"].path, images, boxes, self.runtime)

    def _weights(self, plan: "Plan") -> str:
        """Check that detector weights are named, readable, and not contradicted by the settings."""
        width = f"feature width {plan.feature_width():,}"
        if self.extract.weights == OWN_ENCODER:
            return f"of the encoder that the experiment trains, {width}"
        path = weights_file(self.extract)
        if conflict := self.extract.conflict(settings_of_weights(self.extract.weights)):
            raise ConfigError(conflict)
        return f"{plan.grid_weights(path) if self.extract.pools_map else path}, {width}"

    def _boxes(self, plan: "Plan") -> str:
        """Check that every image has boxes, if they are given."""
        boxes = self.extract.boxes
        return f"{self._given_regions(plan):,} given" if boxes == "given" else boxes

    def _given_regions(self, plan: "Plan") -> int:
        path = require_file(self.data.instances, "data.instances")
        images = known(lambda: plan.files.images)
        boxes = given_boxes(path, images, optional=self.extract.pools_map) or {}
        return sum(max(1, len(boxes[name])) for name, file in images.items() if file is not None)

    def _disk(self, plan: "Plan") -> str:
        width = known(plan.feature_width)
        if self.extract.boxes == "given":
            count = known(lambda: self._given_regions(plan))
        else:
            images = known(lambda: plan.files.images).values()
            # detection decides how many, image by image
            count = self.extract.region_counts[0] * sum(file is not None for file in images)
        return plan.disk(
            self.name, count * width * np.dtype(self.extract.dtype).itemsize, "features"
        )


@dataclass(frozen=True)
class ImportFeatures(Stage):
    """Stage extract with `data.features`: features of another program."""

    data: DataConfig
    files: ExperimentFiles

    name = EXTRACT
    version = 3

    def prepare(self, result: OutcomeOf, folder: Path) -> PreparedStage:
        """Return the stage with the features, ids of the images that need some, and image sizes."""
        imported, hashes = self.files.imported, self.files.hashes
        names = "\n".join(sorted(imported.image_ids))
        own_ids = imported.identities.own_ids
        inputs = {
            "features": hashes.images(imported.path, imported.files()),
            # images whose features are missing are rejected
            "images": Input(imported.path, hashlib.sha256(names.encode()).hexdigest()),
        }
        if imported.sizes is not None:
            inputs["sizes"] = hashes.images(imported.sizes, imported.size_files())
        fields: dict[str, object] = {"features": {"dtype": imported.config.dtype}}
        if own_ids:  # by which names in the file are read
            linked = json.dumps([self.data.ids, *sorted(own_ids.items())])
            fields[OWN_IDS] = hashlib.sha256(linked.encode()).hexdigest()
        outputs = (FEATURES, EXTRACTOR)
        return PreparedStage(self.name, self.version, fields, inputs, outputs, self.work)

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Check that the features can be read."""
        return {"features": self._features}

    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Import the features."""
        from a2cap.pipeline.extraction.import_features import import_features

        images = {} if self.data.images is None else self.files.images
        return import_features(self.files.imported, folder, inputs, events, images)

    def _features(self) -> str:
        imported = self.files.imported
        return f"{imported.path}, feature width {imported.feature_width():,}"
