"""Captions inside sources of images: text and JSON members of tars, columns of Parquet files."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from a2cap.data.annotations.json_items import BadItem
from a2cap.data.annotations.raw_image import RawImage, Skip, skipping
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import decode_text, parse_json
from a2cap.data.sources.opening import open_source
from a2cap.data.sources.parquet import Parquet
from a2cap.data.sources.tar import Tar, is_image

_CAPTIONS = ("captions", "caption", "text", "sentences")
"""Keys of JSON members and columns of Parquet files, each with a caption or a list of them."""


def read_source(path: Path, skip: Skip) -> Iterator[RawImage]:
    """Yield the images of tars and Parquet files with their captions and splits.

    Raises InputError for another source, and for Parquet files without captions.
    """
    for container in open_source(str(path)).containers:
        if isinstance(container, Tar):
            yield from _tar_items(container, skip)
        elif isinstance(container, Parquet):
            yield from _parquet_items(container, skip)
        else:
            raise InputError(
                f"{container.name!r} contains no captions; name tars, Parquet files, or a file of "
                "captions on this machine"
            )


def _tar_items(tar: Tar, skip: Skip) -> Iterator[RawImage]:
    images: dict[str, str] = {}
    texts: dict[str, bytes | InputError] = {}
    for name, _, content in tar.members(lambda name: _suffix(name) in (".txt", ".json")):
        if is_image(name):
            images[_key(name)] = name
        elif content:
            texts[name] = content
    for key, file in images.items():
        with skipping(f"{file} in {tar.name}", skip) as position:
            record, lines = texts.get(f"{key}.json"), texts.get(f"{key}.txt", b"")
            if isinstance(record, InputError) or isinstance(lines, InputError):
                raise InputError(f"captions of {key!r} are too large; shorten them")
            found: object = (
                {}
                if record is None
                else parse_json(decode_text(record, where=f"{key}.json"), where=f"{key}.json")
            )
            if not isinstance(found, dict):
                raise BadItem(f"'{key}.json' is not a JSON object")
            captions = _captions(found)
            if captions is None:
                captions = [
                    line
                    for line in decode_text(lines, where=f"{key}.txt").splitlines()
                    if line.strip()
                ]
            yield RawImage(position, file, found.get("split"), captions)


def _parquet_items(parquet: Parquet, skip: Skip) -> Iterator[RawImage]:
    texts = parquet.first_of(_CAPTIONS)
    if not texts:
        raise InputError(
            f"no column {' or '.join(_CAPTIONS)} in {parquet.name!r}; rename that of the captions"
        )
    for row, values in parquet.rows([*parquet.naming, *texts, *parquet.first_of(["split"])]):
        with skipping(f"row {row} in {parquet.name}", skip) as position:
            file = f"{parquet.identity(row, values)}.jpg"
            yield RawImage(position, file, values.get("split"), _captions(values) or [])


def _captions(values: Mapping[str, object]) -> list[object] | None:
    """Return the captions of an image, None if it has no field of them."""
    found = next((values[name] for name in _CAPTIONS if values.get(name) is not None), None)
    return found if found is None or isinstance(found, list) else [found]


def _key(member: str) -> str:
    return str(PurePosixPath(member).with_suffix(""))


def _suffix(member: str) -> str:
    return PurePosixPath(member).suffix
