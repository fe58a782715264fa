"""The images of an evaluation: files, annotated boxes, regions, and the attention to these."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a2cap.data.annotations.instances import Instances
from a2cap.data.captions.attention_file import AttentionFile
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import Regions, top_scoring
from a2cap.pipeline.captioning.attention import ground_captions
from a2cap.pipeline.captioning.grounding import Grounding, region_names
from a2cap.pipeline.report.image_card import ShownImage


@dataclass(frozen=True)
class EvaluatedImages:
    """What is known of the images besides their captions.

    max_regions: most regions that the captioner sees, None for all; files: image id -> image,
    None where it is missing; instances: annotated boxes, of some images or none; attention: to
    the regions at each word, None where it was not computed.
    """

    store: FeatureStore
    max_regions: int | None
    files: Mapping[str, Path | None]
    instances: Mapping[str, Instances]
    attention: AttentionFile | None

    def regions(self, image_id: str) -> Regions:
        """The regions that the captioner was given."""
        return top_scoring(self.store[image_id], self.max_regions)

    def ground(self, captions: Mapping[str, str]) -> dict[str, Grounding]:
        """The grounding of each caption that names an annotated thing; captions: by image id."""
        if self.attention is None or not self.instances:
            return {}
        return ground_captions(self.attention, captions, self.regions, self.instances)

    def show(self, image_ids: Sequence[str]) -> Iterator[tuple[str, ShownImage]]:
        """What the report draws of these images, one by one."""
        for image_id in image_ids:
            regions = self.regions(image_id)
            attended = self.attention is not None and image_id in self.attention
            yield (
                image_id,
                ShownImage(
                    image=self.files.get(image_id),
                    width=regions.width,
                    height=regions.height,
                    boxes=regions.boxes,
                    names=self._names(image_id, regions),
                    scores=regions.scores,
                    attention=self.attention[image_id] if self.attention and attended else None,
                ),
            )

    def _names(self, image_id: str, regions: Regions) -> list[str]:
        """What the regions show: by the annotation where there is one, else the detector's class.

        Classes have numbers alone: no checkpoint brings their names.
        """
        if image_id in self.instances:
            return region_names(regions.boxes, self.instances[image_id])
        return [f"class {class_id}" for class_id in regions.class_ids]
