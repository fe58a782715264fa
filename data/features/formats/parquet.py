"""Region features as Parquet: one row per image, features as fixed-size lists."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.data.features.feature_record import Record, decode_regions
from a2cap.data.features.formats.feature_format import ImageFeatures, Reading
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.regions import Regions
from a2cap.data.sources.parquet import load_pyarrow

_ROWS = 16
"""Images in a row group."""


def write_parquet(path: Path, records: Iterable[Record], dtype: str, width: int) -> None:
    """Write records in order of their keys; width: F, the features per region."""
    arrow = load_pyarrow(path.name)
    schema = _schema(arrow, dtype, width)
    rows = (_row(bytes(key).decode(), bytes(value)) for key, value in records)
    with arrow.parquet.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        while group := list(islice(rows, _ROWS)):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))


class ParquetSource:
    """The images of a Parquet file that `write_parquet` wrote."""

    title = "Parquet of a2"

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path, self._arrow, self._ids = path, load_pyarrow(path.name), reading.own_id
        with self._opened() as file:
            self._count = int(file.metadata.num_rows)
            if set(file.schema_arrow.names) != set(_schema(self._arrow, "float32", 1).names):
                raise InputError(
                    f"{str(path)!r} has no region features: its columns are "
                    f"{', '.join(file.schema_arrow.names)}; name a file that a2 convert wrote"
                )

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        with self._opened() as file:
            for batch in file.iter_batches(_ROWS):
                columns = {name: batch.column(name) for name in batch.schema.names}
                for row in range(batch.num_rows):
                    values = {name: _array(column[row]) for name, column in columns.items()}
                    image_id = str(values.pop("image_id"))
                    yield ImageFeatures(self._ids(image_id), Regions(**values))

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        arrow = self._arrow
        try:
            with arrow.parquet.ParquetFile(self._path, page_checksum_verification=True) as file:
                yield file
        except (arrow.lib.ArrowException, OSError, KeyError) as error:
            raise InputError(f"cannot read {str(self._path)!r}: {error}; copy it again") from error


def _schema(pa: Any, dtype: str, width: int) -> Any:
    feature = pa.float16() if dtype == "float16" else pa.float32()
    return pa.schema(
        {
            "image_id": pa.string(),
            "width": pa.int32(),
            "height": pa.int32(),
            "boxes": pa.list_(pa.list_(pa.float32(), 4)),
            "features": pa.list_(pa.list_(feature, width)),
            "scores": pa.list_(pa.float32()),
            "class_ids": pa.list_(pa.int32()),
            "attribute_ids": pa.list_(pa.int32()),
            "attribute_scores": pa.list_(pa.float32()),
        }
    )


def _row(image_id: str, value: bytes) -> dict[str, object]:
    values = vars(decode_regions(value, image_id))
    nested = {name: list(values[name]) for name in ("boxes", "features")}
    return {"image_id": image_id, **values, **nested}


def _array(value: Any) -> Any:
    """Return a value of a row as a number, a vector, a matrix or None."""
    found = value.values if hasattr(value, "values") else value.as_py()
    if not hasattr(found, "type"):
        return found
    if hasattr(found.type, "list_size"):
        return _array_of(found.flatten()).reshape(-1, found.type.list_size)
    return _array_of(found)


def _array_of(values: Any) -> NDArray[Any]:
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array
