"""Words of captions with the boxes of the objects that they name, from annotated images of a run.

COCO instances are joined to the words of the run's captions that name their categories; Flickr30k
Entities has phrases with boxes.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from a2cap.data.annotations.instances import read_instances
from a2cap.data.box_check import require_boxes
from a2cap.data.captions.coco_objects import words_of
from a2cap.data.captions.entities import GroundedImage, GroundedSentence, NamedObject, read_entities
from a2cap.data.errors import InputError
from a2cap.pipeline.analysis.trainings import OpenedRun

Mentions = Callable[[Sequence[str]], list[tuple[range, str]]]
"""Lower-case words -> positions and class of each mention."""


@dataclass(frozen=True)
class WordBoxes:
    """Annotated images of a run, and what the file was taken for.

    mentions: of the classes in a generated caption. skipped: image id -> why it is left out.
    """

    layout: str
    images: Mapping[str, GroundedImage]
    mentions: Mentions
    skipped: Mapping[str, str]

    @property
    def summary(self) -> str:
        """Say in a line what the file was taken for, and what is left out."""
        objects = [o for i in self.images.values() for s in i.sentences for o in s.objects]
        boxed = sum(len(item.boxes) > 0 for item in objects)
        text = (
            f"{self.layout}: {boxed:,} words with boxes of {len(self.images):,} images; left out: "
            f"{len(objects) - boxed:,} words without a box, {len(self.skipped):,} images"
        )
        reasons = Counter(self.skipped.values()).most_common(3)
        return "; ".join([text, *(f"{count:,}: {reason}" for reason, count in reasons)])


def read_word_boxes(path: Path, opened: OpenedRun) -> WordBoxes:
    """Read the annotations of a run's images: a folder of Flickr30k Entities, or COCO instances.

    Raises InputError if the file is neither, and if no word of these images has a box.
    """
    if path.is_dir():
        images, skipped, classes = read_entities(path, opened.image_ids)
        layout = "Flickr30k Entities"
        mentions: Mentions = classes.mentions
        for identity in list(images):
            images[identity], reason = _with_own_sentences(
                images[identity], opened.references[identity]
            )
            if reason:
                skipped[identity] = reason
    else:
        layout = "COCO instances"
        images, skipped, mentions = _read_instances(path, opened)
    for identity, image in images.items():
        regions = opened.store[identity]
        if image.size is not None and image.size != (regions.width, regions.height):
            skipped[identity] = "boxes of an image of another size than its features"
    usable = {name: image for name, image in images.items() if name not in skipped}
    annotations = WordBoxes(layout, usable, mentions, skipped)
    if not any(o.boxes.size for i in usable.values() for s in i.sentences for o in s.objects):
        raise InputError(
            f"no word with a box in {len(opened.image_ids):,} images of split {opened.split!r}: "
            f"{str(path)!r} is taken for {annotations.summary}; name the annotations of these "
            "images, or another --split"
        )
    return annotations


def _with_own_sentences(
    image: GroundedImage, references: Sequence[str]
) -> tuple[GroundedImage, str]:
    """Keep the sentences that are captions of the run, in any order; say if none is."""
    captions = {_letters(text) for text in references}
    sentences = tuple(s for s in image.sentences if _letters(" ".join(s.words)) in captions)
    reason = "" if sentences else "none of its sentences is a caption of the run"
    return replace(image, sentences=sentences), reason


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text.lower())


def _read_instances(
    path: Path, opened: OpenedRun
) -> tuple[dict[str, GroundedImage], dict[str, str], Mentions]:
    """Join the boxes of categories to the words of the captions that name them."""
    boxes = read_instances(path)
    words = words_of({name for image in boxes.values() for name in image.names if name})
    images, skipped = {}, {}
    for identity in opened.image_ids:
        if identity not in boxes:
            skipped[identity] = "not in the file"
            continue
        labels = boxes[identity]
        regions = opened.store[identity]
        try:
            if labels.problem is not None:
                raise InputError(labels.problem)
            require_boxes(labels.boxes, (regions.width, regions.height), order="xywh")
        except InputError as error:
            skipped[identity] = str(error)
            continue
        sentences = []
        for caption in opened.references[identity]:
            tokens = caption.split()
            objects = [
                NamedObject(
                    span[-1], name, labels.boxes[[n == name for n in labels.names]].reshape(-1, 4)
                )
                for span, name in words.mentions(tokens)
            ]
            sentences.append(GroundedSentence(tuple(tokens), tuple(objects)))
        images[identity] = GroundedImage(labels.size, tuple(sentences), frozenset(labels.names))
    return images, skipped, words.mentions
