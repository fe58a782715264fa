"""The reader of a finished feature store, in one data file or in shards."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from pathlib import Path

from a2cap.data.errors import StoreError
from a2cap.data.features.feature_file import FeatureFile, open_file, verify_file
from a2cap.data.features.record import Record, decode_regions, record_key
from a2cap.data.features.seal import StoreSeal, logical_digest, read_seal
from a2cap.data.features.shard import Shard, complete_shards, owner
from a2cap.data.regions import Regions

_NAMED_MISSING = 5


class FeatureStore:
    """The regions of every image of a sealed store by image id, in key order.

    Raises StoreError if there is no store at `path`, its extraction is unfinished, or shards are
    missing or were not sealed together.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        shards = complete_shards(path)
        self.seal = read_seal(path)
        self._files = _open_files(path, self.seal, shards)

    @property
    def feature_width(self) -> int:
        """F, the features per region."""
        return self.seal.feature_width

    @property
    def digest(self) -> str:
        """sha256 of the records: equal for stores of equal content, in shards or not."""
        return self.seal.digest

    def __getitem__(self, image_id: str) -> Regions:
        key = record_key(image_id)
        for file in self._candidates(image_id):
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
        return any(key in file for file in self._candidates(str(image_id)))

    def __len__(self) -> int:
        return self.seal.count

    def __iter__(self) -> Iterator[str]:
        return map(bytes.decode, merge(*map(iter, self._files)))

    def part_of(self, image_id: str) -> int:
        """Return the number of the data file that contains an image; 0 if none does."""
        key = record_key(image_id)
        return next((number for number, file in enumerate(self._files) if key in file), 0)

    def require(self, image_ids: Iterable[str]) -> None:
        """Raise StoreError, naming the first few, unless every image has features."""
        stored = set(self)
        missing = [image_id for image_id in image_ids if image_id not in stored]
        if missing:
            named = ", ".join(map(repr, missing[:_NAMED_MISSING]))
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
        """Return the problems found; with `data`, read every byte."""
        problems = [problem for file in self._files for problem in verify_file(file, data)]
        if problems or len(self._files) == 1:
            return problems
        count = sum(file.seal.count for file in self._files)
        if count != len(self):
            problems.append(self._problem(f"have {count} images, their seal {len(self)}"))
        if data and logical_digest(merge_records(self._files)) != self.digest:
            problems.append(self._problem("contain other records than were sealed"))
        return problems

    def _problem(self, what: str) -> str:
        return f'shards of {str(self.path)!r} {what}; run "a2 extract --force"'

    def _candidates(self, image_id: str) -> list[FeatureFile]:
        """Return the files that may contain an image, the most likely first."""
        # with given boxes an image can be in another shard: that of its batch
        first = owner(image_id, len(self._files))
        return self._files[first:] + self._files[:first]


def merge_records(files: Iterable[FeatureFile]) -> Iterator[Record]:
    """Merge the records of several files in key order, each valid until the next one."""
    # as bytes, because memoryviews cannot be ordered
    return merge(*(file.records() for file in files), key=lambda record: bytes(record[0]))


def _open_files(path: Path, seal: StoreSeal, shards: Sequence[Shard]) -> list[FeatureFile]:
    if len(shards) != len(seal.shards):
        raise StoreError(
            f"{str(path)!r} has {len(shards)} shards, its seal {len(seal.shards)}; "
            'copy it again, or run "a2 extract --force"'
        )
    if not shards:
        return [open_file(path)]
    files = [open_file(path / shard.folder) for shard in shards]
    for file, digest in zip(files, seal.shards, strict=True):
        if file.seal.digest != digest:
            raise StoreError(
                f"{str(file.path)!r} is not the shard that was sealed with the others; "
                'copy it again, or run "a2 extract --force"'
            )
    return files
