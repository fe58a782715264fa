"""Provenance of an evaluation: all settings that change a score without showing in it.

These are the split, the vocabulary and its preset, decoding, the reward of self-critical training
and the other fields of training, the extractor, and library versions.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from a2cap.data.errors import A2Error
from a2cap.data.files.sealed_folder import installed_versions, read_manifest
from a2cap.data.files.yaml_file import read_yaml
from a2cap.data.identities import NO_OWN_IDS, Identities
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.model.captioner import CaptionModel
from a2cap.pipeline.captioning.model_description import EXTRACTOR
from a2cap.pipeline.captioning.saved_captioner import LoadedCaptioner
from a2cap.pipeline.engine.artifact_names import RESOLVED_CONFIG, RESULTS, TRAIN_SCST
from a2cap.pipeline.engine.inputs import Input
from a2cap.pipeline.evaluation.evaluate_config import EvaluateConfig
from a2cap.pipeline.evaluation.neighbours import WEIGHT
from a2cap.pipeline.evaluation.score_captions import METRIC_TOKENS
from a2cap.pipeline.metrics.tokenization import metric_tokens


def provenance_of(
    config: EvaluateConfig,
    inputs: Mapping[str, Input],
    model: LoadedCaptioner[CaptionModel],
    identities: Identities = NO_OWN_IDS,
) -> dict[str, str]:
    """Return the settings that a reader needs to reproduce the scores, name -> value.

    identities: ids of the images in the annotations.
    """
    settings = model.description.model.model_dump(mode="json")
    alignment = settings.pop("alignment")
    trained = inputs["model"].path
    extractor = ExtractorRecord.read(trained / EXTRACTOR)
    weights = f"weights {extractor.weights_sha256[:12]}"
    protocol = {"split": config.split, "decoding": _decoding(config)}
    if config.ensemble:
        average = config.ensemble_average.replace("_", "-")
        shares = f", weights {', '.join(map(str, w))}" if (w := config.ensemble_weights) else ""
        protocol["ensemble"] = f"{len(config.ensemble) + 1} captioners, mean of {average}{shares}"
    if config.attention != "none":
        over = "layers, heads and captioners" if config.ensemble else "layers and heads"
        protocol["attention"] = f"mean over {over}"
    if identities:
        file, key = next(iter(identities.own_ids.items()))
        protocol["image ids"] = f"of the annotations in {RESULTS}, as {key!r} for the file {file!r}"
    return {
        **protocol,
        "extractor": f"{extractor.summary}, {extractor.source or weights}",
        "vocabulary": f"{len(model.vocabulary)} entries, preset {model.vocabulary.preset}, "
        f"{model.vocabulary.digest[:12]}",
        METRIC_TOKENS: metric_tokens(model.vocabulary.tokenizer),
        **{f"model.{name}": str(value) for name, value in settings.items()},
        **{f"model.alignment.{name}": str(value) for name, value in alignment.items()},
        **_training(trained),
        **{f"digest of {name}": item.digest[:12] for name, item in inputs.items()},
        **{f"version of {name}": text for name, text in installed_versions().items()},
    }


def _decoding(config: EvaluateConfig) -> str:
    settings = [f"beam {config.beam_size}", f"at most {config.max_length} tokens"]
    if config.method == "sampling":
        limits = f"temperature {config.temperature:g}, top_k {config.top_k}, top_p {config.top_p:g}"
        settings[0] = f"best of {config.beam_size} samples ({limits}, seed {config.seed})"
    if config.min_length:
        settings.append(f"at least {config.min_length}")
    settings.append(f"length penalty {config.length_penalty:g}")
    if config.consensus:
        settings.append("chosen by consensus")
    if config.neighbours:
        nearest = f"captions of the {config.neighbours} nearest training images vote"
        settings.append(f"{nearest} with weight {WEIGHT:g}")
    if config.collapse_repeats:
        settings.append("repeated words collapsed")
    if config.no_repeat_ngram:
        settings.append(f"no {config.no_repeat_ngram} words in a row twice")
    if config.groups > 1:
        settings.append(f"{config.groups} groups with diversity {config.diversity:g}")
    return ", ".join(settings)


def _training(model: Path) -> dict[str, str]:
    """Return the training fields, or {} for a captioner that was copied without its manifest."""
    try:
        made = read_manifest(model).origin
    except A2Error:
        return {}
    before: Mapping[str, object] = {}
    if made.stage == TRAIN_SCST:
        # From config.yaml: the key of self-critical training depends on the captioner that
        # cross-entropy training produced, not on that training's fields.
        with suppress(A2Error):
            before = {"train": read_yaml(model / RESOLVED_CONFIG).get("train")}
    fields: dict[str, str] = {
        f"{section}.{name}": str(value)
        for section, values in {**before, **made.fields}.items()
        if section != "model" and isinstance(values, Mapping)
        for name, value in values.items()
        if name != "start"  # a path
    }
    if "start" in made.inputs:
        fields["train.start"] = f"a trained captioner, {made.inputs['start'][:12]}"
    return fields
