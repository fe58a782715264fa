"""Loading of one captioner, and of ensembles that share features and vocabulary."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from a2cap.data.errors import A2Error
from a2cap.model.captioners.recurrent.gru import GruCaptioner
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.decoding.ensemble import Ensemble
from a2cap.pipeline.captioning.model_description import load_description
from a2cap.pipeline.captioning.saved_captioner import load_captioner, new_captioner, save_model
from tests.data.messages import message_of
from tests.experiments import copied_captioner, swap_words
from tests.model.kinds import KINDS

CPU = torch.device("cpu")


@pytest.fixture
def other(trained, tmp_path):
    """A copy of the captioner with other tensors."""
    directory = copied_captioner(trained, tmp_path / "other")
    tensors = load_file(trained / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    tensors["decoder.output.weight"] += torch.randn(
        tensors["decoder.output.weight"].shape, generator=generator
    )
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture
def captions(decode):
    def run(*models):
        loaded = load_captioner(models, device=CPU)
        return [
            [(beam.caption, round(beam.score, 3)) for beam in beams]
            for _, beams in decode(loaded.captioner, loaded.vocabulary)
        ]

    return run


def test_several_models_are_an_ensemble_in_evaluation_mode(trained, other):
    assert isinstance(load_captioner([trained], device=CPU).captioner, TransformerCaptioner)
    loaded = load_captioner([trained, other], device=CPU, average="log_probabilities")
    assert isinstance(loaded.captioner, Ensemble)
    assert loaded.captioner.average == "log_probabilities"
    assert len(loaded.captioner.captioners) == 2
    assert not any(captioner.training for captioner in loaded.captioner.captioners)


def test_captioners_of_two_kinds_are_an_ensemble_if_their_vocabularies_are_equal(
    trained, tmp_path, captions
):
    description, vocabulary = load_description(trained)
    described = description.model_copy(update={"model": KINDS["gru"]()})
    tensors = new_captioner(described).state_dict()
    save_model(tmp_path, tensors=tensors, description=described, vocabulary=vocabulary)
    shutil.copy(trained / "extractor.json", tmp_path)
    loaded = load_captioner([trained, tmp_path], device=CPU)
    kinds = [type(captioner) for captioner in loaded.captioner.captioners]
    assert kinds == [TransformerCaptioner, GruCaptioner]
    assert captions(trained, tmp_path) == captions(tmp_path, trained)
    digest = swap_words(tmp_path)
    assert refusal(trained, tmp_path) == (
        f"vocabulary of {str(tmp_path)!r} is {digest[:12]}, that of {str(trained)!r} is "
        f"{vocabulary.digest[:12]}; {ADVICE}"
    )


def test_an_empty_list_of_models_is_rejected():
    assert message_of(load_captioner, [], device=CPU) == (
        "no trained model is named; name one or more directories"
    )


def rewrite(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refusal(trained, other):
    return message_of(load_captioner, [trained, other], device=CPU, error=A2Error)


ADVICE = "an ensemble needs captioners that were trained on the same features and vocabulary"


def narrow_features(directory):
    tensors = load_file(directory / "model.safetensors")
    name = "encoder.embedding.feature.weight"
    tensors[name] = tensors[name][:, :32].contiguous()
    save_file(tensors, directory / "model.safetensors")
    rewrite(directory / "model.json", lambda content: content.update(region_width=32))


def limit_regions(directory):
    rewrite(directory / "model.json", lambda content: content.update(max_regions=5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "name", "value", "expected"),
    [(narrow_features, "region width", 32, 64), (limit_regions, "max_regions", 5, None)],
)
def test_captioners_that_differ_are_rejected(trained, other, change, name, value, expected):
    change(other)
    assert refusal(trained, other) == (
        f"{name} of {str(other)!r} is {value}, that of {str(trained)!r} is {expected}; {ADVICE}"
    )


def test_a_model_without_its_extractor_is_rejected(trained, other):
    (other / "extractor.json").unlink()
    assert refusal(trained, other) == (
        f"no trained model in {str(other)!r}: extractor.json is missing; "
        'name a directory that "a2 train" has finished'
    )


def test_regions_of_another_extractor_are_rejected_but_other_library_versions_are_not(
    trained, other
):
    rewrite(other / "extractor.json", lambda content: content["libraries"].update(torch="0.1"))
    load_captioner([trained, other], device=CPU)
    rewrite(other / "extractor.json", lambda content: content["config"].update(confidence=0.7))
    assert refusal(trained, other) == (
        f"regions of {str(other)!r} and {str(trained)!r} come from different extractors "
        f"(extractor.json differs in config.confidence); {ADVICE}"
    )
