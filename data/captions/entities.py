"""Reader of Flickr30k Entities: sentences whose phrases have boxes (Plummer et al. 2015).

arXiv:1505.04870. A folder has `Sentences/ID.txt`, a sentence in each line with phrases such as
`[/EN#12/people A young man]`, and `Annotations/ID.xml` with the boxes of each number. Number 0 is
of phrases that nothing visible corresponds to.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from a2cap.data.box_check import require_boxes
from a2cap.data.captions.coco_objects import plurals
from a2cap.data.errors import InputError
from a2cap.data.image_ids import image_id

SENTENCES, ANNOTATIONS = "Sentences", "Annotations"
_PART = re.compile(r"\[/EN#(\d+)/(\S+) ([^\[\]]+)\]|([^\[\]\s]+)|(\S)")
_NOTHING = "0"
_IRREGULAR = {"men": "man", "women": "woman", "children": "child"}


@dataclass(frozen=True)
class NamedObject:
    """An object that a sentence names.

    position: of the word whose attention counts, the last one of the phrase. label: class of the
    object. boxes: (N, 4) float32 x1 y1 x2 y2 in pixels, N = 0 for an object without a box.
    """

    position: int
    label: str
    boxes: NDArray[np.float32]


@dataclass(frozen=True)
class GroundedSentence:
    """Lower-case words of a sentence without punctuation, and the objects that it names."""

    words: tuple[str, ...]
    objects: tuple[NamedObject, ...]


@dataclass(frozen=True)
class GroundedImage:
    """Sentences of an image.

    size: its width and height in pixels, None if it is not stated. present: classes with boxes in
    the image, which the sentences may not name.
    """

    size: tuple[int, int] | None
    sentences: tuple[GroundedSentence, ...]
    present: frozenset[str] = frozenset()


def read_entities(
    folder: Path, image_ids: Iterable[str]
) -> tuple[dict[str, GroundedImage], dict[str, str], "PhraseClasses"]:
    """Return the images of `image_ids` by id, the reasons of those left out, and the classes.

    Raises InputError for a folder of another layout.
    """
    if not all((folder / name).is_dir() for name in (SENTENCES, ANNOTATIONS)):
        raise InputError(
            f"not Flickr30k Entities: no folders {SENTENCES!r} and {ANNOTATIONS!r} in "
            f"{str(folder)!r}; name the folder that contains both"
        )
    files = {image_id(f"{path.stem}.jpg"): path for path in (folder / SENTENCES).glob("*.txt")}
    images: dict[str, GroundedImage] = {}
    skipped = {}
    for identity in image_ids:
        if identity not in files:
            skipped[identity] = f"no file of it in {SENTENCES!r}"
            continue
        boxes = folder / ANNOTATIONS / f"{files[identity].stem}.xml"
        try:
            images[identity] = _read_image(files[identity], boxes)
        except InputError as error:
            skipped[identity] = str(error)
    classes = PhraseClasses(
        item.label
        for image in images.values()
        for sentence in image.sentences
        for item in sentence.objects
    )
    for identity, image in images.items():
        sentences = tuple(_classified(sentence, classes) for sentence in image.sentences)
        images[identity] = replace(image, sentences=sentences)
    return images, skipped, classes


def _read_image(sentences: Path, annotations: Path) -> GroundedImage:
    """Read one image; raise InputError if its files cannot be used."""
    size, boxes = _read_boxes(annotations)
    try:
        lines = sentences.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {sentences.name!r} ({error}); get it again") from error
    numbers: set[str] = set()
    read = tuple(_read_sentence(line, boxes, numbers) for line in lines if line.strip())
    if boxes and numbers and not numbers & boxes.keys():
        raise InputError(
            f"none of its {len(numbers):,} phrases is in {annotations.name!r}: boxes of other "
            "sentences; pair the files by name"
        )
    return GroundedImage(size, read)


def _read_sentence(
    line: str, boxes: Mapping[str, NDArray[np.float32]], numbers: set[str]
) -> GroundedSentence:
    """Read a line, and add the numbers of its phrases to `numbers`."""
    words: list[str] = []
    objects = []
    for number, _, phrase, word, stray in _PART.findall(line):
        if stray:
            raise InputError(f"phrase without its end or its number: {line[:60]!r}; correct it")
        words += _words(phrase.split() if number else [word])
        if number and number != _NOTHING and _words(phrase.split()):
            numbers.add(number)
            none = np.zeros((0, 4), np.float32)
            objects.append(NamedObject(len(words) - 1, words[-1], boxes.get(number, none)))
    return GroundedSentence(tuple(words), tuple(objects))


def _words(tokens: Sequence[str]) -> list[str]:
    return [token.lower() for token in tokens if any(map(str.isalnum, token))]


def _read_boxes(path: Path) -> tuple[tuple[int, int], dict[str, NDArray[np.float32]]]:
    """Return the size of an image, and the boxes of each number that is listed."""
    try:
        root = ElementTree.parse(path).getroot()
        width, height = (int(root.findtext(f"size/{side}", "")) for side in ("width", "height"))
        listed: dict[str, list[list[float]]] = {}
        for item in root.iter("object"):
            for name in item.findall("name"):
                sides = listed.setdefault((name.text or "").strip(), [])
                for box in item.findall("bndbox"):
                    corners = ("xmin", "ymin", "xmax", "ymax")
                    sides.append([float(box.findtext(corner, "")) for corner in corners])
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise InputError(f"cannot read {path.name!r} ({error}); get it again") from error
    boxes = {name: np.array(sides, np.float32).reshape(-1, 4) for name, sides in listed.items()}
    for of_phrase in boxes.values():
        require_boxes(of_phrase, (width, height), order="xyxy")
    return (width, height), boxes


class PhraseClasses:
    """Classes of phrases by their last word; a plural is of the class of its singular."""

    def __init__(self, words: Iterable[str]) -> None:
        last = set(words)
        self._class_of = {
            **{word: word for word in last},
            **{plural: word for word in sorted(last) for plural in plurals(word)},
            **{plural: word for plural, word in _IRREGULAR.items() if word in last},
        }

    def of(self, word: str) -> str:
        """Return the class of a word, "" for one that ends no phrase."""
        return self._class_of.get(word, "")

    def mentions(self, words: Sequence[str]) -> list[tuple[range, str]]:
        """Return position and class of each word of a class."""
        labelled = ((range(at, at + 1), self.of(word)) for at, word in enumerate(words))
        return [(span, label) for span, label in labelled if label]


def _classified(sentence: GroundedSentence, classes: PhraseClasses) -> GroundedSentence:
    objects = (replace(item, label=classes.of(item.label)) for item in sentence.objects)
    return replace(sentence, objects=tuple(objects))
