"""Region features of another program, as `data.features` names them."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_source import ImageFeatures, ReadHints
from a2cap.data.features.source_files import source_files
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.store_manifest import is_store
from a2cap.data.files.sealed_folder import MANIFEST, read_manifest
from a2cap.data.identities import NO_OWN_IDS, Identities, KeyReader
from a2cap.data.image_ids import find_images
from a2cap.extract.extract_config import ExtractConfig
from a2cap.pipeline.engine.artifact_names import EXTRACTOR, FEATURES, WEIGHTS

OWN_IDS = "own_ids"
"""Field of the key of features that were linked with ids of annotations."""

_TRIED = 20
"""Images of a file among which one has to be readable."""


@dataclass(frozen=True)
class ImportedFeatures:
    """Region features to import.

    path: a store, the result of `a2 extract`, or what `a2 convert` reads.
    sizes: image folder or COCO file, for formats without image sizes.
    image_ids: the images that need features.
    identities: ids that the annotations give them.
    """

    path: Path
    sizes: Path | None
    image_ids: Collection[str]
    config: ExtractConfig
    identities: Identities = NO_OWN_IDS

    @property
    def source(self) -> Path:
        """The store or file: `path`, or the store inside a result of `a2 extract`."""
        inside = self.path / FEATURES
        return inside if inside.is_dir() else self.path

    @property
    def is_result(self) -> bool:
        """True for a store in a result of `a2 extract`."""
        return is_store(self.source) and (self.source.parent / MANIFEST).is_file()

    @property
    def names_files(self) -> bool:
        """True for a store whose ids are those of files: extracted from them, or linked."""
        beside = self.source.parent
        return self.is_result and (
            (beside / WEIGHTS).is_file() or OWN_IDS in read_manifest(beside).origin.fields
        )

    def names(self) -> KeyReader | None:
        """Return how names of images are read, None if each is that of a file."""
        is_read = bool(self.identities) or self.identities.rule == "path"
        if not is_read or self.names_files:
            return None
        return self.identities.reader(f"the features of {str(self.path)!r}")

    def files(self) -> dict[str, Path]:
        """Return the files that determine the result, by name."""
        source = self.source
        if is_store(source):  # its manifest contains the digest of the features
            beside = source.parent / EXTRACTOR
            return {file.name: file for file in (source / MANIFEST, beside) if file.is_file()}
        # relative, because another name or place of the same content is no reason to run again
        return source_files(source)

    def size_files(self) -> dict[str, Path]:
        """Return the files that state the sizes of images, by name."""
        if self.sizes is None:
            return {}
        is_folder = self.sizes.is_dir()
        return find_images(self.sizes, self.identities.rule) if is_folder else {"sizes": self.sizes}

    def feature_width(self) -> int:
        """Return F of the first readable image; InputError if there is none."""
        if is_store(self.source):
            return FeatureStore(self.source).feature_width
        from a2cap.pipeline.extraction.open_features import hints_with_sizes, open_features

        names, reason = self.names(), "it is empty"
        hints = ReadHints(ids=names.linked if names else None)
        hints = hints_with_sizes(self.sizes, self.source, hints, self.identities.rule)
        for item in islice(open_features(self.source, hints), _TRIED):
            if isinstance(item, ImageFeatures):
                return int(item.regions.features.shape[1])
            reason = f"{item.image_id!r}: {item.reason}"
        raise InputError(f"no readable features in {str(self.path)!r} (data.features): {reason}")
