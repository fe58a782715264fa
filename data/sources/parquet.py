"""Parquet files with encoded images, as Hugging Face's datasets and img2dataset write them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from a2cap.data.errors import A2Error, InputError
from a2cap.data.image_ids import named_id
from a2cap.data.sources.location import LARGEST_FILE, access_error, open_file, too_large
from a2cap.data.sources.source import EncodedImage, SourceItem

_IMAGE = ("image", "jpg")
_NAME = ("file_name", "filename", "image_id", "key", "__key__", "id")
_ROWS_AT_ONCE = 8


def load_pyarrow(name: str) -> Any:
    """Return pyarrow with its module `parquet`; raise InputError if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            f'{name!r} needs pyarrow; install it with pip install "a2cap[parquet]"'
        ) from error
    return pyarrow


@dataclass(frozen=True)
class Parquet:
    """The rows of a Parquet file; an image is a struct of bytes and path, or plain bytes."""

    name: str

    def listing(self) -> Iterator[tuple[SourceItem, int]]:
        """Yield the rows in order, each with the size of the file."""
        self._image_column()
        with self._opened() as file:
            size = sum(file.metadata.row_group(n).total_byte_size for n in _groups(file))
        for row, values in self.rows(self.naming):
            try:
                identity = self.identity(row, values)
            except InputError:
                identity = self._numbered(row)
            yield SourceItem(identity, self.name, str(row)), size

    @cached_property
    def columns(self) -> dict[str, list[str]]:
        """Names of the columns, each with those of its fields if it is a struct."""
        with self._opened() as file:
            kinds = {field.name: field.type for field in file.schema_arrow}
        return {
            name: [kind.field(number).name for number in range(kind.num_fields)]
            for name, kind in kinds.items()
        }

    def first_of(self, names: Sequence[str]) -> list[str]:
        """Return the first of these names that is a column, as a list of one or none."""
        return [name for name in names if name in self.columns][:1]

    @property
    def naming(self) -> list[str]:
        """Columns from which `identity` has the names of the rows."""
        paths = [f"{name}.path" for name in self.first_of(_IMAGE) if "path" in self.columns[name]]
        return self.first_of(_NAME) or paths

    def identity(self, row: int, values: Mapping[str, object]) -> str:
        """Return the id of a row: its column of names, else its image's path, else its number.

        Raises InputError for a name that no image may have.
        """
        found: object = next((values[name] for name in _NAME if name in values), None)
        image = next((values[name] for name in _IMAGE if name in values), None)
        if found is None and isinstance(image, Mapping):
            found = image.get("path")
        is_missing = found is None or found == "" or str(found) == "nan"  # NaN is pandas' None
        return self._numbered(row) if is_missing else named_id(f"{found}")

    def _numbered(self, row: int) -> str:
        # a number alone would be the id in every file
        return named_id(f"{PurePosixPath(self.name).stem}/row-{row}")

    def read(self, items: Sequence[SourceItem]) -> Iterator[EncodedImage]:
        """Read the images of the row groups that contain one of them."""
        wanted = {int(item.member): item for item in items}
        while wanted:
            try:
                column = self._image_column()
                for row, values in self.rows([column, *self.first_of(_NAME)], wanted):
                    yield wanted.pop(row), self._image(row, values)
                if wanted:
                    raise InputError(f"{self.name!r} has too few rows; restore what was listed")
            except A2Error as error:
                # the rows after a damaged one may be readable
                failed = [min(wanted)] if isinstance(error, InputError) else sorted(wanted)
                for row in failed:
                    yield wanted.pop(row), error

    def rows(
        self, columns: Sequence[str], wanted: Collection[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the values of each row, or of those wanted.

        Raises InputError if the file is not Parquet or is damaged, UnreadableError if reading
        fails.
        """
        with self._opened() as file:
            row = 0
            for group in _groups(file):
                end = row + file.metadata.row_group(group).num_rows
                if wanted is None or any(row <= number < end for number in wanted):
                    batches = file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=columns)
                    values = (value for batch in batches for value in batch.to_pylist())
                    for number, value in enumerate(values, start=row):
                        if wanted is None or number in wanted:
                            yield number, value
                row = end

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        arrow = load_pyarrow(self.name)
        with open_file(self.name) as file:
            try:
                yield arrow.parquet.ParquetFile(file)
            except A2Error:
                raise
            except Exception as error:
                # pyarrow raises an OSError without a number for damage
                if (
                    isinstance(error, arrow.lib.ArrowException)
                    or getattr(error, "errno", 0) is None
                ):
                    reason = " ".join(str(error).split())
                    raise InputError(
                        f"cannot read {self.name!r}: {reason}; copy the file again"
                    ) from error
                raise access_error(self.name, error) from error

    def _image_column(self) -> str:
        found = self.first_of(_IMAGE)
        if not found:
            raise InputError(
                f"no column {' or '.join(_IMAGE)} in {self.name!r}, it has "
                f"{', '.join(self.columns)}; rename the column of the images"
            )
        return found[0]

    def _image(self, row: int, values: Mapping[str, object]) -> bytes | InputError:
        try:
            self.identity(row, values)
        except InputError as error:
            return error
        value = next(values[name] for name in _IMAGE if name in values)
        found = value.get("bytes") if isinstance(value, Mapping) else value
        if not isinstance(found, bytes):
            return InputError(f"row {row} of {self.name!r} has no image bytes; add them")
        return found if len(found) <= LARGEST_FILE else too_large(f"{self.name}/row-{row}")


def _groups(file: Any) -> range:
    return range(file.num_row_groups)
