"""Captions to score, of any form of `layouts`, linked with the images of their references.

Captions without images are in the order of the references.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from a2cap.data.annotations.image_rows import ImageRow, ImageValues, StoredImages
from a2cap.data.annotations.read import read_identified
from a2cap.data.annotations.record import CAPTION_FIELDS, PREDICTION_FIELDS, Fields
from a2cap.data.annotations.stored_rows import StoredRows
from a2cap.data.annotations.summary import doubtful_captions
from a2cap.data.captions.unicode_words import without_false_spaces
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import write_json
from a2cap.data.identities import NO_OWN_IDS, Identities, Key, KeyReader, normal_key
from a2cap.data.image_ids import named_id, names_file, sample_ids
from a2cap.pipeline.evaluation.references import References

logger = logging.getLogger(__name__)

_FIELDS = Fields(captions=(*PREDICTION_FIELDS, *CAPTION_FIELDS), is_scored=True)
_REMEDY = (
    'name the files with their suffix, as "image", or the ids of the references, as "image_id"'
)


@dataclass(frozen=True)
class Results:
    """Images of one caption each, by the ids of their references; keys: as the file names them."""

    images: StoredImages
    captions: Mapping[str, str]
    keys: Mapping[str, Key]


def read_results(path: Path) -> dict[str, str]:
    """Return the captions of a file by image id; raises InputError as `read_captions` does."""
    return dict(read_captions(path).captions)


def read_together(
    paths: Sequence[Path], references: References | None = None
) -> list[dict[str, str]]:
    """Return the captions of several files by image id.

    Without references, ids are linked with files as those records state that have both.
    """
    results = [read_captions(path, references) for path in paths]
    rows = chain.from_iterable(result.images.rows() for result in results)
    own = {row.image_id: row.own_id for row in rows if _states_file(row)}
    if own and references is None:
        linked = References({image_id: [""] for image_id in own}, own)
        results = [read_captions(path, linked) for path in paths]
    return [dict(result.captions) for result in results]


def read_captions(
    path: Path, references: References | None = None, column: str | None = None
) -> Results:
    """Return the captions of a file, linked with the images of the references.

    column: name of their field, if it is not a usual one. Raises InputError for another layout, a
    bad item, an image of several captions or none, and captions without images whose number is not
    that of the references. An empty caption is one without words, as for pycocoevalcap.
    """
    name = repr(str(path))
    fields = replace(_FIELDS, captions=[column]) if column else _FIELDS
    identities = NO_OWN_IDS if references is None else references.identities
    reader = partial(identities.reader, f"captions of {name}", remedy=_REMEDY)
    readers = reader(), reader(prefer="annotation")
    images = read_identified(path, fields, partial(_linked_id, references, *readers))
    for summary in filter(None, (reader.summary for reader in readers)):
        logger.info("%s", summary)
    unnamed = next((row for row in images.rows() if not row.file), None)
    if unnamed and any(row.file for row in images.rows()):
        raise InputError(f"{unnamed.position} of {name} names no image; name the image of each")
    if unnamed:
        images = _in_order(images, references, name)
    _require_one_caption(images, name)
    captions = ImageValues(images, lambda row: str(row.captions[0][0]))
    for line in doubtful_captions((str(row.key), row.captions[0][0]) for row in images.rows()):
        logger.warning("%s: %s", name, line)
    return Results(images, captions, ImageValues(images, attrgetter("key")))


def write_results(
    path: Path,
    captions: Mapping[str, str],
    identities: Identities = NO_OWN_IDS,
    files: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a COCO results file in the order of the images' ids; equal captions give equal bytes.

    Entries have the ids of the annotations, and the name of the file where that is another one.
    """
    entries: list[dict[str, Key]] = [
        {
            "image_id": identities.own_id(image_id),
            "caption": without_false_spaces(captions[image_id]),
            **({"image": files[image_id]} if image_id in files else {}),
        }
        for image_id in sorted(captions)
    ]
    write_json(path, entries)


def _linked_id(
    references: References | None, unclear: KeyReader, own: KeyReader, image: ImageRow
) -> str:
    """Return the id of an image among the references, its position if it is listed without a file.

    The file counts before the id: `image_id` is by COCO's definition an id of the annotations,
    whatever file has that number. unclear, own: readers of keys that may be files, and of ids.
    """
    if not image.file:
        return image.position
    path = PurePosixPath(image.file)
    parts = [part for part in path.parts if part not in ("/", "..") and not part.endswith(":")]
    file_id = named_id("/".join(parts) or "?")
    if references is None:
        return file_id
    identity, is_file = None, names_file(str(image.key))
    if _states_file(image) or is_file:
        # `a2 caption` writes the paths that it read: the longest end that has references
        ends = (named_id("/".join(parts[at:]), references.rule) for at in range(len(parts)))
        identity = next((end for end in ends if end in references.texts), None)
    if identity is None and (image.own_id is not None or not is_file):
        identity = unclear(image.key) if image.own_id is None else own(image.own_id)
    if identity is None or identity not in references.texts:
        # an unknown id may be the number of a file that has references
        return f"id {image.key}" if file_id in references.texts else file_id
    return identity


def _in_order(images: StoredImages, references: References | None, name: str) -> StoredImages:
    """Return captions without images as those of the references' images, else by their numbers."""
    rows, numbers = StoredRows(ImageRow), map(str, range(1, len(images) + 1))
    ids = references.in_order(images, name) if references else [*numbers]
    for row, i in zip(images.rows(), ids, strict=True):
        rows.append(row._replace(image_id=i, key=references.key_of(i) if references else i), i)
    return StoredImages(rows, [""] * len(rows))


def _states_file(image: ImageRow) -> bool:
    """Return True for a record that has an id and the name of a file, not one for both."""
    return image.own_id is not None and normal_key(image.file) != normal_key(image.own_id)


def _require_one_caption(images: StoredImages, name: str) -> None:
    """Raise InputError for images with more or less than one caption."""
    several = [str(row.key) for row in images.rows() if len(row.captions) > 1]
    without = [str(row.key) for row in images.rows() if not row.captions]
    if several or without:
        what, remedy = ("more than one", "keep one caption for") if several else ("no", "caption")
        raise InputError(
            f"{len(several or without):,} images have {what} caption in {name}: "
            f"{sample_ids(several or without)}; {remedy} each"
        )
