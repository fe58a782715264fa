"""Region features as a tar: `IMAGE.safetensors` in order of the image ids, readable without a2.

The checksum of a record is in its header, so that any reader of safetensors reads the members.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.features.feature_record import CHECKSUM_SIZE, Record, decode_regions
from a2cap.data.features.formats.feature_format import ImageFeatures, Reading, skipped_item
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.regions import Regions

_SUFFIX = ".safetensors"
_CHECKSUM = "A2.xxh3_64"


def write_tar(path: Path, records: Iterable[Record]) -> None:
    """Write records in order of their keys."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for key, value in records:
            body = bytes(value[:-CHECKSUM_SIZE])
            member = tarfile.TarInfo(bytes(key).decode() + _SUFFIX)
            member.size = len(body)
            member.pax_headers = {_CHECKSUM: bytes(value[-CHECKSUM_SIZE:]).hex()}
            tar.addfile(member, io.BytesIO(body))


class TarSource:
    """The images of a tar that `write_tar` wrote."""

    title = "tar of a2"

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path, self._ids = path, reading.own_id
        self._members = list(self._read_headers())

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        with self._path.open("rb") as file:
            for member in self._members:
                file.seek(member.offset_data)
                body = file.read(member.size)
                name = member.name.removesuffix(_SUFFIX)
                try:
                    yield ImageFeatures(self._ids(name), _regions(member, body, name))
                except Exception as error:  # of damaged records, several types
                    yield skipped_item(self._ids(name), error)

    def _read_headers(self) -> Iterator[tarfile.TarInfo]:
        try:
            with tarfile.open(self._path, "r:") as tar:
                yield from tar
                # tarfile takes a damaged header, and a cut between members, for the end
                with self._path.open("rb") as file:
                    file.seek(tar.offset)
                    is_whole = file.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
        except tarfile.TarError as error:
            raise InputError(f"cannot read {str(self._path)!r}: {error}; copy it again") from error
        if not is_whole:
            raise InputError(f"tar {str(self._path)!r} ends early; copy it again")


def _regions(member: tarfile.TarInfo, body: bytes, name: str) -> Regions:
    return decode_regions(body + bytes.fromhex(member.pax_headers[_CHECKSUM]), name)
