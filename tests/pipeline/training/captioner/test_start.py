"""Tests of fine-tuning: what a new captioner takes from a saved one, and what does not fit."""

import json

import pytest
import torch

from a2cap.data.captions.vocabulary import SPECIALS, Vocabulary
from a2cap.data.errors import InputError
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.captioners.recurrent.gru_config import GruConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.pipeline.captioning.model_description import (
    ModelDescription,
)
from a2cap.pipeline.captioning.saved_captioner import (
    LoadedCaptioner,
)
from a2cap.pipeline.training.captioner.start import start_from, warn_of_another_extractor
from tests.model.kinds import FEATURE_WIDTH, KINDS

PLAIN = AlignmentConfig(fusion="none")


def vocabulary(*words):
    return Vocabulary((*SPECIALS, *words), "karpathy")


def new(config, words, *, region_width=FEATURE_WIDTH):
    sizes = {"feature_width": region_width, "vocabulary_size": len(words)}
    return make_captioner(config, **sizes)


def saved(config, words):
    description = ModelDescription(
        model=config,
        region_width=FEATURE_WIDTH,
        vocabulary_size=len(words),
        vocabulary_digest=words.digest,
        max_regions=None,
    )
    return LoadedCaptioner(new(config, words), words, description)


@pytest.mark.parametrize("kind", KINDS)
def test_known_words_and_all_other_tensors_are_taken_over(kind):
    old_words = vocabulary("a", "dog", "runs")
    words = vocabulary("dog", "a", "zebra", "sleeps", "quietly")
    start, config = saved(KINDS[kind](alignment=PLAIN), old_words), KINDS[kind]()
    captioner = new(config, words)
    fresh = {name: tensor.clone() for name, tensor in captioner.state_dict().items()}
    start_from(start, captioner, config, words)
    given = start.captioner.state_dict()
    for name, tensor in captioner.state_dict().items():
        if name.startswith(("decoder.embedding.", "decoder.output.")):
            old, kept = given[name], fresh[name]
            rows = [*old[:4], old[5], old[4], *kept[6:]]
            assert torch.equal(tensor, torch.stack(rows))
        else:
            assert torch.equal(tensor, given.get(name, fresh[name]))


@pytest.mark.parametrize(
    ("config", "region_width", "message"),
    [
        (
            GruConfig(width=16),
            FEATURE_WIDTH,
            "train.start does not fit: its kind is 'transformer', model.kind is 'gru'; "
            "set model.kind to 'transformer', or name another captioner",
        ),
        (
            TransformerConfig(**{**KINDS["transformer"]().model_dump(), "heads": 4}),
            FEATURE_WIDTH,
            "train.start does not fit: its heads is 2, model.heads is 4; set model.heads to 2, or "
            "name another captioner",
        ),
        (
            KINDS["transformer"](alignment=PLAIN),
            FEATURE_WIDTH,
            "train.start does not fit: "
            "'decoder.layers.0.cross_attention.alignment.gate.bias' has shape (2, 1, 1) there and "
            "None in the new captioner; set the section model as it was, or name another captioner",
        ),
        (
            KINDS["transformer"](),
            7,
            "train.start does not fit: 'encoder.embedding.feature.weight' has shape (16, 6) there "
            "and (16, 7) in the new captioner; set the section model as it was, or name another "
            "captioner",
        ),
    ],
)
def test_what_does_not_fit_is_named(config, region_width, message):
    words = vocabulary("dog")
    captioner = new(config, words, region_width=region_width)
    with pytest.raises(InputError) as raised:
        start_from(saved(KINDS["transformer"](), words), captioner, config, words)
    assert str(raised.value) == message


def test_a_start_on_regions_of_another_extractor_logs_a_warning(experiment, tmp_path, caplog):
    features = experiment.directory("extract")
    record = json.loads((features / "extractor.json").read_text())
    record["config"]["max_regions"] += 1
    (tmp_path / "extractor.json").write_text(json.dumps(record))
    warn_of_another_extractor(experiment.directory("train-xe"), features)
    warn_of_another_extractor(tmp_path, features)
    assert [line.getMessage() for line in caplog.records] == [
        "train.start was trained on regions of another extractor: extractor.json differs in "
        "config.max_regions; extract with its weights and configuration, unless the captioner "
        "shall learn other regions"
    ]
