"""Saved captioners: equal captions after loading, and errors of damaged directories."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from a2cap.data.batches.loader import image_batches
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error
from a2cap.data.features.store import FeatureStore
from a2cap.model.config import AlignmentConfig, ModelConfig
from a2cap.model.decoding.config import DecodingConfig
from a2cap.pipeline.captioning.decoding import caption_batches
from a2cap.pipeline.captioning.saved_captioner import (
    ModelDescription,
    load_model,
    new_captioner,
    save_model,
)

CPU = torch.device("cpu")
VOCABULARY = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", "a", "dog", "runs"), "karpathy")


def description_of(vocabulary, **changes):
    model = ModelConfig(width=16, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1)
    return ModelDescription(
        model=model.model_copy(update=changes),
        region_width=6,
        vocabulary_size=len(vocabulary),
        vocabulary_digest=vocabulary.digest,
        max_regions=None,
    )


@pytest.fixture
def captioner():
    torch.manual_seed(0)
    return new_captioner(description_of(VOCABULARY))


@pytest.fixture
def saved(tmp_path, captioner):
    directory = tmp_path / "model"
    directory.mkdir()
    save_model(
        directory,
        tensors=captioner.state_dict(),
        description=description_of(VOCABULARY),
        vocabulary=VOCABULARY,
    )
    return directory


@pytest.fixture(scope="module")
def trained(experiment):
    """The experiment's captioner; tests copy it before they change it."""
    return experiment.directory("train-xe")


def captions(captioner, vocabulary, experiment):
    store = experiment.directory("extract") / "features.lmdb"
    image_ids = list(FeatureStore(store))[:10]
    return list(
        caption_batches(
            captioner.eval(),
            image_batches(store, image_ids, batch_size=5),
            vocabulary,
            DecodingConfig(beam_size=2, max_length=8),
            device=CPU,
        )
    )


def test_saving_and_loading_preserves_everything(saved, captioner):
    loaded = load_model(saved, device=CPU)
    assert loaded.description == description_of(VOCABULARY)
    assert loaded.vocabulary == VOCABULARY
    expected = captioner.state_dict()
    assert loaded.captioner.state_dict().keys() == expected.keys()
    for name, tensor in loaded.captioner.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_a_trained_captioner_stores_its_number_of_updates(trained):
    lines = (trained / "metrics.jsonl").read_text().splitlines()
    steps = load_model(trained, device=CPU).captioner.schedule_step.item()
    assert steps in {json.loads(line)["step"] for line in lines}


def test_captions_use_the_saved_schedule_step(experiment, trained, tmp_path):
    loaded = load_model(trained, device=CPU)
    alignment = AlignmentConfig(fusion="decay", decay_steps=10.0)
    model = loaded.description.model.model_copy(update={"alignment": alignment})
    description = loaded.description.model_copy(update={"model": model})
    torch.manual_seed(0)
    captioner = new_captioner(description)
    found = []
    for step in (0, 25):
        captioner.schedule_step.fill_(step)
        save_model(
            tmp_path,
            tensors=captioner.state_dict(),
            description=description,
            vocabulary=loaded.vocabulary,
        )
        again = load_model(tmp_path, device=CPU).captioner
        assert again.schedule_step.item() == step
        found.append(captions(again, loaded.vocabulary, experiment))
        assert found[-1] == captions(captioner, loaded.vocabulary, experiment)
    assert found[0] != found[1]


def test_a_loaded_captioner_is_in_evaluation_mode(saved):
    assert not any(module.training for module in load_model(saved, device=CPU).captioner.modules())


def test_captions_are_the_same_before_and_after_saving(experiment, trained, tmp_path):
    first = load_model(trained, device=CPU)
    before = captions(first.captioner, first.vocabulary, experiment)
    save_model(
        tmp_path,
        tensors=first.captioner.state_dict(),
        description=first.description,
        vocabulary=first.vocabulary,
    )
    second = load_model(tmp_path, device=CPU)
    assert captions(second.captioner, second.vocabulary, experiment) == before


def test_saving_twice_writes_equal_bytes(trained, tmp_path):
    loaded = load_model(trained, device=CPU)
    save_model(
        tmp_path,
        tensors=loaded.captioner.state_dict(),
        description=loaded.description,
        vocabulary=loaded.vocabulary,
    )
    for name in ("model.safetensors", "model.json", "vocabulary.json"):
        assert (tmp_path / name).read_bytes() == (trained / name).read_bytes()


def test_a_model_directory_can_be_moved(trained, tmp_path):
    moved = tmp_path / "elsewhere with spaces"
    moved.mkdir()
    for name in ("model.safetensors", "model.json", "vocabulary.json"):
        shutil.copyfile(trained / name, moved / name)
    assert load_model(moved, device=CPU).description.vocabulary_size > 4


@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "vocabulary.json"])
def test_a_missing_file_is_reported(saved, name):
    (saved / name).unlink()
    with pytest.raises(A2Error) as error:
        load_model(saved, device=CPU)
    assert str(error.value) == (
        f"no trained model in {str(saved)!r}: {name} is missing; "
        'name a directory that "a2 train" has finished'
    )


def test_a_vocabulary_that_does_not_match_the_model_is_rejected(saved):
    other = Vocabulary((*VOCABULARY.words[:-1], "sits"), "karpathy")
    other.save(saved / "vocabulary.json")
    with pytest.raises(A2Error) as error:
        load_model(saved, device=CPU)
    assert str(error.value) == (
        f"vocabulary does not match the model: {str(saved)!r} has vocabulary "
        f"{other.digest[:12]}, the model was trained with {VOCABULARY.digest[:12]}; "
        "use the vocabulary.json it was trained with"
    )


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"region_width": "wide"}, 1),
        ({"max_regions": -1.5, "model": {"width": 15}}, 2),
        ({"from_another_version": 1}, 1),
    ],
)
def test_a_description_of_another_version_is_rejected(saved, change, count):
    path = saved / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(A2Error) as error:
        load_model(saved, device=CPU)
    assert str(error.value) == (
        f"model.json cannot be used: {str(saved)!r} ({count} wrong fields); "
        "retrain with this version"
    )


@pytest.mark.parametrize("length", [0, 10, "half", -1])
def test_truncated_tensors_are_rejected(saved, length):
    path = saved / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 if length == "half" else length])
    with pytest.raises(A2Error) as error:
        load_model(saved, device=CPU)
    assert str(error.value).startswith(f"tensors cannot be used: {str(path)!r} (")
    assert str(error.value).endswith("); train again, or copy the directory again")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", ["one less", "one more", "another shape"])
def test_tensors_of_another_captioner_are_rejected(saved, change):
    path = saved / "model.safetensors"
    tensors = load_file(path)
    name = "decoder.output.weight"
    if change == "one less":
        del tensors[name]
    elif change == "one more":
        tensors["decoder.other.weight"] = torch.ones(1)
    else:
        tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, path)
    with pytest.raises(A2Error) as error:
        load_model(saved, device=CPU)
    assert str(error.value) == (
        f"tensors cannot be used: {str(path)!r} (Error(s) in loading state_dict for "
        "TransformerCaptioner); train again, or copy the directory again"
    )


def test_a_new_captioner_has_the_sizes_of_its_description():
    made = new_captioner(description_of(VOCABULARY, width=32))
    assert made.config.width == 32
    assert made.feature_width == 6
    assert made.vocabulary_size == len(VOCABULARY)
