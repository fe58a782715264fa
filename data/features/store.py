"""Reading a finished feature store: image id -> regions, from one data file or from shards."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from pathlib import Path

from a2cap.data.errors import StoreError
from a2cap.data.features.lmdb_file import FeatureFile, Record
from a2cap.data.features.record import FeatureType, decode_regions, record_key
from a2cap.data.features.seal import StoreSeal, logical_digest, read_seal
from a2cap.data.features.shard import Shard, complete_shards, owner
from a2cap.data.regions import Regions

_NAMED_MISSING = 5


class FeatureStore:
    """The regions of every image of a sealed store, by image id; iteration is in key order.

    StoreError where there is no store at `path`, its extraction is unfinished, or shards are
    missing or not those that were sealed together.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        shards = complete_shards(path)
        self.seal: StoreSeal = read_seal(path)
        self._files = _files(path, self.seal, shards)

    @property
    def feature_width(self) -> int:
        """F, the numbers per region."""
        return self.seal.feature_width

    @property
    def dtype(self) -> FeatureType:
        """Type in which features are stored, and read."""
        return self.seal.dtype

    @property
    def digest(self) -> str:
        """sha256 over the records: equal for stores of equal content, in shards or not."""
        return self.seal.digest

    def __getitem__(self, image_id: str) -> Regions:
        key = record_key(image_id)
        for file in self._likeliest_first(image_id):
            record = file.get(key)
            if record is not None:
                return decode_regions(record, image_id)
        raise StoreError(
            f'no features for image {image_id!r} in {str(self.path)!r}; run "a2 extract" first'
        )

    def __contains__(self, image_id: object) -> bool:
        try:
            key = record_key(str(image_id))
        except StoreError:
            return False
        return any(key in file for file in self._likeliest_first(str(image_id)))

    def __len__(self) -> int:
        return self.seal.count

    def __iter__(self) -> Iterator[str]:
        return map(bytes.decode, merge(*map(iter, self._files)))

    def require(self, image_ids: Iterable[str]) -> None:
        """StoreError, naming the first few, unless every image has features."""
        stored = set(self)
        missing = [image_id for image_id in image_ids if image_id not in stored]
        if missing:
            named = ", ".join(repr(image_id) for image_id in missing[:_NAMED_MISSING])
            more = ", …" if len(missing) > _NAMED_MISSING else ""
            raise StoreError(
                f"no features for {len(missing)} images in {str(self.path)!r}: {named}{more}; "
                'run "a2 extract" first'
            )

    def require_width(self, expected: int) -> None:
        """Raise StoreError unless regions are as wide as those that a model was trained on."""
        if self.feature_width != expected:
            raise StoreError(
                f"region width of {str(self.path)!r} is {self.feature_width}, the model expects "
                f"{expected}; retrain, or extract with the checkpoint that it was trained on"
            )

    def verify(self, data: bool = False) -> list[str]:
        """Problems found, none for a sound store; with `data`, every byte is read."""
        problems = [problem for file in self._files for problem in file.verify(data)]
        if problems or len(self._files) == 1:
            return problems
        count = sum(file.seal.count for file in self._files)
        if count != len(self):
            problems.append(self._differs(f"hold {count} images, their seal says {len(self)}"))
        if data and logical_digest(merged_records(self._files)) != self.digest:
            problems.append(self._differs("hold other records than were sealed"))
        return problems

    def _differs(self, how: str) -> str:
        return f'shards of {str(self.path)!r} {how}; run "a2 extract --force"'

    def _likeliest_first(self, image_id: str) -> list[FeatureFile]:
        """All files, that of the shard which owns the image first.

        Where boxes are given, an image may lie in another shard: that of its group.
        """
        if len(self._files) == 1:
            return self._files
        first = owner(image_id, len(self._files))
        return self._files[first:] + self._files[:first]


def merged_records(files: Iterable[FeatureFile]) -> Iterator[Record]:
    """The records of several files in key order, each valid until the next is taken."""
    return merge(*(file.records() for file in files), key=lambda record: bytes(record[0]))


def _files(path: Path, seal: StoreSeal, shards: Sequence[Shard]) -> list[FeatureFile]:
    if len(shards) != len(seal.shards):
        raise StoreError(
            f"{str(path)!r} holds {len(shards)} shards, its seal says {len(seal.shards)}; "
            'copy it again, or run "a2 extract --force"'
        )
    if not shards:
        return [FeatureFile(path, seal)]
    files = [FeatureFile(path / shard.folder, read_seal(path / shard.folder)) for shard in shards]
    for file, digest in zip(files, seal.shards, strict=True):
        if file.seal.digest != digest:
            raise StoreError(
                f"{str(file.path)!r} is not the shard that was sealed with the others; "
                'copy it again, or run "a2 extract --force"'
            )
    return files
