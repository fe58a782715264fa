"""A data file of a feature store as Parquet: one row per image, features as fixed-size lists."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.data.features.record import Record, decode_regions, encode_regions
from a2cap.data.features.seal import StoreSeal, damage_error
from a2cap.data.regions import Regions

_ROWS = 16
"""Images in a row group, of which reading one image reads all."""


def require_pyarrow() -> None:
    """Raise InputError unless pyarrow is installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise InputError(
            'features as Parquet need pyarrow; install it with pip install "a2cap[parquet]"'
        ) from error


def write_parquet(path: Path, records: Iterable[Record], dtype: str, width: int) -> None:
    """Write records in order of their keys; width: F, the features per region."""
    require_pyarrow()
    from pyarrow import Table
    from pyarrow.parquet import ParquetWriter

    schema = _schema(dtype, width)
    rows = (_row(bytes(key).decode(), bytes(value)) for key, value in records)
    with ParquetWriter(path, schema, write_page_checksum=True) as writer:
        while group := list(islice(rows, _ROWS)):
            writer.write_table(Table.from_pylist(group, schema=schema))


class ParquetFile:
    """The records in a Parquet file, by key."""

    def __init__(self, path: Path, seal: StoreSeal) -> None:
        require_pyarrow()
        self.path = path
        self.seal = seal
        self._group: tuple[int, Any] = (-1, None)  # the one that was read last

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None if it is missing."""
        if key not in self._rows:
            return None
        number, row = divmod(self._rows[key], _ROWS)
        if self._group[0] != number:
            self._group = number, self._read(number)
        values = {name: _array(column[row]) for name, column in self._group[1].items()}
        size = {name: values.pop(name) for name in ("width", "height")}
        return encode_regions(Regions(**values, **size), self.seal.dtype, key.decode())

    def __contains__(self, key: bytes) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Forget the row group that was read last."""
        self._group = (-1, None)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_group": (-1, None)}

    def records(self) -> Iterator[Record]:
        """Yield all records in key order."""
        for key in self._rows:
            yield memoryview(key), memoryview(self.get(key) or b"")

    @cached_property
    def _rows(self) -> dict[bytes, int]:
        """Row by key."""
        names = self._table(None, ["image_id"]).column("image_id").to_pylist()
        return {name.encode(): row for row, name in enumerate(names)}

    def _read(self, group: int) -> dict[str, Any]:
        names = [name for name in _schema(self.seal.dtype, 1).names if name != "image_id"]
        table = self._table(group, names)
        return {name: table.column(name).combine_chunks() for name in names}

    def _table(self, group: int | None, columns: list[str]) -> Any:
        from pyarrow.lib import ArrowException
        from pyarrow.parquet import ParquetFile as Reader

        # without threads, which a forked loader worker does not inherit
        try:
            with Reader(self.seal.data_file(self.path), page_checksum_verification=True) as reader:
                if group is None:
                    return reader.read(columns, use_threads=False)
                return reader.read_row_group(group, columns, use_threads=False)
        except (ArrowException, OSError, KeyError) as error:
            raise damage_error(self.path, error) from error


def _schema(dtype: str, width: int) -> Any:
    import pyarrow as pa

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
