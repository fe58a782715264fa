"""A data file of a feature store as a tar: `IMAGE.safetensors` in order of the keys.

The checksum of a record is in its header, so that any reader of safetensors reads the members.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from a2cap.data.features.record import CHECKSUM, Record
from a2cap.data.features.seal import StoreSeal, damage_error

_SUFFIX = ".safetensors"
_CRC = "A2.crc32"


def write_tar(path: Path, records: Iterable[Record]) -> None:
    """Write records in order of their keys."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for key, value in records:
            body = bytes(value[: -CHECKSUM.size])
            member = tarfile.TarInfo(bytes(key).decode() + _SUFFIX)
            member.size = len(body)
            member.pax_headers = {_CRC: bytes(value[-CHECKSUM.size :]).hex()}
            tar.addfile(member, io.BytesIO(body))


class TarFile:
    """The records in a tar, by key; the file is open only while it is read."""

    def __init__(self, path: Path, seal: StoreSeal) -> None:
        self.path = path
        self.seal = seal

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None if it is missing."""
        if key not in self._members:
            return None
        offset, size, checksum = self._members[key]
        with self.seal.data_file(self.path).open("rb") as file:
            file.seek(offset)
            return file.read(size) + checksum

    def __contains__(self, key: bytes) -> bool:
        return key in self._members

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def records(self) -> Iterator[Record]:
        """Yield all records in key order."""
        for key in self._members:
            yield memoryview(key), memoryview(self.get(key) or b"")

    def close(self) -> None:
        """Do nothing: the file is closed after each read."""

    @cached_property
    def _members(self) -> dict[bytes, tuple[int, int, bytes]]:
        """Offset, size and checksum by key."""
        try:
            with tarfile.open(self.seal.data_file(self.path), "r:") as tar:
                found = {
                    member.name.removesuffix(_SUFFIX).encode(): (
                        member.offset_data,
                        member.size,
                        bytes.fromhex(member.pax_headers[_CRC]),
                    )
                    for member in tar
                }
        except (tarfile.TarError, LookupError, ValueError) as error:
            raise damage_error(self.path, error) from error
        # tarfile takes a damaged header for the end
        if len(found) != self.seal.count:
            raise damage_error(self.path, f"it holds {len(found)} of {self.seal.count} records")
        return found
