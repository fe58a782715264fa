"""Files of region features that a path names: a file, a folder, or a pattern of several."""

import glob
from pathlib import Path


def source_files(path: Path) -> dict[str, Path]:
    """Return the files that are read for a path, by name: of a file, a folder or a glob."""
    files = {}
    for number, source in enumerate([path] if path.exists() else matches(path)):
        start, prefix = (path, "") if source == path else (source.parent, f"{number}/")
        index = index_file(source)
        for file in (source, *sorted(source.rglob("*")), *([] if index is None else [index])):
            if file.is_file():
                name = file.name if file == index else file.relative_to(start).as_posix()
                files[f"{prefix}{name}"] = file
    return files


def matches(pattern: Path) -> list[Path]:
    """Return the files and folders that a pattern fits, sorted."""
    return [Path(name) for name in sorted(glob.glob(str(pattern)))]  # noqa: PTH207


def index_file(path: Path) -> Path | None:
    """Return the pickle of rows by image id that BAN keeps beside a file: train36_imgid2idx.pkl."""
    names = (path.stem, path.stem.rstrip("0123456789"))
    files = [path.with_name(f"{name}_imgid2idx.pkl") for name in names]
    return next((file for file in files if file.is_file()), None)
