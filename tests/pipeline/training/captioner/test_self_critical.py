"""Tests of self-critical training: results, updates, rewards, and errors."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from a2cap.data.batches.collate import collate
from a2cap.data.batches.dataset import CaptionDataset
from a2cap.data.batches.loader import Batches
from a2cap.data.captions.document_frequencies import DocumentFrequencies
from a2cap.data.errors import A2Error, ConfigError
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.pipeline.captioning.saved_captioner import load_model
from a2cap.pipeline.configuration import load_config, override
from a2cap.pipeline.training.captioner.self_critical import ImageRewards, SelfCriticalUpdater
from a2cap.pipeline.training.captioner.training_data import read_training_data
from tests.data.messages import message_of
from tests.experiments import copied_captioner, swap_words
from tests.pipeline.training.runs import SMALL_SCST, assert_equal_results, copied_artifacts, metrics


def moved(refine, directory):
    """Return the names of the tensors that differ from those of cross-entropy."""
    before, after = (
        load_file(directory / "model.safetensors") for directory in (refine.model, directory)
    )
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_the_captioner_changes_but_not_its_masks_and_schedule_step(
    refine, uninterrupted_refinement
):
    names = moved(refine, uninterrupted_refinement)
    assert "decoder.output.weight" in names
    assert "schedule_step" not in names
    assert not any("mask_network" in name for name in names)


@pytest.mark.slow
def test_continued_masks_change_too_and_their_loss_is_reported(refine, tmp_path):
    result = refine(tmp_path / "continued", "scst.mask=continued", "scst.epochs=1")
    names = moved(refine, result)
    assert any("mask_network" in name for name in names)
    assert "schedule_step" not in names
    assert metrics(result)[0]["mask_loss"] < 0  # a masked caption is less probable


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        "scst.baseline=greedy",
        "scst.baseline=beam_mean",
        "scst.idf=caption",
        "scst.eos=false",
        "scst.bleu_weight=0.5",
        "scst.dropout=rescore",
        "scst.seed=1",
        "scst.precision=bf16",
    ],
)
def test_other_settings_train_another_captioner(refine, uninterrupted_refinement, tmp_path, choice):
    result = refine(tmp_path / "other", choice)
    assert (
        load_file(result / "model.safetensors").keys()
        == load_file(uninterrupted_refinement / "model.safetensors").keys()
    )
    changed, plain = (metrics(directory)[0] for directory in (result, uninterrupted_refinement))
    assert (changed["loss"], changed["reward"]) != (plain["loss"], plain["reward"])


@pytest.mark.slow
def test_the_reward_rises(refine, tmp_path):
    longer = ("scst.epochs=36", "scst.patience=36", "scst.samples=5", "scst.checkpoint_every=1000")
    rewards = [line["reward"] for line in metrics(refine(tmp_path / "longer", *longer))]
    assert sum(rewards[-4:]) > 1.1 * sum(rewards[:4])  # one epoch's reward is noisy


@pytest.fixture
def ready(refine):
    """A captioner, a batch of six images, and the updater under some overrides."""

    def make(*overrides, double=True):
        config = load_config(refine.config_file, (*SMALL_SCST, *overrides)).scst
        cpu = torch.device("cpu")
        captioner = load_model(refine.model, device=cpu).captioner
        data = read_training_data(refine.features, refine.captions)
        dataset = CaptionDataset(data.store.path, data.captions, "train", seed=0)
        batch = next(Batches(dataset, collate, batch_size=6, seed=0).epoch(0))
        rewards = ImageRewards.read(refine.captions, config, device=cpu)
        return captioner, batch, SelfCriticalUpdater(captioner, config, rewards)

    return make


def test_samples_depend_only_on_the_number_of_the_update(ready):
    _, batch, first = ready()
    _, _, second = ready()
    torch.manual_seed(5)
    assert first.step(batch, 3) == second.step(batch, 3)
    _, _, third = ready()
    assert third.step(batch, 4) != first.step(batch, 3)


def test_dropout_is_off_unless_rescoring_uses_it(ready):
    captioner, batch, updater = ready()
    updater.step(batch, 1)
    assert not captioner.training
    captioner, batch, updater = ready("scst.dropout=rescore")
    updater.step(batch, 1)
    assert captioner.training


def test_penalties_of_the_captioner_have_a_gradient(ready, monkeypatch):
    """Gradients with a penalty differ by the penalty's, which is per token of the samples."""
    gradients = []
    for weight in (0.0, 0.5):
        captioner, batch, updater = ready()
        bias = captioner.decoder.output.bias

        def penalties(scored, memory, captions, weight=weight, bias=bias):
            return {"further": weight * bias.sum()}

        monkeypatch.setattr(captioner, "penalties", penalties)
        for _, adam in updater.sides:
            monkeypatch.setattr(adam, "step", lambda: None)
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_, **__: torch.ones(()))
        updater.step(batch, 1)
        gradients.append(bias.grad.clone())
    torch.testing.assert_close(
        gradients[1] - gradients[0], torch.full_like(gradients[0], 0.5), atol=1e-5, rtol=0
    )


def test_a_penalty_of_true_captions_is_left_out(ready, monkeypatch):
    captioner, batch, updater = ready()
    unknown = {"words": captioner.decoder.output.bias.sum() * torch.nan}
    monkeypatch.setattr(captioner, "penalties", lambda *_: unknown)
    monkeypatch.setattr(captioner, "penalties_of_truth", ("words",))
    (update,) = updater.step(batch, 1)
    assert update.finite


def test_hard_attention_is_not_rescored_with_dropout(refine, tmp_path, monkeypatch):
    monkeypatch.setattr(EncoderDecoder, "samples_regions", True)
    with pytest.raises(A2Error) as error:
        refine(tmp_path / "out", "scst.dropout=rescore")
    assert str(error.value) == (
        "scst.dropout is 'rescore', which samples other regions than the captions were sampled "
        "with: hard attention; set scst.dropout to off"
    )


def test_an_update_reports_rewards_losses_and_length(ready):
    _, batch, updater = ready("scst.mask=continued")
    (update,) = updater.step(batch, 1)
    assert update.finite
    assert update.amount > 0
    assert update.image_ids == tuple(name for part in batch for name in part.image_ids)
    assert update.scalars.keys() == {*("loss", "reward", "baseline", "mask_loss", "length", "lr")}
    assert update.scalars["length"] == update.amount / 12


def test_a_caption_is_rewarded_by_the_references_of_its_image(refine):
    config = load_config(refine.config_file, SMALL_SCST).scst
    rewards = ImageRewards.read(refine.captions, config, device=torch.device("cpu"))
    data = read_training_data(refine.features, refine.captions)
    ids = data.captions.image_ids("train")[:2]
    own = [torch.from_numpy(data.captions.captions(name)[:1]).long() for name in ids]
    captions = torch.stack([torch.cat(own), torch.cat(own)])
    values = rewards(ids, captions)
    assert values[0, 0] > values[0, 1]
    assert values[1, 1] > values[1, 0]


def count_the_words(captions, references):
    assert all(isinstance(text, str) for group in references for text in group)
    return [len(caption.split()) for caption in captions]


def fail(captions, references):
    return [0.0] * (len(captions) - 1)


def test_a_reward_of_ones_own_gets_the_captions_and_the_references(refine):
    own = f"{__name__}:count_the_words"
    config = load_config(refine.config_file, (*SMALL_SCST, f"scst.reward={own}")).scst
    rewards = ImageRewards.read(refine.captions, config, device=torch.device("cpu"))
    captions = torch.tensor([[[5, 6, 2, 0], [5, 2, 0, 0]], [[2, 0, 0, 0], [4, 5, 6, 7]]])
    names = read_training_data(refine.features, refine.captions).captions.image_ids("train")[:2]
    assert rewards(names, captions).tolist() == [[2, 1], [0, 4]]
    # a result is another one with another reward, and without one it keeps its key
    assert config.model_dump(mode="json")["reward"] == own


@pytest.mark.parametrize("name", ["cider", "a b:c", ":f", "module:", "module:f()", "../x:f"])
def test_a_reward_without_module_or_function_is_rejected(name):
    message = message_of(load_config, None, [override("scst.reward", name)], error=ConfigError)
    assert f"scst.reward: {name!r} is not module:function; name a function of a module" in message


def test_a_reward_that_fails_is_named(refine, tmp_path):
    own = f"{__name__}:fail"
    message = message_of(refine, tmp_path / "model", f"scst.reward={own}", error=A2Error)
    assert message == (
        f"scst.reward {own!r} returned 11 numbers for 12 captions; return one number for each"
    )


def test_reading_a_captioner_imports_no_reward(refine, tmp_path):
    """Its resolved configuration may name an external module."""
    model = Path(shutil.copytree(refine.model, tmp_path / "model"))
    (tmp_path / "evil_reward.py").write_text("raise SystemExit('imported')")
    (model / "evil_reward.py").write_text("raise SystemExit('imported')")
    for path in (model / "config.yaml", model / "resolved_config.yaml"):
        path.write_text("scst: {reward: 'evil_reward:f'}")
    load_model(model, device=torch.device("cpu"))
    assert load_config(model / "config.yaml", is_of_user=False).scst.reward == "evil_reward:f"
    assert "evil_reward" not in sys.modules


def test_frequencies_of_another_vocabulary_are_rejected(refine, tmp_path):
    captions = Path(shutil.copytree(refine.captions, tmp_path / "captions"))
    frequencies = DocumentFrequencies.load(captions / "document_frequencies.npz")
    replace(frequencies, words=(*frequencies.words[:4], "zebra", *frequencies.words[5:])).save(
        captions / "document_frequencies.npz"
    )
    assert message_of(replace(refine, captions=captions), tmp_path / "model") == (
        f"document frequencies and vocabulary do not match: {str(captions)!r}; "
        'run "a2 preprocess --force"'
    )


def test_a_model_of_another_vocabulary_is_rejected(refine, tmp_path):
    model = copied_captioner(refine.model, tmp_path / "model")
    swap_words(model)
    assert message_of(replace(refine, model=model), tmp_path / "refined", error=A2Error) == (
        f"model and captions do not match: {str(model)!r} has another vocabulary than "
        f'{str(refine.captions)!r}; run "a2 train --phase xe" again'
    )


@pytest.mark.slow
def test_the_captioner_of_cross_entropy_is_refined_and_the_report_states_both_trainings(
    experiment, tmp_path
):
    artifacts = copied_artifacts(experiment, tmp_path, "evaluate")
    with experiment.open(*SMALL_SCST, artifacts=artifacts) as opened:
        assert opened.names[-3:] == ["train-xe", "train-scst", "evaluate"]
        assert opened.status("evaluate").why == ["waits for train-scst"]
        trained = opened.run("train-xe")
        refined = opened.run("train-scst")
        assert (trained.ran, opened.run("train-scst").ran) == (False, False)
        assert opened.stage("evaluate").inputs["model"].path == refined.directory
        evaluated = opened.run("evaluate")
    before = trained.manifest.origin.fields["train"]
    provenance = json.loads((evaluated.directory / "metrics.json").read_text())["provenance"]
    assert {name: provenance[f"scst.{name}"] for name in ("baseline", "idf", "eos")} == {
        "baseline": "leave_one_out",
        "idf": "image",
        "eos": "True",
    }
    fields = {name: value for name, value in provenance.items() if name.startswith("train.")}
    expected = {f"train.{name}": str(value) for name, value in before.items()}
    assert expected.items() <= fields.items()
    assert "train.captions_per_image" in expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_ranks_train_equal_captioners_each_time(refine, together, tmp_path):
    for name in ("one", "other"):
        together(2, lambda ranks, name=name: str(refine(tmp_path / name)))
    assert [line["step"] for line in metrics(tmp_path / "one")] == [6, 12]
    assert_equal_results(tmp_path / "one", tmp_path / "other")
