"""Parquet and Arrow files with images, as Hugging Face's datasets and img2dataset write them.

`datasets` caches the splits of a data set as Arrow streams, `NAME-train.arrow`, and downloads
Parquet files, `train-00000-of-00002.parquet`. An Arrow stream is mapped, as `datasets` does, and
each of its batches is validated before use: Arrow itself follows any offset that a file states.
"""

import mmap
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from a2cap.data.errors import A2Error, InputError
from a2cap.data.image_ids import IMAGE_SUFFIXES, named_id
from a2cap.data.sources.folder import below, place_of
from a2cap.data.sources.location import (
    LARGEST_FILE,
    access_error,
    is_url,
    open_file,
    read_file,
    too_large,
)
from a2cap.data.sources.source import SourceImage, SourceItem

SUFFIXES = (".parquet", ".arrow")

_IMAGE = ("image", "jpg")
_NAME = ("file_name", "filename", "image_id", "key", "__key__", "id")
_ROWS_AT_ONCE = 8
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_RESULT_OF_MAP = "cache-"  # datasets keeps these beside the splits
_SPLIT = re.compile(r"(?:^|[-_./])(train|validation|valid|val|dev|test)(?=[-_./])")

Group = tuple[int, Callable[[], Iterator[list[dict[str, Any]]]]]
"""Rows that are stored together: their number, and a function that reads them a few at a time."""


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
class Contents:
    """An open file: its schema, and the groups of rows with some columns."""

    schema: Any
    groups: Callable[[Sequence[str]], Iterator[Group]]


@dataclass(frozen=True)
class Table:
    """The rows of a Parquet file or an Arrow stream.

    An image is a struct of bytes and path, plain bytes, or a path; a path without bytes names a
    file below the folder of the table, or a URL. place: path of the table in a folder of several,
    which ids of unnamed rows start with. split: that of all rows, None if the name states none.
    """

    name: str
    place: str = ""
    split: str | None = None

    def listing(self) -> Iterator[SourceItem]:
        """Yield the rows in order."""
        self._image_column()
        for row, values in self.rows(self.naming):
            try:
                identity = self.identity(row, values)
            except InputError:
                identity = self._numbered(row)
            yield SourceItem(identity, self.name, str(row))

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        with self._opened() as contents:
            return {field.name: field.type for field in contents.schema}

    @cached_property
    def columns(self) -> dict[str, list[str]]:
        """Names of the columns, each with those of its fields if it is a struct."""
        return {
            name: [kind.field(number).name for number in range(kind.num_fields)]
            for name, kind in self._kinds.items()
        }

    def first_of(self, names: Sequence[str]) -> list[str]:
        """Return the first of these names that is a column, as a list of one or none."""
        return [name for name in names if name in self.columns][:1]

    @property
    def naming(self) -> list[str]:
        """Columns from which `identity` has the names of the rows."""
        return self.first_of(_NAME) or self._paths

    @property
    def _paths(self) -> list[str]:
        """The column of the images' paths, as a list of one or none."""
        fields = {name: self.columns[name] for name in self.first_of(_IMAGE)}
        paths = [f"{name}.path" for name, inner in fields.items() if "path" in inner]
        return paths + [name for name in fields if str(self._kinds[name]).endswith("string")]

    def identity(self, row: int, values: Mapping[str, object]) -> str:
        """Return the id of a row: its column of names, else its image's path, else its number.

        Raises InputError for a name that no image may have.
        """
        label: object = next((values[name] for name in _NAME if name in values), None)
        if label is None:
            label = _path_of(values)
        is_missing = label is None or label == "" or str(label) == "nan"  # NaN is pandas' None
        return self._numbered(row) if is_missing else named_id(below(f"{label}", self.name))

    def _numbered(self, row: int) -> str:
        # a number alone would be the id in every file
        place = PurePosixPath(self.place or PurePosixPath(self.name).name)
        return named_id(f"{place.with_suffix('')}/row-{row}")

    def local_files(self) -> dict[str, Path]:
        """Map rows, by the ids that they have without a name, to the files that they name here."""
        files = {}
        for row, values in self.rows(self._paths) if self._paths else ():
            with suppress(InputError):
                _, place = place_of(_path_of(values) or "", self.name)
                if not is_url(place) and os.path.isfile(place):  # noqa: PTH113  (any name)
                    files[self._numbered(row)] = Path(place)
        return files

    def read(self, items: Sequence[SourceItem]) -> Iterator[SourceImage]:
        """Read the images of the row groups that contain one of them."""
        by_row = {int(item.member): item for item in items}
        while by_row:
            try:
                column = self._image_column()
                for row, values in self.rows([column, *self.first_of(_NAME)], by_row):
                    yield by_row.pop(row), self._image(row, values)
                if by_row:
                    raise InputError(f"{self.name!r} has too few rows; restore what was listed")
            except A2Error as error:
                # the rows after a damaged one may be readable
                failed = [min(by_row)] if isinstance(error, InputError) else sorted(by_row)
                for row in failed:
                    yield by_row.pop(row), error

    def rows(
        self, columns: Sequence[str], numbers: Collection[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the values of each row, or of those wanted.

        Raises InputError if the file is not Parquet or is damaged, UnreadableError if reading
        fails.
        """
        with self._opened() as contents:
            row = 0
            for count, batches in contents.groups(columns):
                end = row + count
                if numbers is None or any(row <= number < end for number in numbers):
                    values = (value for batch in batches() for value in batch)
                    for number, value in enumerate(values, start=row):
                        if numbers is None or number in numbers:
                            yield number, value
                row = end

    @contextmanager
    def _opened(self) -> Iterator[Contents]:
        arrow = load_pyarrow(self.name)
        with open_file(self.name) as file:
            try:
                is_arrow = self.name.endswith(".arrow")
                yield (_arrow_stream if is_arrow else _parquet_file)(arrow, file, self.name)
            except A2Error:
                raise
            except Exception as error:
                # pyarrow raises an OSError without a number for damage
                is_damage = isinstance(error, (arrow.lib.ArrowException, UnicodeDecodeError))
                if is_damage or getattr(error, "errno", 0) is None:
                    raise self._damaged(error) from error
                raise access_error(self.name, error) from error

    def _damaged(self, reason: object) -> InputError:
        text = " ".join(str(reason).split())
        return InputError(f"cannot read {self.name!r}: {text}; copy the file again")

    def _image_column(self) -> str:
        columns = self.first_of(_IMAGE)
        if not columns:
            raise InputError(
                f"no column {' or '.join(_IMAGE)} in {self.name!r}, it has "
                f"{', '.join(self.columns)}; rename the column of the images"
            )
        return columns[0]

    def _image(self, row: int, values: Mapping[str, object]) -> bytes | A2Error:
        try:
            self.identity(row, values)
            value = next(values[name] for name in _IMAGE if name in values)
            content = value.get("bytes") if isinstance(value, Mapping) else value
            if isinstance(content, bytes):
                is_small = len(content) <= LARGEST_FILE
                return content if is_small else too_large(f"{self.name}/row-{row}")
            if path := _path_of(values):
                return read_file(place_of(path, self.name)[1])
        except InputError as error:
            return error
        return InputError(f"row {row} of {self.name!r} has no image bytes; add them")


def table_files(folder: Path) -> list[Path]:
    """Return the Parquet and Arrow files of a data set below a folder, sorted; none beside images.

    Results of `Dataset.map`, which are in the same folder of the cache, are left out.
    """
    tables: list[Path] = []
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if any(PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES for name in files):
            return []  # metadata.parquet, or results in a folder of images
        tables += [
            Path(top) / name
            for name in files
            if name.endswith(SUFFIXES) and not name.startswith((_RESULT_OF_MAP, "."))
        ]
    return sorted(tables)


def tables_of(folder: Path, files: Sequence[Path]) -> list[Table]:
    """Return the tables of a data set's folder, whose paths in it state the splits.

    Raises InputError if two folders have tables of one split: a cache keeps several data sets, and
    several versions of each.
    """
    places = [file.relative_to(folder).as_posix() for file in files]
    splits = splits_of(places)
    homes: dict[str | None, Path] = {}
    for file, split in zip(files, splits, strict=True):
        if (home := homes.setdefault(split, file.parent)) != file.parent:
            raise InputError(
                f"two folders below {str(folder)!r} have tables of one split: {str(home)!r} and "
                f"{str(file.parent)!r}; name the folder of one data set, or the files, as *.parquet"
            )
    return list(map(Table, map(str, files), places, splits))


def splits_of(places: Sequence[str]) -> list[str | None]:
    """Return the split of each file: the last word of its path that is the name of one.

    No file has a split unless two or more splits are named.
    """
    words = [_SPLIT.findall(place) for place in places]
    splits = [names[-1] if names else None for names in words]
    splits = ["val" if name in ("validation", "valid", "dev") else name for name in splits]
    return splits if len(set(splits) - {None}) > 1 else [None] * len(splits)


def _path_of(values: Mapping[str, object]) -> str | None:
    """Return the path of a row's image, None without one."""
    value = next((values[name] for name in _IMAGE if name in values), None)
    path = value.get("path") if isinstance(value, Mapping) else value
    return path if isinstance(path, str) else None


def _parquet_file(arrow: Any, file: BinaryIO, name: str) -> Contents:
    parquet = arrow.parquet.ParquetFile(file)
    details = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]

    def batches(group: int, columns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        batches_of_group = parquet.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=columns)
        return (batch.to_pylist() for batch in batches_of_group)

    def groups(columns: Sequence[str]) -> Iterator[Group]:
        for number, group in enumerate(details):
            yield group.num_rows, partial(batches, number, columns)

    return Contents(parquet.schema_arrow, groups)


def _arrow_stream(arrow: Any, file: BinaryIO, name: str) -> Contents:
    if is_url(name):
        raise InputError(f"Arrow files are read on this machine only: {name!r}; download the file")
    size = os.fstat(file.fileno()).st_size
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    cut = InputError(f"{name!r} ends early or is no stream of Arrow; copy the file again")
    if mapped[-len(_END_OF_STREAM) :] != _END_OF_STREAM:  # pyarrow takes a cut for the end
        raise cut
    source = arrow.BufferReader(mapped)
    stream = arrow.ipc.open_stream(source)

    def batches(batch: Any, columns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        batch.validate(full=True)
        names = batch.schema.names
        paths = [column.split(".") for column in columns]
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            rows = batch.slice(first, _ROWS_AT_ONCE)
            columns_of_rows = {p[0]: _values(rows.column(names.index(p[0])), p[1:]) for p in paths}
            count = range(rows.num_rows)
            yield [{name: values[row] for name, values in columns_of_rows.items()} for row in count]

    def groups(columns: Sequence[str]) -> Iterator[Group]:
        for batch in stream:
            yield batch.num_rows, partial(batches, batch, columns)
        if source.tell() != size:
            raise cut

    return Contents(stream.schema, groups)


def _values(column: Any, field: Sequence[str]) -> list[Any]:
    """Return the values of a column, or of one field of it, as a struct of that alone."""
    if not field:
        return list(column.to_pylist())
    inner = column.flatten()[column.type.get_field_index(field[0])]
    return [{field[0]: value} for value in inner.to_pylist()]
