"""Images of an evaluation: files, annotated boxes, regions, and the attention to them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from a2cap.data.annotations.instances import Instances
from a2cap.data.captions.attention_file import AttentionFile, CaptionAttention
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import Regions, top_scoring
from a2cap.pipeline.captioning.attention import ground_captions
from a2cap.pipeline.captioning.grounding import Grounding, region_names
from a2cap.pipeline.report.image_card import ImageCard


@dataclass(frozen=True)
class EvaluationImages:
    """Everything known about the images besides their captions.

    max_regions: largest number of regions that the captioner attends to, None for all.
    files: image id -> image, None if it is missing. instances: annotated boxes of some images.
    attention: to the regions at each token, None if it was not computed. layers: image id -> the
    same of each layer, of some images.
    """

    store: FeatureStore
    max_regions: int | None
    files: Mapping[str, Path | None]
    instances: Mapping[str, Instances]
    attention: AttentionFile | None
    layers: Mapping[str, tuple[CaptionAttention, ...]] = field(default_factory=dict)

    def regions(self, image_id: str) -> Regions:
        """Return the regions that the captioner was given."""
        return top_scoring(self.store[image_id], self.max_regions)

    def ground(self, captions: Mapping[str, str]) -> dict[str, Grounding]:
        """Return the grounding of each caption that names an annotated object, by image id."""
        if self.attention is None or not self.instances:
            return {}
        return ground_captions(self.attention, captions, self.regions, self.instances)

    def cards(self, image_ids: Sequence[str]) -> Iterator[tuple[str, ImageCard]]:
        """Yield the report's image cards one by one, so that they are never all in memory."""
        for image_id in image_ids:
            regions = self.regions(image_id)
            card = ImageCard(
                image=self.files.get(image_id),
                width=regions.width,
                height=regions.height,
                boxes=regions.boxes,
                names=self._names(image_id, regions),
                scores=regions.scores,
                attention=self._attention(image_id),
                truth=self.instances.get(image_id),
            )
            yield image_id, card

    def _attention(self, image_id: str) -> CaptionAttention | None:
        # With evaluate.attention = report, only some images have attention.
        if self.attention is None or image_id not in self.attention:
            return None
        return replace(self.attention[image_id], layers=self.layers.get(image_id, ()))

    def _names(self, image_id: str, regions: Regions) -> list[str]:
        """Return each region's category: from its annotation, else the detector's class."""
        if image_id in self.instances:
            return region_names(regions.boxes, self.instances[image_id])
        # Checkpoints do not contain class names, only numbers.
        return [f"class {class_id}" for class_id in regions.class_ids]
