"""The parser of SPICE and its models in the cache folder."""

from dataclasses import dataclass
from pathlib import Path

from a2cap.data.files.cache import cache_folder

SPICE, PURPOSE = "spice", "Stanford CoreNLP 3.6.0 and its models, which SPICE parses captions with"


@dataclass(frozen=True)
class RemoteFile:
    """A file to download; maven: its coordinates, group:artifact:version[:type:class]."""

    name: str
    size: int
    sha256: str
    maven: str


# the digests are those of Maven Central; the archive is expected to contain the same files
FILES = (
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
)


def spice_folder() -> Path:
    """Return the cache folder of the files."""
    return cache_folder() / "weights" / SPICE


def downloaded_spice() -> list[Path] | None:
    """Return the downloaded files, None if one is missing or has another size."""
    paths = [spice_folder() / file.name for file in FILES]
    # digests were checked at the download: reading 400 MB before each use would take seconds
    sizes = [path.stat().st_size if path.is_file() else None for path in paths]
    return paths if sizes == [file.size for file in FILES] else None
