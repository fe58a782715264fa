"""Files that the stages of an experiment read, with the digests of their content."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from a2cap.data.annotations.layouts import require_annotations
from a2cap.data.annotations.read import Annotations, read_annotations
from a2cap.data.annotations.summary import cleaned
from a2cap.data.errors import InputError
from a2cap.data.files.paths import require_file, require_folder
from a2cap.data.identities import Identities, Key
from a2cap.data.image_ids import find_images, resolve_files
from a2cap.data.sources.folder import ImageList
from a2cap.data.sources.location import version_of
from a2cap.data.sources.open_source import image_source, open_source
from a2cap.data.sources.parquet import Table
from a2cap.pipeline.captioning.adapted.pretrained import pretrained_folder
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.artifact_names import CAPTIONER
from a2cap.pipeline.engine.hash_cache import HashCache
from a2cap.pipeline.engine.inputs import Input
from a2cap.pipeline.extraction.images import ImageFiles, Source, UnlistedImages
from a2cap.pipeline.extraction.imported import ImportedFeatures
from a2cap.pipeline.weights.captioners import captioner_folder

_READING = 2
"""Raised when images of the same annotations are read in another way."""


_MIDDLE = 4096
"""Bytes in the middle of an image file by which those of one size are told apart."""


class ExperimentFiles:
    """The files that a configuration names, read once for all stages of a command."""

    def __init__(self, config: Config, artifacts: Path) -> None:
        self._config = config
        self.artifacts = artifacts
        self.hashes = HashCache(artifacts / "hashes.sqlite")

    def file(self, path: Path | None, field: str) -> Input:
        """Return the file that a config field names, with its digest."""
        return self.hashes.file(require_file(path, field), what=f"file of {field}")

    def optional(self, section: str, **paths: Path | None) -> dict[str, Input]:
        """Return those files of a section that are set, by field."""
        set_paths = {field: path for field, path in paths.items() if path is not None}
        return {field: self.file(path, f"{section}.{field}") for field, path in set_paths.items()}

    def captioner(self, folder: Path, field: str) -> Input:
        """Return the trained captioner that a config field names."""
        directory = captioner_folder(folder, field)
        # without the manifest, so that a captioner may be copied to another folder
        parts = {name: self.hashes.file(directory / name, what=name) for name in CAPTIONER}
        digest = captioner_digest({name: file.digest for name, file in parts.items()})
        files = {path: state for file in parts.values() for path, state in file.files.items()}
        return Input(directory, digest, files)

    def pretrained(self, model: Path, field: str) -> Input:
        """Return the model of transformers that a config field names."""
        folder = pretrained_folder([model])
        if folder is None:
            raise InputError(
                f"{field} names no model of transformers: {str(model)!r}; name a folder of "
                "save_pretrained, or leave it out to evaluate the experiment's captioner"
            )
        files = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
        return self.hashes.images(folder, files)

    def source(self, path: Path | None) -> Input:
        """Return tars or Parquet files with their digest; of URLs, that of their versions."""
        names = [container.name for container in open_source(str(path)).containers]
        if any("://" in name for name in names):
            versions = "\n".join(map(version_of, names))
            return Input(Path(str(path)), hashlib.sha256(versions.encode()).hexdigest())
        files = {f"{number:09}": Path(name) for number, name in enumerate(names)}
        return self.hashes.images(Path(str(path)), files)

    @cached_property
    def imported(self) -> ImportedFeatures:
        """The features of `data.features`, which is set."""
        data = self._config.data
        assert data.features is not None
        identities = data.identities(()) if data.annotations is None else self.identities
        return ImportedFeatures(
            data.features, data.sizes, self.annotated or set(), self._config.extract, identities
        )

    @cached_property
    def images(self) -> dict[str, Path | None]:
        """Image id -> file of each image, None if it is missing or not a file of its own.

        The images are those of the annotations if they are set, else all of `data.images`.
        """
        data = self._config.data
        if data.images is None and data.features is not None:
            return dict.fromkeys(self.imported.image_ids)
        if image_source(data.images) is not None:
            return dict.fromkeys(self.annotated or ())
        folder = require_folder(data.images, "data.images")
        if data.annotations is None:
            return dict(find_images(folder, data.id_rule))
        files = resolve_files(self.named, folder, data.id_rule)
        return {image_id: files.get(image_id) for image_id in self.named}

    @cached_property
    def named(self) -> dict[str, str]:
        """Image id -> file name of each annotated image."""
        return {image_id: file for image_id, (file, _) in self._listed.items()}

    @cached_property
    def identities(self) -> Identities:
        """The ids that the annotations give images, beside those of the files."""
        owned = ((image_id, key) for image_id, (_, key) in self._listed.items())
        return self._config.data.identities(owned)

    @cached_property
    def _listed(self) -> dict[str, tuple[str, Key | None]]:
        """Image id -> file name of each annotated image and its id there; read only once."""
        data = self._config.data
        files = [require_annotations(data.annotations)]
        files += [] if data.split_list is None else [data.split_list]

        def read() -> dict[str, tuple[str, Key | None]]:
            images = self.annotations.images
            return {image.image_id: (image.file, image.own_id) for image in images}

        if not all(path.is_file() for path in files):
            return read()
        words = self._config.preprocess
        rules = [data.ids, data.split, words.clean, words.max_words]
        fields = data.fields.model_dump_json(exclude_defaults=True)
        return self.hashes.names(files, f"{_READING} {rules} {fields}", read)

    @cached_property
    def repeated(self) -> dict[str, str]:
        """Image id -> digest of the files that others have the size and the middle of."""
        sizes: dict[int, dict[str, Path]] = {}
        for image_id, path in self.images.items():
            if path is not None and path.is_file():
                sizes.setdefault(path.stat().st_size, {})[image_id] = path
        # many photographs have a size in common, and a digest reads the file
        alike: dict[tuple[int, bytes], dict[str, Path]] = {}
        for size, files in sizes.items():
            for image_id, path in files.items() if len(files) > 1 else ():
                with suppress(OSError), path.open("rb") as file:
                    file.seek(size // 2)
                    alike.setdefault((size, file.read(_MIDDLE)), {})[image_id] = path
        return {
            image_id: self.hashes.file(path, what="image").digest
            for files in alike.values()
            for image_id, path in files.items()
            if len(files) > 1
        }

    @property
    def annotated(self) -> set[str] | None:
        """Ids of the annotated images, None without annotations."""
        return None if self._config.data.annotations is None else set(self.named)

    def extracted(self) -> Input:
        """Return the images to extract with their digest."""
        images = self._config.data.images
        source = image_source(images)
        if source is None:
            return self.hashes.images(require_folder(images, "data.images"), self.images)
        container = self.source(Path(source))
        lists = [
            part for part in open_source(source).containers if isinstance(part, ImageList | Table)
        ]
        files = {name: file for part in lists for name, file in part.local_files().items()}
        listed = self.hashes.images(Path(source), files)
        listed_ids = "\n".join(sorted(self.annotated or ()))
        content = f"{container.digest}\n{listed.digest}\n{listed_ids}"
        digest = hashlib.sha256(content.encode()).hexdigest()
        return Input(Path(source), digest, {**container.files, **listed.files})

    def listed(self, images: Input) -> UnlistedImages:
        """Return the images that `extracted` has found."""
        source = image_source(self._config.data.images)
        if source is not None:
            return Source(source, self.annotated)
        paths = self.images
        # other ranks of a training know no digests
        candidates = images.files or paths.values()
        unreadable = {path for path in paths.values() if path and path not in candidates}
        return ImageFiles(paths, unreadable)

    @cached_property
    def annotations(self) -> Annotations:
        """Content of the annotation file."""
        data = self._config.data
        path = require_annotations(data.annotations)
        annotations = read_annotations(
            path,
            split_list=data.split_list,
            split=data.split,
            rule=data.id_rule,
            numbers=data.numbers,
            fields=data.fields,
        )
        return cleaned(annotations, self._config.preprocess)


def captioner_digest(outputs: Mapping[str, str]) -> str:
    """Return the digest of a captioner as part of an ensemble, from the digests of its files."""
    return hashlib.sha256("\n".join(outputs[name] for name in CAPTIONER).encode()).hexdigest()
