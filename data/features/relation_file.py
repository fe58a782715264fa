"""Predicted relations between stored regions: a JSON file that `a2 convert` reads and writes.

    {"labels": 20, "images": {"139": {"regions": 36, "relations": [[0, 4, 1], [4, 2, 17]]}}}

`labels` is their number, `images` by image id, `regions` their number in the features, and each
relation is the row of a subject, the row of an object, counted from 0, and a label from 1 on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.regions import Regions


def check_relations(
    relations: NDArray[np.integer], regions: int, labels: int | None = None
) -> None:
    """Raise InputError unless these are relations of as many regions; labels: their number."""
    if relations.ndim != 2 or relations.shape[1] != 3:
        raise InputError(
            f"they have shape {relations.shape}, expected (E, 3); give a subject, an object and a "
            "label each"
        )
    pairs, numbers = relations[:, :2], relations[:, 2]
    outside = (pairs < 0) | (pairs >= regions)
    if outside.any():
        raise InputError(
            f"region {pairs[outside][0]} of {regions}; predict relations for the stored regions"
        )
    if (itself := pairs[:, 0] == pairs[:, 1]).any():
        raise InputError(f"region {pairs[itself][0, 0]} has one to itself; remove it")
    most = numbers.max(initial=1) if labels is None else labels
    if (wrong := (numbers < 1) | (numbers > most)).any():
        last = "" if labels is None else f" to {labels}"
        raise InputError(f"label {numbers[wrong][0]}; labels count from 1{last}")
    if len(np.unique(pairs, axis=0)) < len(pairs):
        raise InputError("a pair of regions has two labels; keep the most probable one")


@dataclass(frozen=True)
class RelationFile:
    """Relations by image id; labels: their number."""

    path: Path
    labels: int
    images: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "RelationFile":
        """Read a file; raise InputError for another layout."""
        content: Any = read_json(path)
        images = content.get("images") if isinstance(content, dict) else None
        labels = content.get("labels") if isinstance(content, dict) else None
        if not isinstance(images, dict) or type(labels) is not int or labels < 1:
            raise InputError(
                f"{str(path)!r} has no relations: it needs the keys labels, a number, and images; "
                "docs/guide/features.md has the layout"
            )
        return cls(path, labels, images)

    def add(self, image_id: str, regions: Regions) -> Regions:
        """Return the regions with their relations; raise InputError unless they are of these."""
        entry = self.images.get(image_id)
        where = f"relations of image {image_id!r} in {str(self.path)!r}"
        if entry is None:
            raise InputError(f"no {where}")
        try:
            count, rows = entry["regions"], entry["relations"]
            # an empty list has one axis
            relations = np.array(rows).reshape(len(rows), -1) if rows else np.zeros((0, 3), int)
            if relations.dtype.kind != "i":
                raise ValueError
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{where}: they need the keys regions, a number, and relations, rows of three "
                "whole numbers"
            ) from error
        if count != len(regions):
            raise InputError(
                f"{where} are of {count} regions, the features have {len(regions)}; predict them "
                "for the stored regions"
            )
        try:
            check_relations(relations, len(regions), self.labels)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        return replace(regions, relations=relations.astype(np.int32))


def write_relations(path: Path, images: Iterable[tuple[str, Regions]]) -> int:
    """Write the relations of images that have them; return their number.

    The number of labels is the largest label. Raises InputError if no image has any.
    """
    entries, labels = {}, 1
    for image_id, regions in images:
        if regions.relations is not None:
            labels = max(labels, int(regions.relations[:, 2].max(initial=1)))
            relations = regions.relations.tolist()
            entries[image_id] = {"regions": len(regions), "relations": relations}
    if not entries:
        raise InputError("no image has relations; add some with a2 convert --relations FILE")
    write_json(path, {"labels": labels, "images": entries})
    return len(entries)
