"""Opening of image sources: the text that names one decides which it is."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from a2cap.data.errors import InputError
from a2cap.data.files.paths import did_you_mean
from a2cap.data.image_ids import sample_ids
from a2cap.data.sources.folder import Folder, ImageList
from a2cap.data.sources.location import as_url, exists, expand, is_folder, is_url, matching
from a2cap.data.sources.parquet import SUFFIXES, Table, table_files, tables_of
from a2cap.data.sources.source import ImageContainer, ImageSource
from a2cap.data.sources.tar import Tar

_BY_SUFFIX: dict[str, Callable[[str], ImageContainer]] = {
    ".tar": Tar,
    **dict.fromkeys(SUFFIXES, Table),
    ".txt": ImageList,
}


def open_source(text: str) -> ImageSource:
    """Open a list (.txt), tars, Parquet or Arrow files, or a folder behind a URL.

    shard-{000..127}.tar names 128 files, and data/*.parquet all that there are, in order of their
    names; a folder with such files and without images is a data set of `datasets`. Raises
    InputError if one is missing, naming it, or is of another kind.
    """
    text = as_url(text)
    if Path(text).is_dir():  # whose name may contain braces
        return ImageSource(text, tables_of(Path(text), table_files(Path(text))))
    names = [name for pattern in expand(text) for name in matching(pattern)]
    if not names:
        raise InputError(f"no file matches {text!r}; check the pattern")
    if missing := [name for name in names if not exists(name)]:
        # beside a missing shard are the other ones
        near = did_you_mean(Path(text)) if names == [text] and not is_url(text) else ""
        raise InputError(
            f"{len(missing)} of {len(names)} files of {text!r} are missing: "
            f"{sample_ids(missing)}; check the path{near}"
        )
    return ImageSource(text, [_container(name) for name in names])


def is_source(path: Path | None) -> bool:
    """Return True for tars, Parquet or Arrow files, a folder of these tables, or a URL."""
    text = as_url(str(path or ""))
    if path is not None and path.is_dir():
        return bool(table_files(path))
    return "://" in text or PurePosixPath(text).suffix in (".tar", *SUFFIXES)


def image_source(path: Path | None) -> str | None:
    """Return data.images if it names tars, tables, a list or a URL; None for a folder of images."""
    is_list = path is not None and path.suffix == ".txt"
    return as_url(str(path)) if is_list or is_source(path) else None


def _container(name: str) -> ImageContainer:
    kind = _BY_SUFFIX.get(PurePosixPath(name).suffix)
    if kind is not None:
        return kind(name)
    if is_folder(name):
        return Folder(name)
    raise InputError(
        f"{name!r} is not a list (.txt), a tar (.tar), a table (.parquet, .arrow) or a folder "
        "behind a URL; name one of these"
    )
