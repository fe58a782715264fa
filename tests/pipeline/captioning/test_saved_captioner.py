"""Saved captioners: equal captions after loading, and errors of damaged directories."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import a2cap
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error
from a2cap.data.files.sealed_folder import Manifest, write_manifest
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.pipeline.captioning.model_description import ModelDescription
from a2cap.pipeline.captioning.saved_captioner import load_model, new_captioner, save_model
from tests.data.messages import message_of

CPU = torch.device("cpu")
VOCABULARY = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", "a", "dog", "runs"), "karpathy")


DESCRIPTION = ModelDescription(
    model=TransformerConfig(width=16, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1),
    region_width=6,
    vocabulary_size=len(VOCABULARY),
    vocabulary_digest=VOCABULARY.digest,
    max_regions=None,
)


@pytest.fixture
def captioner():
    torch.manual_seed(0)
    return new_captioner(DESCRIPTION)


def save(directory, captioner, description=DESCRIPTION, vocabulary=VOCABULARY):
    tensors = captioner.state_dict()
    save_model(directory, tensors=tensors, description=description, vocabulary=vocabulary)


@pytest.fixture
def saved(tmp_path, captioner):
    directory = tmp_path / "model"
    directory.mkdir()
    save(directory, captioner)
    return directory


@pytest.mark.parametrize("field", ["region_width", "vocabulary_size"])
@pytest.mark.parametrize("size", [-1, 10**12, 10**19])
def test_impossible_sizes_are_one_error(saved, field, size):
    content = json.loads((saved / "model.json").read_text())
    (saved / "model.json").write_text(json.dumps(content | {field: size}))
    sizes = {"region_width": 6, "vocabulary_size": 7} | {field: size}
    assert message_of(load_model, saved, device=CPU, error=A2Error) == (
        f"model.json has impossible sizes: {str(saved)!r} (region_width {sizes['region_width']}, "
        f"vocabulary_size {sizes['vocabulary_size']}); train again, or copy the directory again"
    )


def test_saving_and_loading_preserves_everything(saved, captioner):
    loaded = load_model(saved, device=CPU)
    assert loaded.description == DESCRIPTION
    assert not any(module.training for module in loaded.captioner.modules())
    assert loaded.vocabulary == VOCABULARY
    states = (loaded.captioner.state_dict(), captioner.state_dict())
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_captions_use_the_saved_schedule_step(trained, decode, tmp_path):
    loaded = load_model(trained, device=CPU)
    alignment = AlignmentConfig(fusion="decay", decay_steps=10.0)
    model = loaded.description.model.model_copy(update={"alignment": alignment})
    description = loaded.description.model_copy(update={"model": model})
    torch.manual_seed(0)
    captioner = new_captioner(description)
    captions = []
    for step in (0, 25):
        captioner.schedule_step.fill_(step)
        save(tmp_path, captioner, description, loaded.vocabulary)
        again = load_model(tmp_path, device=CPU).captioner
        assert again.schedule_step.item() == step
        captions.append(decode(again, loaded.vocabulary))
        assert captions[-1] == decode(captioner.eval(), loaded.vocabulary)
    assert captions[0] != captions[1]


def test_saving_twice_writes_equal_bytes(trained, tmp_path):
    loaded = load_model(trained, device=CPU)
    save(tmp_path, loaded.captioner, loaded.description, loaded.vocabulary)
    for name in ("model.safetensors", "model.json", "vocabulary.json"):
        assert (tmp_path / name).read_bytes() == (trained / name).read_bytes()


def refusal(directory):
    return message_of(load_model, directory, device=CPU, error=A2Error)


@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "vocabulary.json"])
def test_a_missing_file_is_reported(saved, name):
    (saved / name).unlink()
    assert refusal(saved) == (
        f"no trained model in {str(saved)!r}: {name} is missing; "
        'name a directory that "a2 train" has finished'
    )


def test_a_bundled_captioner_is_proposed_for_a_missing_folder_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(Path("photo")).endswith("has finished; did you mean 'photos'?")
    Path("photo").mkdir()
    assert refusal(Path("photo")).endswith("has finished")


def test_a_vocabulary_that_does_not_match_the_model_is_rejected(saved):
    other = Vocabulary((*VOCABULARY.words[:-1], "sits"), "karpathy")
    other.save(saved / "vocabulary.json")
    assert refusal(saved) == (
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
        ({"model": {"kind": "of-tomorrow"}}, 1),
    ],
)
def test_a_description_of_another_version_is_rejected_with_both_versions(saved, change, count):
    path = saved / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    expected = (
        f"model.json cannot be used: {str(saved)!r} ({count} wrong fields), written by a2cap %s, "
        f"this is {a2cap.__version__}; upgrade with pip install -U a2cap, or retrain with this "
        "version"
    )
    assert refusal(saved) == expected % "of unknown version"
    manifest = Manifest(outputs={}, finished=0.0, versions={"a2cap": "9.1.0"})
    write_manifest(saved, manifest)
    assert refusal(saved) == expected % "9.1.0"


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.9999])
def test_truncated_tensors_are_rejected(saved, share):
    path = saved / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    message = refusal(saved)
    assert message.startswith(f"tensors cannot be used: {str(path)!r} (")
    assert message.endswith("); train again, or copy the directory again")
    assert "\n" not in message


OUTPUT, OTHER = "decoder.output.weight", "decoder.other.weight"
NOT_FINITE = f"{OUTPUT!r} has numbers that are not finite"
UNLIKE = "Error(s) in loading state_dict for TransformerCaptioner"


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        *((OUTPUT, torch.full((7, 16), number), NOT_FINITE) for number in (math.nan, math.inf)),
        *((OUTPUT, tensor, UNLIKE) for tensor in (None, torch.ones(6, 16))),
        (OTHER, torch.ones(1), UNLIKE),
    ],
)
def test_tensors_that_are_not_finite_or_of_another_captioner_are_rejected(
    saved, name, tensor, reason
):
    path = saved / "model.safetensors"
    tensors = load_file(path) | {name: tensor}
    save_file({name: value for name, value in tensors.items() if value is not None}, path)
    assert refusal(saved) == (
        f"tensors cannot be used: {str(path)!r} ({reason}); train again, or copy the directory "
        "again"
    )
