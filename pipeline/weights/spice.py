"""The parser of SPICE, its models and a JavaScript engine in the cache folder."""

from dataclasses import dataclass
from pathlib import Path

from a2cap.data.files.cache import cache_folder

SPICE = "spice"
PURPOSE = "Stanford CoreNLP 3.6.0, its models and Rhino 1.7.15, with which SPICE runs"


@dataclass(frozen=True)
class RemoteFile:
    """A file to download; maven: its coordinates, group:artifact:version[:type:class].

    in_archive: False if it is not in Stanford's archive.
    """

    name: str
    size: int
    sha256: str
    maven: str
    in_archive: bool = True


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
    RemoteFile(
        "rhino-1.7.15.jar",
        1_407_735,
        "2427fdcbc149ca0a25ccfbb7c71b01f39ad42708773a47816cd2342861766b63",
        "org.mozilla:rhino:1.7.15",
        in_archive=False,
    ),
    RemoteFile(
        "rhino-engine-1.7.15.jar",
        19_604,
        "b7bbb6724812a8ba6c650cf4a1e655a24af4d73a321add5a64a54c2d5963ce00",
        "org.mozilla:rhino-engine:1.7.15",
        in_archive=False,
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
