"""Shards of a feature store, which several processes or machines fill independently.

The shard of an image is the sha256 of its id modulo the number of shards, so that every process
finds its part without communication. Shards are in folders such as `shard-00003-of-00008`.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from a2cap.data.errors import ConfigError, StoreError

_TEXT = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)
_FOLDER = re.compile(r"shard-(\d{5,9})-of-(\d{5,9})", re.ASCII)


@dataclass(frozen=True, order=True)
class Shard:
    """Shard `number`, counted from 0, of `count`."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse i/N; raise ConfigError unless i is from 0 to N - 1."""
        found = _TEXT.fullmatch(text)
        shard = cls(*map(int, found.groups())) if found else None
        if shard is None or shard.number >= shard.count:
            raise ConfigError(f"shard is {text!r}; write i/N with i from 0 to N - 1, such as 0/4")
        return shard

    @classmethod
    def of_folder(cls, name: str) -> Self | None:
        """Return the shard of a folder by its name, None if it is not the folder of a shard."""
        found = _FOLDER.fullmatch(name)
        return cls(*map(int, found.groups())) if found else None

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def folder(self) -> str:
        """Name of the folder in the store."""
        return f"shard-{self.number:05}-of-{self.count:05}"

    def owns(self, image_id: str) -> bool:
        """Return True if an image belongs to this shard; it belongs to exactly one."""
        return owner(image_id, self.count) == self.number


def owner(image_id: str, count: int) -> int:
    """Return the number of the shard, of `count`, to which an image belongs."""
    # sha256, because hash() of a string differs between processes
    return int.from_bytes(hashlib.sha256(image_id.encode()).digest()) % count


def shards_in(store: Path) -> list[Shard]:
    """Return the shards whose folders are in `store`, finished or not, in order."""
    if not store.is_dir():
        return []
    found = (Shard.of_folder(path.name) for path in store.iterdir())
    return sorted(shard for shard in found if shard is not None)


def complete_shards(store: Path) -> list[Shard]:
    """Return all shards of a store in order, an empty list if it has none.

    Raises StoreError, naming the shards, if some are missing or overlap.
    """
    shards = shards_in(store)
    counts = sorted({shard.count for shard in shards})
    if len(counts) > 1:
        raise StoreError(
            f"{str(store)!r} contains shards of {' and of '.join(map(str, counts))}, "
            "which overlap; keep the shards of one number"
        )
    expected = [Shard(number, count) for count in counts for number in range(count)]
    missing = [str(shard) for shard in expected if shard not in shards]
    if missing:
        raise StoreError(
            f"shards {', '.join(missing)} of {str(store)!r} are missing; "
            'copy them there, or run "a2 extract --shard" for each'
        )
    return shards
