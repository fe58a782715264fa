"""Stage preprocess: vocabulary, token ids, references and document frequencies of annotations."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.data.annotations.caption import AnnotatedCaption
from a2cap.data.annotations.layouts import caption_files, require_annotations
from a2cap.data.annotations.read import IN_NO_SPLIT, Annotations
from a2cap.data.annotations.summary import doubts, needs_unicode, summarize
from a2cap.data.captions.vocabulary import make_vocabulary
from a2cap.data.data_config import DataConfig, PreprocessConfig
from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.json_file import write_json
from a2cap.data.files.paths import require_file
from a2cap.data.files.sealed_folder import SkippedItem, check_skip_limit
from a2cap.data.sources.open_source import is_source
from a2cap.pipeline.engine.artifact_names import (
    CAPTIONS,
    DOCUMENT_FREQUENCIES,
    PREPROCESS,
    REFERENCES,
    VOCABULARY,
)
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.metrics.pycocoevalcap import require_metric_files
from a2cap.pipeline.metrics.tokenization import tokenize
from a2cap.pipeline.stages.checks import Check, Doubt, known
from a2cap.pipeline.stages.input_files import ExperimentFiles
from a2cap.pipeline.stages.stage import OutcomeOf, Stage

if TYPE_CHECKING:
    from a2cap.pipeline.stages.plan import Plan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preprocess(Stage):
    """Preprocessing of captions."""

    preprocess: PreprocessConfig
    data: DataConfig
    files: ExperimentFiles

    name = PREPROCESS
    version = 6
    always = ("annotations", "metrics")

    def prepare(self, result: OutcomeOf, folder: Path) -> PreparedStage:
        """Return the stage with the annotations, and the list of the split if it is set."""
        path, split, hashes = self.data.annotations, self.data.split_list, self.files.hashes
        inputs = {}
        if is_source(path):
            inputs["annotations"] = self.files.source(path)
        elif path is not None and path.is_dir():
            inputs["annotations"] = hashes.images(path, caption_files(path))
        else:
            inputs["annotations"] = self.files.file(path, "data.annotations")
        if split is not None and split.is_dir():
            lists = {file.name: file for file in sorted(split.glob("*.txt"))}
            inputs["split_list"] = hashes.images(split, lists)
        elif split is not None:
            inputs["split_list"] = self.files.file(split, "data.split_list")
        # with the rules by which annotations are read
        rules = self.data.model_dump(mode="json", include={"split", "ids", "fields"})
        fields = {"preprocess": self.preprocess.model_dump(mode="json"), "data": rules}
        outputs = (VOCABULARY, CAPTIONS, REFERENCES, DOCUMENT_FREQUENCIES)
        return PreparedStage(self.name, self.version, fields, inputs, outputs, self.work)

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Check the annotations and the files of the tokenizer."""
        return {
            "annotations": self._annotations,
            "captions": self._captions,
            "length": self._length,
            "images": lambda: self._images(plan),
            "splits": plan.shared_files,
            "metrics": require_metric_files,
        }

    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Write the outputs; return the skipped captions and images."""
        path = inputs["annotations"].path
        return preprocess(self.preprocess, self.files.annotations, path, folder, events)

    def _annotations(self) -> str:
        """Check that captions can be read, that splits have images, and the limit of skips."""
        path = require_annotations(self.data.annotations)
        if self.data.split_list is not None and not self.data.split_list.is_dir():
            require_file(self.data.split_list, "data.split_list")
        annotations = self.files.annotations
        require_usable(annotations, path)
        if self.preprocess.tokenizer != "unicode" and needs_unicode(annotations):
            raise InputError(
                f"the captions {str(path)!r} are of a script without spaces between words, of "
                f"which preprocess.tokenizer={self.preprocess.tokenizer} makes one word a "
                "sentence; set preprocess.tokenizer=unicode"
            )
        return summarize(annotations)

    def _captions(self) -> str:
        """Look for captions that may not be meant; nothing is changed unless it is set."""
        if lines := doubts(known(lambda: self.files.annotations), self.preprocess.tokenizer):
            return Doubt(f"{'; '.join(lines)}; captions are kept as they are")
        return "none has tags, many words, or what else may not be meant"

    def _images(self, plan: "Plan") -> str:
        """Look for the files of the images, which later stages need; captions are read without."""
        images = self.data.images
        if images is None or not images.is_dir():
            return "of no folder on this machine"
        try:
            return plan.images()
        except A2Error as error:
            return Doubt(error)

    def _length(self) -> str:
        """Count the captions that are longer than the captioner's."""
        from a2cap.data.captions.caption_file import CutCaptions  # imports h5py

        config, images = self.preprocess, known(lambda: self.files.annotations.images)
        cut = CutCaptions.count(images, preset=config.vocabulary, max_length=config.max_length)
        if not cut.is_much:
            return str(cut) or "no caption is cut"
        remedy = ", or set preprocess.eos_after_cut to false" if config.eos_after_cut else ""
        return Doubt(f"{cut}; raise preprocess.max_length{remedy}")


def preprocess(
    config: PreprocessConfig,
    annotations: Annotations,
    path: Path,
    directory: Path,
    events: EventLog,
) -> Sequence[SkippedItem]:
    """Write the outputs into `directory`; return the skipped captions and images."""
    from a2cap.data.captions import caption_file, document_frequencies  # import h5py

    unusable = require_usable(annotations, path)
    logger.info("%s", summarize(annotations))
    kept = (replace(p, captions=p.captions[: config.references]) for p in annotations.images)
    annotations = replace(annotations, images=tuple(kept))
    # of all images: training and evaluation read them
    raw = {p.image_id: [c.raw for c in p.captions] for p in annotations.images}
    references = tokenize(raw, config.tokenizer)
    if config.tokenizer != "karpathy":
        annotations = _with_words(annotations, references)
    vocabulary = make_vocabulary(annotations.images, config)
    vocabulary.save(directory / VOCABULARY)
    caption_file.write_captions(
        directory / CAPTIONS,
        annotations.images,
        vocabulary,
        preset=config.vocabulary,
        max_length=config.max_length,
        eos_after_cut=config.eos_after_cut,
        dataset=annotations.dataset,
    )
    if cut := str(caption_file.CaptionFile(directory / CAPTIONS).cut):
        logger.info("preprocess: %s", cut)
    events.write("vocabulary", words=len(vocabulary))
    write_json(directory / REFERENCES, references)
    training = {
        p.image_id: references[p.image_id] for p in annotations.images if p.split == "train"
    }
    frequencies = document_frequencies.count_document_frequencies(training, vocabulary)
    frequencies.save(directory / DOCUMENT_FREQUENCIES)
    return unusable


def _with_words(annotations: Annotations, references: Mapping[str, Sequence[str]]) -> Annotations:
    """Return the annotations with these tokens as words."""
    images = []
    for image in annotations.images:
        pairs = zip(image.captions, references[image.image_id], strict=True)
        captions = tuple(
            AnnotatedCaption(caption.raw, tuple(text.split())) for caption, text in pairs
        )
        images.append(replace(image, captions=captions))
    return replace(annotations, images=tuple(images))


def require_usable(annotations: Annotations, path: Path) -> list[SkippedItem]:
    """Return the unusable items; raise InputError for too many, or for a split without images."""
    unusable = [item for item in annotations.skipped if item.reason != IN_NO_SPLIT]
    kept = {image.image_id: len(image.captions) for image in annotations.images}
    captions = [item for item in unusable if item.image_id in kept]
    # an image may have several bad captions, and no other one
    images = list({i.image_id: i for i in unusable if i.image_id not in kept}.values())
    check_skip_limit(images, len(kept) + len(images), "images of data.annotations")
    check_skip_limit(captions, sum(kept.values()) + len(captions), "captions")
    for split in ("train", "val"):  # without a test split, validation is evaluated
        if not any(image.split == split for image in annotations.images):
            raise InputError(
                f"no image of split {split!r} in {str(path)!r}; "
                "give each of train and val at least one"
            )
    return unusable
