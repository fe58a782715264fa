"""How the figures of an evaluation came about: all that peers' codebases decide silently.

What moves a score without showing in it: the split, the vocabulary and its preset, decoding, the
reward of self-critical training and the other fields of training, the extractor, versions.
"""

from collections.abc import Mapping
from pathlib import Path

from a2cap.data.errors import A2Error
from a2cap.data.files.yaml_file import read_yaml
from a2cap.extract.record import ExtractorRecord
from a2cap.pipeline.captioning.ensemble import LoadedCaptioner
from a2cap.pipeline.captioning.saved_captioner import EXTRACTOR
from a2cap.pipeline.engine.artifacts import RESOLVED_CONFIG, TRAIN_SCST
from a2cap.pipeline.engine.manifest import installed_versions, read_manifest
from a2cap.pipeline.engine.stage import Input
from a2cap.pipeline.evaluation.config import EvaluateConfig


def provenance_of(
    config: EvaluateConfig, inputs: Mapping[str, Input], model: LoadedCaptioner
) -> dict[str, str]:
    """What a reader needs to reproduce the figures, or to see why theirs differ."""
    settings = model.description.model.model_dump(mode="json")
    alignment = settings.pop("alignment")
    return {
        "split": config.split,
        "decoding": _decoding(config),
        **_ensemble(config),
        **_attention(config),
        "extractor": _extractor(inputs["model"].path),
        "vocabulary": f"{len(model.vocabulary)} entries, preset {model.vocabulary.preset}, "
        f"{model.vocabulary.digest[:12]}",
        **{f"model.{name}": str(value) for name, value in settings.items()},
        **{f"model.alignment.{name}": str(value) for name, value in alignment.items()},
        **_training(inputs["model"].path),
        **{f"digest of {name}": item.digest[:12] for name, item in inputs.items()},
        **{f"version of {name}": text for name, text in installed_versions().items()},
    }


def _decoding(config: EvaluateConfig) -> str:
    said = [f"beam {config.beam_size}", f"at most {config.max_length} tokens"]
    said.append(f"length penalty {config.length_penalty:g}")
    if config.collapse_repeats:
        said.append("repeated words collapsed")
    if config.no_repeat_ngram:
        said.append(f"no {config.no_repeat_ngram} words in a row twice")
    if config.groups > 1:
        said.append(f"{config.groups} groups with diversity {config.diversity:g}")
    return ", ".join(said)


def _ensemble(config: EvaluateConfig) -> dict[str, str]:
    if not config.ensemble:
        return {}
    what = config.ensemble_average.replace("_", "-")
    return {"ensemble": f"{len(config.ensemble) + 1} captioners, mean of {what}"}


def _attention(config: EvaluateConfig) -> dict[str, str]:
    if config.attention == "none":
        return {}
    over = "layers, heads and captioners" if config.ensemble else "layers and heads"
    return {"attention": f"mean over {over}"}


def _training(model: Path) -> dict[str, str]:
    """The fields that the captioner was trained with; none where its manifest is not beside it."""
    try:
        made = read_manifest(model).pre_image
    except A2Error:
        return {}
    before = _cross_entropy(model) if made.stage == TRAIN_SCST else {}
    return {
        f"{section}.{name}": str(value)
        for section, fields in {**before, **made.params}.items()
        if section != "model" and isinstance(fields, Mapping)
        for name, value in fields.items()
    }


def _cross_entropy(refined: Path) -> dict[str, object]:
    """The section of the training that self-critical training went on from, if it can be read.

    The key has it not: it depends on the captioner that those fields made, not on the fields.
    """
    try:
        return {"train": read_yaml(refined / RESOLVED_CONFIG).get("train")}
    except A2Error:
        return {}


def _extractor(model: Path) -> str:
    """Return a line about the extractor of the regions."""
    record = ExtractorRecord.read(model / EXTRACTOR)
    return f"{record.summary}, weights {record.weights_sha256[:12]}"
