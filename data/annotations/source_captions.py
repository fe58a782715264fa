"""Captions inside sources of images: text and JSON members of tars, columns of tables."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from a2cap.data.annotations.json_items import BadItem
from a2cap.data.annotations.raw_image import RawImage, Skip, skipping
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import decode_text, parse_json
from a2cap.data.sources.open_source import open_source
from a2cap.data.sources.parquet import Table
from a2cap.data.sources.tar import Tar, is_image

_CAPTIONS = ("captions", "caption", "text", "sentences_raw", "sentences")
"""Keys of JSON members and columns of tables, each with a caption or a list of them."""
_NUMBERED = re.compile("caption_?[0-9]")
"""Columns with a caption each, where a table has none of these."""


def read_source(path: Path, skip: Skip) -> Iterator[RawImage]:
    """Yield the images of tars, Parquet and Arrow files with their captions and splits.

    Raises InputError for another source, and for tables without captions.
    """
    for container in open_source(str(path)).containers:
        if isinstance(container, Tar):
            yield from _tar_items(container, skip)
        elif isinstance(container, Table):
            yield from _table_items(container, skip)
        else:
            raise InputError(
                f"{container.name!r} contains no captions; name tars, Parquet files, or a file of "
                "captions on this machine"
            )


def _tar_items(tar: Tar, skip: Skip) -> Iterator[RawImage]:
    images: dict[str, str] = {}
    texts: dict[str, bytes | InputError] = {}
    for name, content in tar.members(lambda name: _suffix(name) in (".txt", ".json")):
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
            captions = captions_of(found)
            if captions is None:
                captions = [
                    line
                    for line in decode_text(lines, where=f"{key}.txt").splitlines()
                    if line.strip()
                ]
            yield RawImage(position, file, found.get("split"), captions)


def _table_items(table: Table, skip: Skip) -> Iterator[RawImage]:
    texts = table.first_of(_CAPTIONS) or sorted(filter(_NUMBERED.fullmatch, table.columns))
    if not texts:
        raise InputError(
            f"no column {' or '.join(_CAPTIONS)} in {table.name!r}; rename that of the captions"
        )
    for row, values in table.rows([*table.naming, *texts, *table.first_of(["split"])]):
        with skipping(f"row {row} in {table.name}", skip) as position:
            file = f"{table.identity(row, values)}.jpg"
            split = values.get("split", table.split)
            yield RawImage(position, file, split, captions_of(values, texts) or [])


def captions_of(
    values: Mapping[str, object], names: Sequence[str] = _CAPTIONS
) -> list[object] | None:
    """Return the captions of an image, None if it has no field of them.

    names: fields with a caption or a list of them, of which the first counts, or numbered ones.
    """
    found = [values[name] for name in names if values.get(name) is not None]
    if not found or _NUMBERED.fullmatch(names[0]):
        return found or None
    return found[0] if isinstance(found[0], list) else found[:1]


def _key(member: str) -> str:
    return str(PurePosixPath(member).with_suffix(""))


def _suffix(member: str) -> str:
    return PurePosixPath(member).suffix
