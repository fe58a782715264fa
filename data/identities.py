"""Identities of images: the ids that annotations give them, linked with the ids of their files.

In COCO, both are one number. In data of other people they differ: an annotation tool numbers images
in the order of their upload. Stores and keys name an image by the id of its file
(a2cap.data.image_ids); features, boxes and results of other programs name it by either.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from a2cap.data.errors import InputError
from a2cap.data.image_ids import IdRule, named_id, names_file, results_id, sample_ids

Key = int | str
"""An image as a file names it: the id of an annotation, a number, a stem, a name or a path."""

Numbers = Literal["number", "annotation"]
"""number: a bare number is that of a file; annotation: it is an id of the annotations."""


REMEDY = (
    "set data.ids=annotation if these are ids of the annotations, data.ids=number if they are the "
    "numbers of files"
)


class Identities:
    """The ids of images in annotations beside those of their files.

    False if the annotations give no ids, or those of the files, as COCO's do: then every key is
    read as a file.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[str, Key | None]] = (),
        *,
        numbers: Numbers | None = None,
        rule: IdRule = "number",
    ) -> None:
        """Link ids of files with those of the annotations, None for an image without one.

        numbers: reading of bare numbers that fit both, None to reject them; rule: of the files.
        """
        listed = dict(pairs)
        differ = any(key is not None and normal_key(key) != file for file, key in listed.items())
        linked = listed.items() if differ else ()
        self.own_ids: Mapping[str, Key] = {
            i: results_id(i) if key is None else key for i, key in linked
        }
        """Id in the annotations by the id of the file; empty if all are equal."""
        self._numbers, self.rule = numbers, rule
        files: dict[str, str | None] = {}
        for file, annotated in self.own_ids.items():
            key = normal_key(annotated)
            files[key] = None if key in files else file  # an id of two files is that of neither
        self._files = {key: file for key, file in files.items() if file is not None}
        self._texts = {key for key in self.own_ids.values() if isinstance(key, str)}

    def __bool__(self) -> bool:
        return bool(self.own_ids)

    def own_id(self, file: str) -> Key:
        """Return the id of an image as results state it."""
        return self.own_ids[file] if file in self.own_ids else results_id(file)

    def reader(
        self, what: str, *, prefer: Numbers | None = None, remedy: str = REMEDY
    ) -> "KeyReader":
        """Return the reader of the keys of one file.

        what: name of the file in messages.
        prefer: what the format of the file defines a number to be that fits two images, if nothing
            is set.
        remedy: what to do if nothing defines it.
        """
        return KeyReader(self, what, self._numbers, prefer, remedy)

    def file_reading(self, key: Key) -> str | None:
        """Return the id of the file that a key names, None for a name that no file can have."""
        if isinstance(key, str) and key in self.own_ids:
            return key  # as in a store: a name may end in what looks like a suffix
        with suppress(InputError):
            return self.file_id(key)
        return None

    def file_id(self, key: Key) -> str:
        """Return the id of the file that a key names; raise InputError if it cannot be one."""
        if isinstance(key, int) and self.rule == "number":
            return normal_key(key)
        return named_id(str(key), self.rule)

    def names_only_file(self, key: Key) -> bool:
        """Return True for the name of a listed file that no image has as its id too."""
        return (
            isinstance(key, str)
            and names_file(key)
            and key not in self._texts
            and self.file_reading(key) in self.own_ids
        )

    def annotation_reading(self, key: Key) -> str | None:
        """Return the id of the file whose id in the annotations is `key`, None without one."""
        return self._files.get(normal_key(key))


NO_OWN_IDS = Identities()
"""Of images that have the ids of their files alone."""


class AmbiguousIdError(InputError):
    """Raised for a key that may name two images; no image of the file can be read then."""


class KeyReader:
    """The keys of images in one file, read by the identities of the annotations."""

    def __init__(
        self,
        identities: Identities,
        what: str,
        numbers: Numbers | None,
        prefer: Numbers | None,
        remedy: str,
    ) -> None:
        self._identities, self._what, self._remedy = identities, what, remedy
        self._numbers, self._prefer = numbers, prefer
        self._first: dict[Numbers, tuple[Key, str]] = {}  # key and file of the first image of each

    def __call__(self, key: Key) -> str | None:
        """Return the id of an image's file, None for an image that the annotations lack.

        A key with a suffix, a folder or COCO's prefix is a file; any other fits a file, an id of
        the annotations, or both. Raises AmbiguousIdError, unless data.ids decides, for a key that
        fits two images, and for keys of which some fit files alone and others annotations alone.
        """
        identities = self._identities
        if not identities:
            return identities.file_id(key)
        file = identities.file_reading(key)
        if identities.names_only_file(key):
            return file
        annotated = identities.annotation_reading(key)
        if file == annotated:
            return file
        annotation_id = identities.own_ids.get(file or "")
        fits_both = annotation_id is not None and annotated is not None
        if fits_both and (self._numbers or self._prefer) is None:
            raise AmbiguousIdError(
                f"{self._what} name an image {key!r}, which the annotations give to the file "
                f"{annotated!r}, while the file {file!r} has id {annotation_id!r}; {self._remedy}"
            )
        reading = self._numbers or (self._prefer if fits_both else None)
        reading = reading or ("number" if annotated is None else "annotation")
        image = annotated if reading == "annotation" else file
        if image is not None and image in identities.own_ids:
            self._first.setdefault(reading, (key, image))
        if len(self._first) > 1:
            by_own, by_file = (self._first[name][0] for name in ("annotation", "number"))
            raise AmbiguousIdError(
                f"{self._what} name images in two ways: {by_own!r} is only an id of the "
                f"annotations, {by_file!r} only the name of a file; {self._remedy}"
            )
        return image

    def linked(self, name: str) -> str:
        """Return the id of an image's file; "id 5", which no file has, for one that is not there.

        A number that the annotations lack may be that of another file.
        """
        return self(name) or f"id {name}"

    @property
    def summary(self) -> str | None:
        """How the keys name images, None if they have been the same both ways."""
        for reading, (key, file) in self._first.items():
            kind = "ids of the annotations" if reading == "annotation" else "numbers of files"
            return f"{self._what} name images by {kind}, first {key!r}: the file {file!r}"
        return None


def normal_key(key: Key) -> str:
    """Return a key as ids are compared: 42, "42" and "COCO_val2014_000000000042.jpg" are one."""
    if isinstance(key, int):
        return f"{key:012d}"
    with suppress(InputError):
        return named_id(key)
    return key  # an id of annotations need not be a possible name of a file


def shared_images(
    splits: Mapping[str, Sequence[str]], digest: Callable[[str], object], what: str
) -> str | None:
    """Return a warning of images in two splits under two names, None without any.

    splits: image ids by split; digest: of the features or the file of an image, which `what` names;
    None for an image without.
    """
    first: dict[object, tuple[str, str]] = {}
    pairs = []
    for split, image_ids in splits.items():
        for image in image_ids:
            if (content := digest(image)) is not None:
                other, other_split = first.setdefault(content, (image, split))
                if other_split != split:
                    pairs.append(f"{image!r} ({split}) is {other!r} ({other_split})")
    if not pairs:
        return None
    return (
        f"{len(pairs):,} images have the {what} of an image of another split: "
        f"{sample_ids(pairs, 3)}; scores on them are too high, keep each photograph in one split"
    )
