"""Self-critical training: what it makes, what moves, what is refused, and exact resume."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from a2cap.data.batches.collate import collate
from a2cap.data.batches.dataset import CaptionDataset
from a2cap.data.batches.loader import epoch_batches
from a2cap.data.captions.document_frequencies import DocumentFrequencies
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, InputError
from a2cap.pipeline.captioning.saved_captioner import load_model
from a2cap.pipeline.config import load_config
from a2cap.pipeline.engine.interruption import Interrupted
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.training.captioner import self_critical
from a2cap.pipeline.training.captioner.config import SelfCriticalJob
from a2cap.pipeline.training.captioner.data import read_training_data
from a2cap.pipeline.training.captioner.rewards import ImageRewards
from a2cap.pipeline.training.captioner.self_critical import SelfCriticalOptimizer
from a2cap.pipeline.training.checkpoints import Checkpoints

SMALL = (
    "scst.epochs=2",
    "scst.batch_size=6",
    "scst.samples=2",
    "scst.lr=1e-3",
    "scst.max_length=8",
    "scst.checkpoint_every=4",
    "scst.validation_beam_size=2",
)
STEPS_PER_EPOCH, STEPS = 6, 12  # of the 32 training images
OUTPUTS = (
    "model.safetensors",
    "model.json",
    "vocabulary.json",
    "extractor.json",
)


@dataclass(frozen=True)
class Refiner:
    """Trains the tiny experiment's captioner on, or a changed one."""

    config_file: Path
    features: Path
    captions: Path
    model: Path

    def __call__(self, directory, *overrides):
        """The directory, filled."""
        directory.mkdir(exist_ok=True)
        config = load_config(self.config_file, (*SMALL, *overrides))
        self_critical.refine_captioner(
            SelfCriticalJob(
                scst=config.scst,
                features=self.features,
                captions=self.captions,
                model=self.model,
            ),
            config.runtime,
            directory=directory,
            events=EventLog(directory),
        )
        return directory


@pytest.fixture(scope="module")
def refine(experiment):
    stages = ("extract", "preprocess", "train-xe")
    return Refiner(experiment.config_file, *map(experiment.directory, stages))


@pytest.fixture(scope="module")
def uninterrupted(refine, tmp_path_factory):
    return refine(tmp_path_factory.mktemp("self-critical") / "uninterrupted")


@pytest.fixture
def signals(monkeypatch):
    """Real signals at the end of updates: step -> the signals that come then."""
    at = {}
    update = SelfCriticalOptimizer.step

    def update_and_signal(self, parts, number):
        found = update(self, parts, number)
        for sent in at.get(number, ()):
            signal.raise_signal(sent)
        return found

    monkeypatch.setattr(SelfCriticalOptimizer, "step", update_and_signal)
    return at


def lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def assert_equal_results(one, other):
    """Bit for bit, and what is said of each epoch."""
    for name in OUTPUTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    said = [
        [{**line, "tokens_per_second": None} for line in lines(place)] for place in (one, other)
    ]
    assert said[0] == said[1]


def moved(refine, directory):
    """Names of the tensors that are not what cross-entropy made."""
    before, after = (load_file(place / "model.safetensors") for place in (refine.model, directory))
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


# what it makes


def test_a_directory_holds_all_that_captions_need(uninterrupted, refine):
    assert {path.name for path in uninterrupted.iterdir()} == {
        *OUTPUTS,
        "weights.safetensors",
        "checkpoints",
        "metrics.jsonl",
        "events.jsonl",
        "tensorboard",
    }
    for name in ("model.json", "vocabulary.json", "extractor.json"):
        assert (uninterrupted / name).read_bytes() == (refine.model / name).read_bytes()


def test_metrics_have_one_line_per_epoch(uninterrupted):
    found = lines(uninterrupted)
    assert [(line["epoch"], line["step"]) for line in found] == [(1, 6), (2, 12)]
    names = {"epoch", "step", "loss", "reward", "baseline", "CIDEr", "tokens_per_second"}
    assert all(line.keys() == names for line in found)


def test_the_captioner_moves_but_neither_masks_nor_schedule_step(refine, uninterrupted):
    names = moved(refine, uninterrupted)
    assert "decoder.output.weight" in names
    assert "schedule_step" not in names
    assert not any("mask_network" in name for name in names)


def test_continued_masks_move_too_and_their_loss_is_reported(refine, tmp_path):
    found = refine(tmp_path / "continued", "scst.mask=continued", "scst.epochs=1")
    names = moved(refine, found)
    assert any("mask_network" in name for name in names)
    assert "schedule_step" not in names
    assert lines(found)[0]["mask_loss"] < 0  # a masked caption is less probable


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
def test_other_recipes_train_too_and_make_another_captioner(
    refine, uninterrupted, tmp_path, choice
):
    found = refine(tmp_path / "other", choice)
    assert (
        load_file(found / "model.safetensors").keys()
        == load_file(uninterrupted / "model.safetensors").keys()
    )
    names = ("loss", "reward")
    one, other = (
        {name: lines(place)[0][name] for name in names} for place in (found, uninterrupted)
    )
    assert one != other


def test_parts_of_a_batch_draw_other_samples_but_train_as_well(refine, tmp_path):
    found = refine(tmp_path / "parts", "scst.accumulate=3", "scst.epochs=1")
    assert [line["step"] for line in lines(found)] == [6]


def test_equal_settings_train_equal_captioners(refine, uninterrupted, tmp_path):
    assert_equal_results(refine(tmp_path / "again"), uninterrupted)


@pytest.mark.slow
def test_the_reward_rises(refine, tmp_path):
    found = lines(
        refine(tmp_path / "longer", "scst.epochs=12", "scst.patience=12", "scst.samples=5")
    )
    rewards = [line["reward"] for line in found]
    assert sum(rewards[-4:]) > 1.1 * sum(rewards[:4])  # one epoch's reward is noisy


# the update


@pytest.fixture
def ready(refine):
    """A captioner, a batch of six images, and the optimisation under some overrides."""

    def make(*overrides, double=True):
        config = load_config(refine.config_file, (*SMALL, *overrides)).scst
        cpu = torch.device("cpu")
        captioner = load_model(refine.model, device=cpu).captioner
        data = read_training_data(refine.features, refine.captions)
        dataset = CaptionDataset(data.store.path, data.captions, "train", seed=0)
        batch = next(epoch_batches(dataset, collate, batch_size=6, seed=0, epoch=0))
        rewards = ImageRewards.read(refine.captions, config, device=cpu)
        return captioner, batch, SelfCriticalOptimizer(captioner, config, rewards)

    return make


def test_samples_depend_on_the_number_of_the_update_alone(ready):
    _, batch, first = ready()
    _, _, second = ready()
    torch.manual_seed(5)
    assert first.step(batch, 3) == second.step(batch, 3)
    _, _, third = ready()
    assert third.step(batch, 4) != first.step(batch, 3)


def test_an_update_leaves_the_global_random_state_alone(ready):
    _, batch, optimisation = ready()
    before = torch.get_rng_state()
    optimisation.step(batch, 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_off_unless_the_second_pass_is_asked_to_have_it(ready):
    captioner, batch, optimisation = ready()
    optimisation.step(batch, 1)
    assert not captioner.training
    captioner, batch, optimisation = ready("scst.dropout=rescore")
    optimisation.step(batch, 1)
    assert captioner.training


def test_what_is_measured_has_the_names_that_the_board_shows(ready):
    _, batch, optimisation = ready("scst.mask=continued")
    (update,) = optimisation.step(batch, 1)
    assert update.finite
    assert update.amount > 0
    assert update.image_ids == tuple(name for part in batch for name in part.image_ids)
    assert update.scalars.keys() == {*("loss", "reward", "baseline", "mask_loss", "length", "lr")}
    assert update.scalars["length"] == update.amount / 12


def test_rewards_are_those_of_the_image_that_a_caption_is_of(refine):
    config = load_config(refine.config_file, SMALL).scst
    rewards = ImageRewards.read(refine.captions, config, device=torch.device("cpu"))
    data = read_training_data(refine.features, refine.captions)
    ids = data.captions.image_ids("train")[:2]
    own = [torch.from_numpy(data.captions.captions(name)[:1]).long() for name in ids]
    captions = torch.stack([torch.cat(own), torch.cat(own)])
    found = rewards(ids, captions)
    assert found[0, 0] > found[0, 1]
    assert found[1, 1] > found[1, 0]


def test_frequencies_of_another_vocabulary_are_refused(refine, tmp_path):
    captions = Path(shutil.copytree(refine.captions, tmp_path / "captions"))
    found = DocumentFrequencies.load(captions / "document_frequencies.npz")
    replace(found, words=(*found.words[:4], "zebra", *found.words[5:])).save(
        captions / "document_frequencies.npz"
    )
    with pytest.raises(InputError) as error:
        replace(refine, captions=captions)(tmp_path / "model")
    assert str(error.value) == (
        f"document frequencies and vocabulary do not match: {str(captions)!r}; "
        'run "a2 preprocess --force"'
    )


def test_a_model_of_another_vocabulary_is_refused(refine, tmp_path):
    model = Path(shutil.copytree(refine.model, tmp_path / "model"))
    vocabulary = Vocabulary.load(model / "vocabulary.json")
    other = Vocabulary((*vocabulary.words[:-1], "zebra"), vocabulary.preset)
    other.save(model / "vocabulary.json")
    described = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**described, "vocabulary_digest": other.digest}))
    with pytest.raises(A2Error) as error:
        replace(refine, model=model)(tmp_path / "refined")
    assert str(error.value) == (
        f"model and captions do not match: {str(model)!r} has another vocabulary than "
        f'{str(refine.captions)!r}; run "a2 train --phase xe" again'
    )


# exact resume


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", [1, 3, 4, STEPS_PER_EPOCH, STEPS_PER_EPOCH + 1, STEPS])
def test_a_stopped_training_ends_as_if_left_alone(
    refine, uninterrupted, tmp_path, signals, step, workers
):
    sent = signal.SIGINT if step % 2 else signal.SIGTERM
    signals[step] = [sent]
    found, chosen = tmp_path / "stopped", f"runtime.workers={workers}"
    with pytest.raises(Interrupted) as stop:
        refine(found, chosen)
    assert stop.value.signal_number == sent
    assert Checkpoints(found / "checkpoints").steps()[-1] == step
    signals.clear()
    refine(found, chosen)
    assert_equal_results(found, uninterrupted)


@pytest.mark.parametrize("choice", ["scst.dropout=rescore", "scst.mask=continued"])
def test_dropout_and_masks_resume_exactly_too(refine, tmp_path, signals, choice):
    alone = refine(tmp_path / "alone", choice)
    signals[5] = [signal.SIGTERM]
    with pytest.raises(Interrupted):
        refine(tmp_path / "stopped", choice)
    signals.clear()
    assert_equal_results(refine(tmp_path / "stopped", choice), alone)


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_one_before(
    refine, uninterrupted, tmp_path, signals, caplog
):
    signals[10] = [signal.SIGTERM]
    found = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        refine(found)
    damaged = found / "checkpoints" / "step-00000010" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    signals.clear()
    refine(found)
    events = map(json.loads, (found / "events.jsonl").read_text().splitlines())
    assert [event["step"] for event in events if event["event"] == "resume"] == [8]
    assert "going back to the one before it" in caplog.text
    assert_equal_results(found, uninterrupted)


def test_a_loss_that_is_no_number_names_step_and_images_and_keeps_the_last_good_checkpoint(
    refine, tmp_path, monkeypatch
):
    compute, seen = self_critical.self_critical_loss, []

    def poisoned(log_probs, advantages):
        seen.append(None)
        return compute(log_probs, advantages) * (torch.nan if len(seen) == 6 else 1)

    monkeypatch.setattr(self_critical, "self_critical_loss", poisoned)
    with pytest.raises(A2Error) as error:
        refine(tmp_path / "poisoned")
    assert re.fullmatch(
        r"loss is not finite at step 6: loss nan, reward \d+\.\d+, baseline \d+\.\d+, "
        r"gradient norm nan \(images \d{12}(, \d{12})*\); the last good checkpoint is kept, "
        "lower scst.lr and train again",
        str(error.value),
    )
    kept = Checkpoints(tmp_path / "poisoned" / "checkpoints").latest()
    assert kept.step == 4
    assert all(tensor.isfinite().all() for tensor in kept.tensors.values())


# the stage


def copied(experiment, folder):
    ignored = shutil.ignore_patterns("evaluate")
    return Path(shutil.copytree(experiment.artifacts, folder / "artifacts", ignore=ignored))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_kill_9_in_the_middle_of_epochs_ends_with_the_same_digest(
    experiment, refine, tmp_path, workers
):
    overrides = (*SMALL, "scst.checkpoint_every=1", f"runtime.workers={workers}")
    (tmp_path / "killed").mkdir()
    (tmp_path / "alone").mkdir()
    artifacts = copied(experiment, tmp_path / "killed")
    opened = experiment.open(*overrides, artifacts=artifacts)
    partial = artifacts / "train-scst" / f"{opened.stage('train-scst').pre_image.key}.partial"
    command = [sys.executable, "-m", "a2cap.pipeline", "train", "-c", str(experiment.config_file)]
    command += ["--artifacts", str(artifacts), "--phase", "scst"]
    command += [word for override in overrides for word in ("--set", override)]
    log = partial / "events.jsonl"
    for _ in range(2):
        before = log.read_text().count('"checkpoint"') if log.exists() else 0
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None and (
            not log.exists() or log.read_text().count('"checkpoint"') < before + 3
        ):
            time.sleep(0.002)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    outcome = opened.run("train-scst")
    opened.close()
    with experiment.open(*overrides, artifacts=copied(experiment, tmp_path / "alone")) as alone:
        expected = alone.run("train-scst")
    assert outcome.manifest.digest == expected.manifest.digest
    assert_equal_results(outcome.directory, expected.directory)


def test_the_stage_reads_what_cross_entropy_made_and_is_evaluated(experiment, tmp_path):
    opened = experiment.open(*SMALL, artifacts=copied(experiment, tmp_path))
    with opened:
        assert opened.names[-3:] == ["train-xe", "train-scst", "evaluate"]
        assert opened.status("train-xe").state == "done"
        assert opened.status("evaluate").why == ["waits for train-scst"]
        refined = opened.run("train-scst")
        assert opened.stage("evaluate").inputs["model"].path == refined.directory
        assert not opened.run("train-scst").ran


def test_a_changed_field_reruns_self_critical_training_and_not_cross_entropy(experiment):
    with experiment.open(*SMALL, "scst.lr=1e-6", "scst.eos=false") as opened:
        assert opened.status("train-xe").state == "done"
        assert opened.status("train-scst").state == "to run"
    with experiment.open("scst.lr=1e-6", "scst.eos=false") as opened:
        assert opened.status("evaluate").state == "done"


@pytest.mark.slow
def test_the_report_says_what_was_rewarded_and_how_cross_entropy_trained(experiment, tmp_path):
    with experiment.open(*SMALL, artifacts=copied(experiment, tmp_path)) as opened:
        before = opened.run("train-xe").manifest.pre_image.params["train"]
        opened.run("train-scst")
        evaluated = opened.run("evaluate")
    provenance = json.loads((evaluated.directory / "metrics.json").read_text())["provenance"]
    assert {name: provenance[f"scst.{name}"] for name in ("baseline", "idf", "eos")} == {
        "baseline": "leave_one_out",
        "idf": "image",
        "eos": "True",
    }
    fields = {name: value for name, value in provenance.items() if name.startswith("train.")}
    assert fields == {f"train.{name}": str(value) for name, value in before.items()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_processes_train_one_captioner_the_same_each_time(refine, together, tmp_path):
    for name in ("one", "other"):
        together(2, lambda processes, name=name: str(refine(tmp_path / name)))
    assert [line["step"] for line in lines(tmp_path / "one")] == [6, 12]
    assert_equal_results(tmp_path / "one", tmp_path / "other")
