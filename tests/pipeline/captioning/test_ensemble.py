"""Loading of one captioner, and of ensembles that share features and vocabulary."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from a2cap.data.batches.loader import image_batches
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, InputError
from a2cap.data.features.store import FeatureStore
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.decoding.config import DecodingConfig
from a2cap.model.decoding.ensemble import Ensemble
from a2cap.pipeline.captioning.decoding import caption_batches
from a2cap.pipeline.captioning.ensemble import load_captioner

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(experiment):
    """The experiment's captioner; tests copy it before they change it."""
    return experiment.directory("train-xe")


@pytest.fixture
def other(trained, tmp_path):
    """A copy of the captioner with other tensors."""
    directory = shutil.copytree(trained, tmp_path / "other")
    tensors = load_file(trained / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    tensors["decoder.output.weight"] += torch.randn(
        tensors["decoder.output.weight"].shape, generator=generator
    )
    save_file(tensors, directory / "model.safetensors")
    return directory


DECODING = DecodingConfig(beam_size=2, max_length=8)


def captions(models, experiment, **how):
    loaded = load_captioner(models, device=CPU, **how)
    store = experiment.directory("extract") / "features.lmdb"
    batches = image_batches(store, list(FeatureStore(store))[:8], batch_size=8)
    return [
        [(beam.caption, round(beam.score, 3)) for beam in beams]
        for _, beams in caption_batches(
            loaded.captioner, batches, loaded.vocabulary, DECODING, device=CPU
        )
    ]


def test_one_model_is_not_an_ensemble(trained):
    loaded = load_captioner([trained], device=CPU)
    assert isinstance(loaded.captioner, TransformerCaptioner)
    assert loaded.vocabulary.digest == loaded.description.vocabulary_digest


def test_several_models_are_an_ensemble_in_evaluation_mode(trained, other):
    loaded = load_captioner([trained, other], device=CPU, average="log_probabilities")
    assert isinstance(loaded.captioner, Ensemble)
    assert loaded.captioner.average == "log_probabilities"
    assert len(loaded.captioner.captioners) == 2
    assert not any(captioner.training for captioner in loaded.captioner.captioners)


def test_a_model_twice_equals_itself_and_another_model_changes_the_captions(
    trained, other, experiment
):
    alone = captions([trained], experiment)
    assert captions([trained, trained], experiment) == alone
    together = captions([trained, other], experiment)
    assert together != alone
    assert together == captions([other, trained], experiment)


def test_an_empty_list_of_models_is_rejected():
    with pytest.raises(InputError) as raised:
        load_captioner([], device=CPU)
    assert str(raised.value) == "no trained model is named; name one or more directories"


def rewrite(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refusal(trained, other):
    with pytest.raises(A2Error) as raised:
        load_captioner([trained, other], device=CPU)
    return str(raised.value)


ADVICE = "an ensemble needs captioners that were trained on the same features and vocabulary"


def test_another_vocabulary_is_rejected(trained, other):
    words = Vocabulary.load(trained / "vocabulary.json").words
    swapped = Vocabulary((*words[:-2], words[-1], words[-2]), "karpathy")
    swapped.save(other / "vocabulary.json")
    rewrite(other / "model.json", lambda found: found.update(vocabulary_digest=swapped.digest))
    expected = Vocabulary.load(trained / "vocabulary.json").digest[:12]
    assert refusal(trained, other) == (
        f"vocabulary of {str(other)!r} is {swapped.digest[:12]}, that of {str(trained)!r} is "
        f"{expected}; {ADVICE}"
    )


def test_another_region_width_is_rejected(trained, other):
    tensors = load_file(other / "model.safetensors")
    name = "encoder.embedding.feature.weight"
    tensors[name] = tensors[name][:, :32].contiguous()
    save_file(tensors, other / "model.safetensors")
    rewrite(other / "model.json", lambda found: found.update(region_width=32))
    assert refusal(trained, other) == (
        f"region width of {str(other)!r} is 32, that of {str(trained)!r} is 64; {ADVICE}"
    )


def test_another_number_of_regions_is_rejected(trained, other):
    rewrite(other / "model.json", lambda found: found.update(max_regions=5))
    assert refusal(trained, other) == (
        f"max_regions of {str(other)!r} is 5, that of {str(trained)!r} is None; {ADVICE}"
    )


def test_regions_of_another_extractor_are_rejected_but_other_library_versions_are_not(
    trained, other
):
    rewrite(other / "extractor.json", lambda found: found["libraries"].update(torch="0.1"))
    load_captioner([trained, other], device=CPU)
    rewrite(other / "extractor.json", lambda found: found["config"].update(confidence=0.7))
    assert refusal(trained, other) == (
        f"regions of {str(other)!r} and {str(trained)!r} come from different extractors "
        f"(extractor.json differs in config.confidence); {ADVICE}"
    )


def test_a_model_without_its_extractor_is_rejected(trained, other):
    (other / "extractor.json").unlink()
    assert refusal(trained, other) == (
        f"no trained model in {str(other)!r}: extractor.json is missing; "
        'name a directory that "a2 train" has finished'
    )
