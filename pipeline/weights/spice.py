"""Files that a2 can fetch by name: what they are, where from, and that they are the right ones.

Each is checked by size and sha256 wherever it comes from, and kept in the cache folder.
"""

import hashlib
import logging
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from a2cap.data.errors import A2Error
from a2cap.data.files.cache import cache_folder
from a2cap.pipeline.weights.download import DownloadError, download

logger = logging.getLogger(__name__)

_MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"


@dataclass(frozen=True)
class FetchedFile:
    """A file and how to know it; maven: its coordinates, group:artifact:version[:type:class]."""

    name: str
    size: int
    sha256: str
    maven: str


@dataclass(frozen=True)
class Download:
    """Files that belong together. archive: address of a zip whose `folder` holds them all."""

    purpose: str
    archive: str
    folder: str
    files: tuple[FetchedFile, ...]


DOWNLOADS: Mapping[str, Download] = {
    "spice": Download(
        purpose="Stanford CoreNLP 3.6.0 and its models, which SPICE parses captions with",
        archive="http://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip",
        folder="stanford-corenlp-full-2015-12-09",
        files=(
            FetchedFile(
                "stanford-corenlp-3.6.0.jar",
                7_270_741,
                "d341d5863276f55782c5ef73212222d6b3b48e02ae1951ab6de7618d28b12742",
                "edu.stanford.nlp:stanford-corenlp:3.6.0",
            ),
            FetchedFile(
                "stanford-corenlp-3.6.0-models.jar",
                378_116_526,
                "d285157bd7887ee3018094b5dbae092e49088b023361ccdb550ee1daf9b2c9bd",
                "edu.stanford.nlp:stanford-corenlp:3.6.0:jar:models",
            ),
        ),
    ),
}
"""Name -> what it is. The digests are those of Maven Central's files, which pycocoevalcap's own
download is expected to equal."""


def folder_of(name: str) -> Path:
    """Where the files of a download are kept."""
    return cache_folder() / "weights" / name


def fetched_files(name: str) -> list[Path] | None:
    """The files of a download, or None where one is missing or has another size.

    Digests are checked when files are fetched; to read 400 MB before each use would cost seconds.
    """
    folder = folder_of(name)
    found = []
    for file in DOWNLOADS[name].files:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            return None
        found.append(path)
    return found


def fetch(name: str, *, source: Path | None = None) -> list[Path]:
    """Brings the files of a download into the cache folder; those that are there stay.

    source: a folder that holds them; without it, mvn is asked where there is one, then the archive
    is downloaded. Raises DownloadError that names what each way failed of.
    """
    wanted = DOWNLOADS[name]
    folder = folder_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    missing = [file for file in wanted.files if not _is(folder / file.name, file)]
    ways: list[Callable[[FetchedFile, Path], Path]]
    if source is not None:
        ways = [lambda file, _: source / file.name]
    else:
        ways = [_by_mvn] if shutil.which("mvn") else []
        ways.append(lambda file, place: _from_archive(wanted, file, place, folder))
    for file in missing:
        _bring(file, folder, ways)
    (folder / _archive_name(wanted)).unlink(missing_ok=True)
    return [folder / file.name for file in wanted.files]


def _bring(
    file: FetchedFile, folder: Path, ways: list[Callable[[FetchedFile, Path], Path]]
) -> None:
    """The file by the first way that gives the right one."""
    failures = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for way in ways:
            try:
                found = way(file, Path(place))
                _require(found, file)
                whole = Path(place) / "whole"
                shutil.copyfile(found, whole)
                whole.replace(folder / file.name)
                return
            except A2Error as error:
                logger.info("%s", error)
                failures.append(str(error))
    raise DownloadError("; ".join(failures))


def _by_mvn(file: FetchedFile, place: Path) -> Path:
    logger.info("%s: asking mvn for %s", file.name, file.maven)
    finished = subprocess.run(
        [
            *("mvn", "-q", "-B", f"-Dmaven.repo.local={place / 'repository'}", _MAVEN_COPY),
            *(f"-Dartifact={file.maven}", f"-DoutputDirectory={place}"),
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
            f"mvn cannot fetch {file.maven}: {why:.200}; run mvn by hand to see why"
        )
    return place / file.name


def _from_archive(wanted: Download, file: FetchedFile, place: Path, folder: Path) -> Path:
    archive = folder / _archive_name(wanted)
    download(wanted.archive, archive)
    try:
        with zipfile.ZipFile(archive) as opened:
            found = Path(opened.extract(f"{wanted.folder}/{file.name}", place))
        _require(found, file)
        return found
    except DownloadError:
        archive.unlink()
        raise
    except (zipfile.BadZipFile, KeyError) as error:
        archive.unlink()
        raise DownloadError(
            f"{wanted.archive} is no archive with {file.name} in it ({error}); "
            "name a folder that holds the files with --from"
        ) from error


def _archive_name(wanted: Download) -> str:
    return wanted.archive.rpartition("/")[2]


def _is(path: Path, file: FetchedFile) -> bool:
    try:
        _require(path, file)
    except DownloadError:
        return False
    return True


def _require(path: Path, file: FetchedFile) -> None:
    if not path.is_file():
        raise DownloadError(f"no file {str(path)!r}; name a folder that holds it with --from")
    size = path.stat().st_size
    if size != file.size:
        raise DownloadError(
            f"{str(path)!r} has {size:,} bytes, {file.size:,} are right; fetch it again"
        )
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != file.sha256:
        raise DownloadError(
            f"sha256 of {str(path)!r} is {digest}, {file.sha256} is right; fetch it from elsewhere"
        )
