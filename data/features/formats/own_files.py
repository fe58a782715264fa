"""Files that a2 itself writes: its feature store, a tar of safetensors, and Parquet.

The members of the tar are `IMAGE.safetensors` in order of the image ids, readable without a2: the
checksum of a record is in its header. Parquet has one row per image, features as fixed-size lists.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.features.feature_record import CHECKSUM_SIZE, decode_regions, encode_regions
from a2cap.data.features.formats.feature_source import Container, Entry, ImageFeatures
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import Regions
from a2cap.data.sources.parquet import load_pyarrow

_SUFFIX = ".safetensors"
_CHECKSUM = "A2.xxh3_64"
_ROWS = 16
"""Images in a row group of Parquet."""


def store_container(path: Path) -> Container:
    """Return the images of a feature store."""
    store = FeatureStore(path)
    entries = [Entry(key, partial(store.__getitem__, key)) for key in store]
    return Container.of("feature store of a2", entries, is_own=True)


def write_tar(path: Path, images: Iterable[ImageFeatures]) -> None:
    """Write images as members of a tar."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for image in images:
            image_id, regions = image.image_id, image.regions
            record = encode_regions(regions, regions.features.dtype.name, image_id)
            member = tarfile.TarInfo(image_id + _SUFFIX)
            member.size = len(record) - CHECKSUM_SIZE
            member.pax_headers = {_CHECKSUM: record[-CHECKSUM_SIZE:].hex()}
            tar.addfile(member, io.BytesIO(record))


def tar_container(path: Path, name: str) -> Container:
    """Return the images of a tar that `write_tar` wrote; InputError if it is cut or damaged."""
    try:
        with tarfile.open(path, "r:") as tar:
            members = list(tar)
            # tarfile takes a damaged header, and a cut between members, for the end
            with path.open("rb") as file:
                file.seek(tar.offset)
                is_whole = file.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
    except tarfile.TarError as error:
        raise InputError(f"cannot read {str(path)!r}: {error}; copy it again") from error
    if not is_whole:
        raise InputError(f"tar {str(path)!r} ends early; copy it again")
    if not any(_CHECKSUM in member.pax_headers for member in members):
        first = ", ".join(member.name for member in members[:3])
        raise InputError(f"tar {name!r} is not of a2 convert: it has {first}; unpack it")

    def read(member: tarfile.TarInfo, image_id: str) -> Regions:
        with path.open("rb") as file:
            file.seek(member.offset_data)
            body = file.read(member.size)
        return decode_regions(body + bytes.fromhex(member.pax_headers[_CHECKSUM]), image_id)

    names = [member.name.removesuffix(_SUFFIX) for member in members]
    images = zip(names, members, strict=True)
    entries = [Entry(name, partial(read, member, name)) for name, member in images]
    return Container.of("tar of a2", entries, is_own=True)


def write_parquet(path: Path, images: Iterator[ImageFeatures]) -> None:
    """Write images as rows of Parquet; the first one states the type and width of features."""
    arrow, first = load_pyarrow(path.name), next(images)
    features = first.regions.features
    schema = _schema(arrow, arrow.from_numpy_dtype(features.dtype), features.shape[1])
    rows = map(_row, chain([first], images))
    with arrow.parquet.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        while group := list(islice(rows, _ROWS)):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))


def parquet_container(path: Path, name: str) -> Container:
    """Return the images of a Parquet file that `write_parquet` wrote."""
    arrow = load_pyarrow(path.name)

    @contextmanager
    def opened() -> Iterator[Any]:
        try:
            with arrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
                yield file
        except (arrow.lib.ArrowException, OSError, KeyError) as error:
            raise InputError(f"cannot read {str(path)!r}: {error}; copy it again") from error

    def entries() -> Iterator[Entry]:
        with opened() as file:
            for batch in file.iter_batches(_ROWS):
                columns = {name: batch.column(name) for name in batch.schema.names}
                for row in range(batch.num_rows):
                    values = {name: _array(column[row]) for name, column in columns.items()}
                    if values["relations"] is not None:
                        values["relations"] = values["relations"].reshape(-1, 3)
                    yield Entry(str(values.pop("image_id")), partial(Regions, **values))

    with opened() as file:
        count, names = int(file.metadata.num_rows), file.schema_arrow.names
    if {*names} != {*_schema(arrow, arrow.float32(), 1).names}:
        raise InputError(
            f"{str(path)!r} has no region features: its columns are {', '.join(names)}; name a "
            "file that a2 convert wrote"
        )
    return Container("Parquet of a2", entries, lambda: count, is_own=True)


def _schema(arrow: Any, feature: Any, width: int) -> Any:
    number, integer = arrow.float32(), arrow.int32()
    vectors = {"scores": number, "class_ids": integer, "attribute_ids": integer}
    return arrow.schema(
        {
            "image_id": arrow.string(),
            **dict.fromkeys(("width", "height"), integer),
            "boxes": arrow.list_(arrow.list_(number, 4)),
            "features": arrow.list_(arrow.list_(feature, width)),
            **{name: arrow.list_(kind) for name, kind in vectors.items()},
            "attribute_scores": arrow.list_(number),
            "relations": arrow.list_(integer),
        }
    )


def _row(image: ImageFeatures) -> dict[str, object]:
    values = vars(image.regions)
    nested = {name: list(values[name]) for name in ("boxes", "features")}
    relations = values["relations"]
    flat = None if relations is None else relations.ravel()
    return {"image_id": image.image_id, **values, **nested, "relations": flat}


def _array(value: Any) -> Any:
    """Return a value of a row as a number, a text, a vector, a matrix or None."""
    if not hasattr(value, "values") or value.values is None:
        return value.as_py()
    array = value.values.to_numpy(zero_copy_only=False)
    return np.stack(array) if array.dtype == object else array
