"""The parser of SPICE and its models, downloaded into the cache folder.

Every file is checked by size and sha256, whatever its source.
"""

import logging
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from a2cap.data.errors import A2Error
from a2cap.data.files.cache import cache_folder
from a2cap.data.files.checksum import sha256_of
from a2cap.pipeline.weights.download import DownloadError, download

logger = logging.getLogger(__name__)

_MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"


@dataclass(frozen=True)
class RemoteFile:
    """A file to download; maven: its coordinates, group:artifact:version[:type:class]."""

    name: str
    size: int
    sha256: str
    maven: str


@dataclass(frozen=True)
class Download:
    """A set of files; archive: URL of a zip file that contains them in `folder`."""

    purpose: str
    archive: str
    folder: str
    files: tuple[RemoteFile, ...]


_Source = Callable[[RemoteFile, Path], Path]
"""A function from a file to the path of its download; the second argument is a temporary folder."""

DOWNLOADS: Mapping[str, Download] = {
    "spice": Download(
        purpose="Stanford CoreNLP 3.6.0 and its models, which SPICE parses captions with",
        archive="http://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip",
        folder="stanford-corenlp-full-2015-12-09",
        files=(
            RemoteFile(
                "stanford-corenlp-3.6.0.jar",
                7_270_741,
                "d341d5863276f55782c5ef73212222d6b3b48e02ae1951ab6de7618d28b12742",
                "edu.stanford.nlp:stanford-corenlp:3.6.0",
            ),
            RemoteFile(
                "stanford-corenlp-3.6.0-models.jar",
                378_116_526,
                "d285157bd7887ee3018094b5dbae092e49088b023361ccdb550ee1daf9b2c9bd",
                "edu.stanford.nlp:stanford-corenlp:3.6.0:jar:models",
            ),
        ),
    ),
}
"""Downloads by name. The digests are those of the files on Maven Central; the archive is expected
to contain the same files."""


def folder_of(name: str) -> Path:
    """Return the cache folder of a download."""
    return cache_folder() / "weights" / name


def downloaded_files(name: str) -> list[Path] | None:
    """Return the files of a download, None if one is missing or has another size."""
    folder = folder_of(name)
    # digests were checked at the download: reading 400 MB before each use would take seconds
    found = []
    for file in DOWNLOADS[name].files:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            return None
        found.append(path)
    return found


def download_files(name: str, *, source: Path | None = None) -> list[Path]:
    """Download the missing or damaged files of `name` into the cache folder and return all of them.

    source: a folder that contains the files; without it, each file comes from Maven Central if mvn
    is installed, or else from the archive. Raises DownloadError with the failure of each source.
    """
    wanted = DOWNLOADS[name]
    folder = folder_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    for file in wanted.files:
        if not _is_intact(folder / file.name, file):
            _download_file(file, folder, _sources(wanted, folder, source))
    (folder / _archive_name(wanted)).unlink(missing_ok=True)
    return [folder / file.name for file in wanted.files]


def _sources(wanted: Download, folder: Path, source: Path | None) -> list[_Source]:
    if source is not None:
        return [lambda file, _: source / file.name]
    archive = partial(_from_archive, wanted, folder)
    return [_from_maven, archive] if shutil.which("mvn") else [archive]


def _download_file(file: RemoteFile, folder: Path, sources: list[_Source]) -> None:
    """Store a file from the first source that provides the expected one."""
    failures = []
    with tempfile.TemporaryDirectory(dir=folder) as name:
        temporary = Path(name)
        for source in sources:
            try:
                found = source(file, temporary)
                _require(found, file)
                shutil.copyfile(found, temporary / "complete")
                (temporary / "complete").replace(folder / file.name)
                return
            except A2Error as error:
                logger.info("%s", error)
                failures.append(str(error))
    raise DownloadError("; ".join(failures))


def _from_maven(file: RemoteFile, temporary: Path) -> Path:
    logger.info("%s: asking mvn for %s", file.name, file.maven)
    # a separate local repository, so that the user's ~/.m2 is neither read nor changed
    finished = subprocess.run(
        [
            *("mvn", "-q", "-B", f"-Dmaven.repo.local={temporary / 'repository'}", _MAVEN_COPY),
            *(f"-Dartifact={file.maven}", f"-DoutputDirectory={temporary}"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        lines = [line for line in finished.stdout.splitlines() if "ERROR" in line]
        why = lines[0].removeprefix("[ERROR] ") if lines else f"exit code {finished.returncode}"
        raise DownloadError(
            f"mvn cannot download {file.maven}: {why:.200}; run mvn by hand to see why"
        )
    return temporary / file.name


def _from_archive(wanted: Download, folder: Path, file: RemoteFile, temporary: Path) -> Path:
    # not in the temporary folder, because the next file comes from the same archive
    archive = folder / _archive_name(wanted)
    download(wanted.archive, archive)
    try:
        with zipfile.ZipFile(archive) as opened:
            found = Path(opened.extract(f"{wanted.folder}/{file.name}", temporary))
        _require(found, file)
        return found
    except DownloadError:
        archive.unlink()
        raise
    except (zipfile.BadZipFile, KeyError) as error:
        archive.unlink()
        raise DownloadError(
            f"{wanted.archive} is not an archive that contains {file.name} ({error}); "
            "name a folder that contains the files with --from"
        ) from error


def _archive_name(wanted: Download) -> str:
    return wanted.archive.rpartition("/")[2]


def _is_intact(path: Path, file: RemoteFile) -> bool:
    try:
        _require(path, file)
    except DownloadError:
        return False
    return True


def _require(path: Path, file: RemoteFile) -> None:
    """Raise DownloadError unless a file has the expected size and sha256."""
    if not path.is_file():
        raise DownloadError(f"no file {str(path)!r}; name a folder that contains it with --from")
    size = path.stat().st_size
    if size != file.size:
        raise DownloadError(
            f"{str(path)!r} has {size:,} bytes, expected {file.size:,}; download it again"
        )
    digest = sha256_of(path)
    if digest != file.sha256:
        raise DownloadError(
            f"sha256 of {str(path)!r} is {digest}, expected {file.sha256}; "
            "download it from another source"
        )
