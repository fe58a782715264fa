"""Region features as a tar: `IMAGE.safetensors` in order of the image ids, readable without a2.

The checksum of a record is in its header, so that any reader of safetensors reads the members.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.features.feature_record import CHECKSUM_SIZE, Record, decode_regions
from a2cap.data.features.formats.feature_format import Ids, ImageFeatures, read_or_skip
from a2cap.data.files.sealed_folder import SkippedItem

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

    def __init__(self, path: Path, ids: Ids = str) -> None:
        self._path, self._ids = path, ids
        self._members = list(self._read_headers())

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        with self._path.open("rb") as file:
            for member in self._members:
                file.seek(member.offset_data)
                body = file.read(member.size)
                yield read_or_skip(member.name, partial(_image, member, body, self._ids))

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


def _image(member: tarfile.TarInfo, body: bytes, ids: Ids) -> ImageFeatures:
    image_id = member.name.removesuffix(_SUFFIX)
    checksum = bytes.fromhex(member.pax_headers[_CHECKSUM])
    return ImageFeatures(ids(image_id), decode_regions(body + checksum, image_id))
