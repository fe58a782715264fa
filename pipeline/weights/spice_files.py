"""Download of the files of SPICE.

Every file is checked by size and sha256, whatever its source.
"""

import logging
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from a2cap.data.errors import A2Error
from a2cap.data.files.checksum import sha256_of
from a2cap.pipeline.weights.download import DownloadError, download
from a2cap.pipeline.weights.spice import FILES, RemoteFile, spice_folder

logger = logging.getLogger(__name__)

_RELEASE = "stanford-corenlp-full-2015-12-09"
# plain http, which only the known digests below make safe
ARCHIVE = f"http://nlp.stanford.edu/software/{_RELEASE}.zip"
_MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"


def download_spice(*, source: Path | None = None) -> list[Path]:
    """Download the missing or damaged files into the cache folder and return all of them.

    source: a folder that contains the files; without it, each file comes from Maven Central if mvn
    is installed, or else from Stanford's archive, which has no Rhino. Raises DownloadError with the
    failure of each source.
    """
    folder = spice_folder()
    folder.mkdir(parents=True, exist_ok=True)
    if source is not None:
        sources: list[_Source] = [lambda file, _: source / file.name]
    else:
        sources = [_from_maven, _from_archive] if shutil.which("mvn") else [_from_archive]
    for file in FILES:
        if _problem(folder / file.name, file) is not None:
            _download_file(file, folder / file.name, sources)
    _archive().unlink(missing_ok=True)
    return [folder / file.name for file in FILES]


_Source = Callable[[RemoteFile, Path], Path]
"""A function from a file to the path of its download; the second argument is a temporary folder."""


def _download_file(file: RemoteFile, target: Path, sources: list[_Source]) -> None:
    """Store a file from the first source that provides the expected one."""
    failures = []
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        for source in sources:
            try:
                download = source(file, Path(name))
                if problem := _problem(download, file):
                    raise DownloadError(problem)
            except A2Error as error:
                logger.info("%s", error)
                failures.append(str(error))
            else:
                # copied, not moved: a named source folder stays as it is
                shutil.copyfile(download, Path(name) / "complete").replace(target)
                return
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
        # mvn prints its errors to stdout, among pages of advice
        lines = [line for line in finished.stdout.splitlines() if "ERROR" in line]
        why = lines[0].removeprefix("[ERROR] ") if lines else f"exit code {finished.returncode}"
        raise DownloadError(
            f"mvn cannot download {file.maven}: {why:.200}; run mvn by hand to see why"
        )
    return temporary / file.name


def _from_archive(file: RemoteFile, temporary: Path) -> Path:
    if not file.in_archive:
        raise DownloadError(
            f"{file.name} comes from Maven Central alone; install mvn, or name a folder that "
            "contains the files with --from"
        )
    download(ARCHIVE, _archive())
    try:
        with zipfile.ZipFile(_archive()) as opened:
            member = opened.getinfo(f"{_RELEASE}/{file.name}")
            if member.file_size != file.size:  # before it can fill the disk
                raise zipfile.BadZipFile(f"{member.file_size:,} bytes, expected {file.size:,}")
            extracted = Path(opened.extract(member, temporary))
    except (zipfile.BadZipFile, KeyError) as error:
        _archive().unlink()
        raise DownloadError(
            f"{ARCHIVE} is not an archive that contains {file.name} ({error}); "
            "name a folder that contains the files with --from"
        ) from error
    if _problem(extracted, file):
        _archive().unlink()  # else every further try would find the same wrong archive
    return extracted


def _archive() -> Path:
    # not in a temporary folder, because the next file comes from the same archive
    return spice_folder() / f"{_RELEASE}.zip"


def _problem(path: Path, file: RemoteFile) -> str | None:
    """Describe how a file differs from the expected one; None if it is intact."""
    if not path.is_file():
        return f"no file {str(path)!r}; name a folder that contains it with --from"
    size = path.stat().st_size
    if size != file.size:
        return f"{str(path)!r} has {size:,} bytes, expected {file.size:,}; download it again"
    digest = sha256_of(path)
    if digest != file.sha256:
        return (
            f"sha256 of {str(path)!r} is {digest}, expected {file.sha256}; "
            "download it from another source"
        )
    return None
