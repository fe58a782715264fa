"""Captions to score, of any form of `layouts`, linked with the images of their references.

Captions without images are in the order of the references.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from a2cap.data.annotations.image_rows import ImageRow, ImageValues, StoredImages
from a2cap.data.annotations.read import read_identified
from a2cap.data.annotations.record import (
    CAPTION_FIELDS,
    PREDICTION_FIELDS,
    Fields,
)
from a2cap.data.annotations.stored_rows import StoredRows
from a2cap.data.annotations.summary import doubtful_captions
from a2cap.data.captions.unicode_words import without_false_spaces
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import write_json
from a2cap.data.identities import NO_OWN_IDS, Identities, Key, normal_key
from a2cap.data.image_ids import named_id, names_file, sample_ids
from a2cap.pipeline.evaluation.references import References

logger = logging.getLogger(__name__)

_FIELDS = Fields(captions=(*PREDICTION_FIELDS, *CAPTION_FIELDS), is_scored=True)
_REMEDY = (
    'name the files with their suffix, as "image", or the ids of the references, as "image_id"'
)


@dataclass(frozen=True)
class Results:
    """Images of one caption each, by the ids of their references."""

    images: StoredImages

    @property
    def captions(self) -> Mapping[str, str]:
        """The caption of each image."""
        return ImageValues(self.images, lambda row: row.captions[0][0])

    @property
    def keys(self) -> Mapping[str, Key]:
        """The images as the file names them."""
        return ImageValues(self.images, attrgetter("key"))

    @property
    def own_ids(self) -> dict[str, Key]:
        """Ids that the file gives images beside the names of their files."""
        rows = [row for row in self.images.rows() if _states_file(row)]
        return {row.image_id: row.own_id for row in rows if row.own_id is not None}


def caption_fields(column: str | None = None) -> Fields:
    """Return the fields of captions to score, with the one that is named."""
    return replace(_FIELDS, captions=[column]) if column else _FIELDS


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
    own = {i: key for result in results for i, key in result.own_ids.items()}
    if own and references is None:
        linked = References({image_id: [""] for image_id in own}, own)
        results = [read_captions(path, linked) for path in paths]
    return [dict(result.captions) for result in results]


def read_captions(
    path: Path, references: References | None = None, fields: Fields = _FIELDS
) -> Results:
    """Return the captions of a file, linked with the images of the references.

    Raises InputError for another layout, a bad item, a duplicate image, and captions without images
    whose number is not that of the references. An empty caption is one without words, as for
    pycocoevalcap.
    """
    name = repr(str(path))
    links = _Links(references, name)
    images = read_identified(path, fields, links.id_of)
    for summary in filter(None, (reader.summary for reader in links.readers)):
        logger.info("%s", summary)
    if links.unnamed and links.unnamed != links.count:
        raise InputError(f"{links.first_unnamed} of {name} names no image; name the image of each")
    if links.unnamed:
        images = _in_order(images, references, name)
    _require_one_caption(images, name)
    results = Results(images)
    for line in doubtful_captions((str(row.key), row.captions[0][0]) for row in images.rows()):
        logger.warning("%s: %s", name, line)
    return results


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


class _Links:
    """Links of the records of a file with references, or with the ids of their files."""

    def __init__(self, references: References | None, name: str) -> None:
        self._references = references
        identities = NO_OWN_IDS if references is None else references.identities
        read = partial(identities.reader, f"captions of {name}", remedy=_REMEDY)
        self.readers = read(), read(prefer="annotation")
        self.count, self.unnamed, self.first_unnamed = 0, 0, ""

    def id_of(self, image: ImageRow) -> str:
        """Return the id of an image, its number if the record names none."""
        self.count += 1
        if not image.file:
            self.unnamed += 1
            self.first_unnamed = self.first_unnamed or image.position
            return str(self.count)
        references, file_id = self._references, named_id("/".join(_parts(image.file)) or "?")
        if references is None:
            return file_id
        identity = _by_file(image, references)
        if identity is None and (image.own_id is not None or not names_file(str(image.key))):
            unclear, own = self.readers
            identity = unclear(image.key) if image.own_id is None else own(image.own_id)
        if identity is None or identity not in references.texts:
            # an unknown id may be the number of a file that has references
            identity = f"id {image.key}" if file_id in references.texts else file_id
        return identity


def _in_order(images: StoredImages, references: References | None, name: str) -> StoredImages:
    """Return captions without images as those of the references' images, else by their numbers."""
    rows = StoredRows(ImageRow)
    names = [row.image_id for row in images.rows()]
    ids = names if references is None else references.in_order(images, name)
    for row, i in zip(images.rows(), ids, strict=True):
        key = references.key_of(i) if references else i
        rows.append(row._replace(image_id=i, key=key), i)
    return StoredImages(rows, [""] * len(rows))


def _by_file(image: ImageRow, references: References) -> str | None:
    """Return the id of the image whose file a record states, None for one without references.

    The file counts before the id: `image_id` is by COCO's definition an id of the annotations,
    whatever file has that number.
    """
    if not (_states_file(image) or names_file(str(image.key))):
        return None
    # `a2 caption` writes the paths that it read: the longest end that has references
    parts = _parts(image.file)
    ends = (named_id("/".join(parts[at:]), references.rule) for at in range(len(parts)))
    return next((identity for identity in ends if identity in references.texts), None)


def _states_file(image: ImageRow) -> bool:
    """Return True for a record that has an id and the name of a file, not one for both."""
    return image.own_id is not None and normal_key(image.file) != normal_key(image.own_id)


def _parts(file: str) -> list[str]:
    parts = PurePosixPath(file).parts
    return [part for part in parts if part not in ("/", "..") and not part.endswith(":")]


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
