"""Stage train-encoder in an experiment: its order, its result, its resume, and what it refuses."""

import errno
import logging
import re
import shutil
import signal
import tarfile
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file

import a2cap
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.files.atomic import write_durably
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.extract.grid import grid_parameters
from a2cap.extract.torchvision_module import torchvision_module
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.engine.status import UnfinishedStageError
from a2cap.pipeline.stages import plan
from a2cap.pipeline.training.checkpoints import training_disk
from a2cap.pipeline.training.encoder import captioned_images
from a2cap.pipeline.training.encoder.train import EncoderUpdater
from a2cap.pipeline.training.encoder.validation import EncoderInTraining
from a2cap.pipeline.weights.detectors import BUNDLED
from tests.experiments import (
    SECTIONS,
    a2,
    check_of,
    copied_captioner,
    free,
    make_experiment,
    problems,
)
from tests.pipeline.training.runs import copied_artifacts, until_done, without_speed

ENCODER = (
    "extract.weights=encoder",
    "extract.boxes=grid",
    "extract.grid_backbone=efficientnet-lite2",
    "extract.grid_size=7",
    "encoder.side=32",
    "encoder.epochs=2",
    "encoder.batch_size=8",
    "encoder.min_images=4",
    "encoder.trained=0.1",
    "encoder.warmup=1",
    "encoder.checkpoint_every=2",
)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Return an experiment that has preprocessed its captions, and trained nothing."""
    made = make_experiment(tmp_path_factory.mktemp("encoder") / "made", sections=SECTIONS)
    made.open().run("preprocess")
    return made


def trained(scenes, *overrides, runs="train-encoder"):
    with scenes.open(*ENCODER, *overrides) as opened:
        return opened.run(runs)


def test_the_encoder_comes_between_captions_and_features(scenes):
    with scenes.open(*ENCODER) as opened:
        assert opened.names[:4] == ["preprocess", "train-encoder", "extract", "train-xe"]
        assert opened.status("extract").why == ["waits for train-encoder"]
        assert opened.encoder() == ["train-encoder"]
    with scenes.open() as opened:
        assert "train-encoder" not in opened.names
        with pytest.raises(ConfigError) as raised:
            opened.encoder()
    assert str(raised.value) == (
        f"no encoder is trained: extract.weights is {str(scenes.weights)!r}; set it to encoder, "
        "and leave data.features out"
    )


@pytest.fixture
def decoded(monkeypatch):
    """Return the names of the images that are decoded from now on."""
    names, decode = [], captioned_images.decode_image

    def counted(encoded, name):
        names.append(name)
        return decode(encoded, name)

    monkeypatch.setattr(captioned_images, "decode_image", counted)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["words", "captions"])
def test_a_stopped_training_ends_as_an_uninterrupted_one(scenes, objective, decoded, monkeypatch):
    precision = {"words": "bf16", "captions": "fp32"}[objective]
    of = (f"encoder.objective={objective}", f"encoder.precision={precision}", "encoder.seed=1")
    of += ("encoder.crop=0.9",) if objective == "words" else ()  # of which images are kept smaller
    whole = trained(scenes, *of)
    stops, step = {2: signal.SIGINT, 5: signal.SIGTERM}, EncoderUpdater.step

    def step_and_signal(self, parts, number):
        updates = step(self, parts, number)
        if number in stops:
            signal.raise_signal(stops.pop(number))
        return updates

    monkeypatch.setattr(EncoderUpdater, "step", step_and_signal)
    again: list[Outcome] = []

    def run_again():
        with scenes.open(*ENCODER, *of) as opened:
            target = scenes.folder / f"again by {objective}"
            again.append(opened.run("train-encoder", output=target))

    assert until_done(run_again) == [signal.SIGINT, signal.SIGTERM]
    first, second = whole.directory, again[0].directory
    is_kept = max(Counter(decoded).values()) == 2
    assert is_kept == (objective == "words")
    files = [folder / "encoder.safetensors" for folder in (first, second)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert without_speed(first) == without_speed(second)
    score, unit = {"words": ("mAP", "images"), "captions": ("likelihood", "tokens")}[objective]
    assert f'"{unit}_per_second"' in (first / "metrics.jsonl").read_text()
    assert all(0 < line[score] <= 1 for line in without_speed(first))
    # most of what is trained has moved
    moved = load_file(files[0])
    assert all(name.startswith(("_conv_head", "_bn1", "_blocks.20")) for name in moved)
    assert any(tensor.float().abs().max() > 0 for tensor in moved.values())


@pytest.mark.slow
def test_features_are_those_of_the_trained_encoder(scenes):
    trained(scenes)
    extracted = trained(scenes, runs="extract")
    own = load_file(extracted.directory / "weights.safetensors")
    with scenes.open(*ENCODER) as opened:
        encoder = opened.result("train-encoder", needed_by="a test").directory
    expected = load_file(encoder / "encoder.safetensors")
    assert own.keys() == expected.keys()
    assert all(torch.equal(own[name].float(), expected[name].float()) for name in own)
    # its file is a name of the same weights
    with scenes.open(*ENCODER, f"extract.weights={encoder / 'encoder.safetensors'}") as opened:
        assert opened.run("extract").ran is False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_ranks_train_the_encoder_of_one(scenes, two_ranks, tmp_path):
    alone = trained(scenes, "encoder.dropout=0").directory
    artifacts = copied_artifacts(scenes, tmp_path, "train-encoder", "extract")
    fields = [word for field in (*ENCODER, "encoder.dropout=0") for word in ("--set", field)]
    where = ("-c", scenes.config_file, "--artifacts", artifacts)
    ranks = two_ranks("train", "--task", "encoder", *where, *fields)
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks
    joint = artifacts / "train-encoder" / alone.name
    for line, its in zip(without_speed(joint), without_speed(alone), strict=True):
        assert line == pytest.approx(its, rel=1e-4)
    ours, theirs = (load_file(folder / "encoder.safetensors") for folder in (joint, alone))
    for name in ours:  # a step between two differences of one byte is a quarter of them
        torch.testing.assert_close(ours[name].float(), theirs[name].float(), rtol=0.25, atol=1e-5)


@pytest.mark.slow
def test_a_captioner_carries_its_encoder_to_another_place(scenes, tmp_path):
    artifacts = copied_artifacts(scenes, tmp_path)
    with scenes.open(*ENCODER, "train.epochs=1", artifacts=artifacts) as opened:
        for stage in ("train-encoder", "extract", "train-xe"):
            directory = opened.run(stage).directory
    model = copied_captioner(directory, tmp_path / "moved")
    shutil.rmtree(artifacts)
    image, figure = sorted((scenes.scenes / "images").iterdir())[0], tmp_path / "figure.png"
    answer = a2("caption", image, "--model", model, "--figure", figure, code=0)
    caption = a2cap.load(model)(image)
    assert answer.stdout.splitlines()[0] == f"{image}: {caption.caption}"
    assert len(caption.boxes) == 49
    assert figure.stat().st_size > 1000


def test_a_damaged_image_is_skipped_and_named(tmp_path, monkeypatch):
    made = make_experiment(tmp_path / "made")
    made.open().run("preprocess")
    image = sorted((made.scenes / "images").iterdir())[0]
    image.write_bytes(image.read_bytes()[:900])
    monkeypatch.setattr(EncoderUpdater, "step", lambda *_: [])  # the look is enough
    with made.open(*ENCODER, "encoder.epochs=1") as opened:
        result = opened.run("train-encoder")
    [skipped] = read_manifest(result.directory).skipped
    assert skipped.image_id == image.stem


def without_space(reason):
    return (
        f"cannot write smaller copies of images: {reason}; decoding the others in each epoch, "
        "which takes longer; free disk space, and run the same command again to avoid it"
    )


@pytest.mark.slow
def test_a_full_disk_costs_smaller_images_and_changes_no_result(
    scenes, decoded, monkeypatch, caplog
):
    write, of = write_durably, ("encoder.epochs=1", "encoder.crop=0.9", "encoder.trained=0.01")

    def full(path, content):
        if len(decoded) > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    whole = trained(scenes, *of).directory
    assert max(Counter(decoded).values()) == 1
    decoded.clear()
    with monkeypatch.context() as patched, scenes.open(*ENCODER, *of) as opened:
        patched.setattr(captioned_images, "write_durably", full)
        again = opened.run("train-encoder", output=scenes.folder / "full disk").directory
    # the look and an epoch, or the validation, decode what has no smaller copy
    times = Counter(decoded)
    assert [times[name] for name in dict.fromkeys(decoded)] == [1] * 5 + [2] * (len(times) - 5)
    assert [text for text in caplog.messages if text == without_space("No space left on device")]
    files = [folder / "encoder.safetensors" for folder in (whole, again)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert without_speed(whole) == without_speed(again)
    assert not list(again.glob("**/*small*"))


@pytest.mark.slow
def test_smaller_images_leave_the_disk_space_of_checkpoints(scenes, decoded, monkeypatch, caplog):
    monkeypatch.setattr(EncoderUpdater, "step", lambda *_: [])
    with scenes.open(*ENCODER) as opened:
        needed = training_disk(grid_parameters(opened.config.extract))
    for spare, times, seed in ((0, 2, 5), (10**6, 1, 6)):
        free(monkeypatch, needed + spare)
        decoded.clear()
        trained(scenes, "encoder.epochs=1", "encoder.crop=0.9", f"encoder.seed={seed}")
        assert {*Counter(decoded).values()} == {times}
    expected = without_space("checkpoints need the free disk space")
    assert [text for text in caplog.messages if text == expected] == [expected]


@pytest.mark.slow
def test_images_of_a_tar_are_read_and_no_list_of_them_is_left(scenes, tmp_path, monkeypatch):
    source = tmp_path / "images.tar"
    with tarfile.open(source, "w") as tar:
        for image in (scenes.scenes / "images").iterdir():
            tar.add(image, image.name)
    monkeypatch.setattr(EncoderUpdater, "step", lambda *_: [])  # the validation reads them
    result = trained(scenes, f"data.images={source}", "encoder.epochs=1").directory
    assert not read_manifest(result).skipped
    assert without_speed(result)[0]["mAP"] > 0
    assert not (result / "images.jsonl").exists()


@pytest.mark.slow
def test_what_cannot_train_is_refused_before_anything_runs(scenes):
    def refused(*overrides):
        with scenes.open(*ENCODER, *overrides) as opened:
            return problems(opened, "train-encoder")

    with pytest.raises(ConfigError) as raised:
        scenes.open(*ENCODER, "extract.boxes=detect")
    assert str(raised.value).endswith(
        "extract.weights is 'encoder', but extract.boxes is 'detect', which pools no map of "
        "extract.grid_backbone; set extract.boxes to grid"
    )
    assert refused("extract.grid_backbone=resnet18") == [
        "no weights of resnet18 are named to start from; set encoder.start to its state dict, or "
        "extract.grid_backbone to efficientnet-lite2"
    ]
    assert refused("encoder.start=no such.pth")[0].startswith("file of encoder.start not found")
    assert refused("encoder.start=https://x.org/a.pth")[0].startswith("weights are a URL, which ")
    assert refused("encoder.start=encoder") == [
        "weights 'encoder' are known to extract.weights alone, where they are trained; name "
        "their file, encoder.safetensors in a result of train-encoder"
    ]
    assert refused("encoder.start=scenes") == [
        "weights 'scenes_detector.safetensors' are of another network, extract.grid_backbone is "
        "'efficientnet-lite2'; name weights of the latter, or correct extract.grid_backbone"
    ]
    text = str(scenes.scenes / "dataset_coco.json")
    assert refused(f"encoder.start={text}")[0].startswith(
        "weights 'dataset_coco.json' have an unknown format: the file begins with b"
    )


def test_the_bundled_encoder_is_a_start_by_its_name(scenes):
    with scenes.open(*ENCODER, "encoder.start=photos") as opened:
        assert opened.stage("train-encoder").inputs["start"].path == BUNDLED["photos"].path


def test_an_encoder_of_another_network_is_refused_before_anything_runs(scenes):
    file = trained(scenes).directory / "encoder.safetensors"
    other = "extract.grid_backbone=resnet18"
    with scenes.open(*ENCODER, other, f"encoder.start={file}") as opened:
        assert problems(opened, "train-encoder") == [
            "weights 'encoder.safetensors' are of efficientnet-lite2, extract.grid_backbone is "
            "'resnet18'; name weights of the latter, or correct extract.grid_backbone"
        ]
    with scenes.open(f"extract.weights={file}", "extract.boxes=grid", other) as opened:
        assert problems(opened, "extract") == [
            "the weights were trained with other settings: extract.grid_backbone is resnet18; add "
            "--set extract.grid_backbone=efficientnet-lite2"
        ]


def state_dict(network, path):
    """Write weights of a network of torchvision, without those of its classifier."""
    with torch.device("meta"):
        tensors = torchvision_module("models").get_model(network).state_dict()
    kept = {n: torch.zeros_like(t, device="cpu") for n, t in tensors.items() if "classi" not in n}
    torch.save(kept, path)
    return path


@pytest.mark.slow
def test_a_state_dict_of_another_network_is_refused_before_anything_runs(scenes, tmp_path):
    file = state_dict("resnet18", tmp_path / "other.pth")
    grid, other = "extract.boxes=grid", "extract.grid_backbone=resnet34"
    refused = (
        "weights 'other.pth' do not fit resnet34: 80 tensors are missing, unknown or of another "
        "shape, first layer1.2.bn1.bias; name its state dict, or correct extract.grid_backbone"
    )
    with scenes.open(*ENCODER, other, f"encoder.start={file}") as opened:
        assert problems(opened, "train-encoder") == [refused]
    with scenes.open(f"extract.weights={file}", grid, other) as opened:
        assert problems(opened, "extract") == [refused]
    fields = [
        word for field in (f"extract.weights={file}", grid, other) for word in ("--set", field)
    ]
    place = ("-c", scenes.config_file, "--artifacts", tmp_path / "new", *fields)
    assert a2("run", *place, code=1).stderr == f"a2: {refused}\n"
    assert f"extract        problem  weights: {refused}\n" in a2("doctor", *place, code=1).stdout
    assert not list(tmp_path.glob("new/*/"))


def test_a_network_without_a_map_is_refused_before_anything_runs(scenes, tmp_path):
    def refused(network, layer):
        fields = (f"extract.grid_backbone={network}", f"extract.grid_layer={layer}")
        start = state_dict(network, tmp_path / "a.pth")
        with scenes.open(*ENCODER, *fields, f"encoder.start={start}") as opened:
            return problems(opened, "train-encoder")

    assert refused("resnet18", "fc") == [
        "extract.grid_layer has no spatial map: 'fc' of resnet18; name a convolutional layer"
    ]
    assert refused("alexnet", "features") == [
        "alexnet takes no images of 32 pixels a side: Given input size: (256x1x1). Calculated "
        "output size: (256x0x0). Output size is too small; set encoder.side to another, or "
        "to null"
    ]


def test_changed_captions_make_the_encoder_stale(tmp_path):
    made = make_experiment(tmp_path / "made")
    made.open().run("preprocess")
    trained(made, "encoder.epochs=1")
    annotations = made.scenes / "dataset_coco.json"
    annotations.write_text(annotations.read_text().replace("a small", "one small"))
    with made.open(*ENCODER, "encoder.epochs=1") as opened:
        assert opened.status("train-encoder").why == ["waits for preprocess"]
        opened.run("preprocess")
        assert opened.status("train-encoder").why == ["inputs.captions changed"]
        assert opened.status("extract").why == ["waits for train-encoder"]


@pytest.mark.slow
def test_without_memory_for_a_part_its_halves_are_learnt(scenes, caplog, monkeypatch):
    losses, sizes = EncoderUpdater.losses, []

    def small(self, part, number, index):
        if len(part.image_ids) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(part.image_ids))
        return losses(self, part, number, index)

    monkeypatch.setattr(EncoderUpdater, "losses", small)
    trained(scenes, "encoder.epochs=1", "encoder.seed=2")
    assert set(sizes) == {2}
    assert (
        "out of memory with 8 images at once; computing 4 at a time, with the gradient of the "
        "whole batch; set accumulate to 2 or more to begin so"
    ) in caplog.messages


def test_without_memory_for_an_image_the_settings_that_need_less_are_named(scenes, monkeypatch):
    def none(self, part, number, index):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(EncoderUpdater, "losses", none)
    with pytest.raises(A2Error) as raised:
        trained(scenes, "encoder.epochs=1", "encoder.seed=3")
    assert str(raised.value) == (
        "out of memory with 1 images at once on cpu; lower encoder.side, or use a larger GPU"
    )


@pytest.mark.slow
def test_a_batch_that_exceeds_the_memory_is_refused_before_anything_runs(scenes, monkeypatch):
    def memory(available):
        monkeypatch.setattr(plan, "available_memory", lambda: available)
        return scenes.open(*ENCODER, "encoder.seed=9")

    assert problems(memory(10**7), "train-encoder") == [
        "memory too small for training the encoder: about 31.8 MB needed, 10.0 MB free; end other "
        "programs, or raise encoder.accumulate, or lower encoder.batch_size or encoder.side"
    ]
    assert check_of(memory(10**8), "train-encoder", "memory").text == (
        "training the encoder takes about 31.8 MB, 100 MB free"
    )


def test_a_batch_that_exceeds_the_memory_of_a_gpu_is_not_rejected(scenes, monkeypatch):
    monkeypatch.setattr(plan, "prepare_device", lambda runtime: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**7, 10**8))
    check = check_of(scenes.open(*ENCODER, "encoder.seed=9"), "train-encoder", "memory")
    assert (check.state, check.text) == (
        "ok",
        "training the encoder takes about 31.8 MB, 10.0 MB free",
    )


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["words", "captions"])
def test_validation_halves_what_exceeds_the_memory(scenes, objective, monkeypatch):
    cells, sizes = EncoderInTraining.cells, []

    def small(self, pixels):
        if not self.training and len(pixels) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(pixels))
        return cells(self, pixels)

    monkeypatch.setattr(EncoderUpdater, "step", lambda *_: [])
    of = ("encoder.epochs=1", f"encoder.objective={objective}", "encoder.seed=4")
    whole = without_speed(trained(scenes, *of).directory)
    monkeypatch.setattr(EncoderInTraining, "cells", small)
    again = scenes.folder / f"halves by {objective}"
    with scenes.open(*ENCODER, *of) as opened:
        halves = without_speed(opened.run("train-encoder", output=again).directory)
    assert sizes == [2, 2]
    assert halves == [pytest.approx(line, rel=1e-4) for line in whole]


def test_few_images_for_many_words_and_small_images_are_said(scenes, caplog, monkeypatch):
    monkeypatch.setattr(EncoderUpdater, "step", lambda *_: [])
    with caplog.at_level(logging.WARNING):
        trained(scenes, "encoder.min_images=1", "encoder.side=128", "encoder.epochs=1")
    assert any(
        text == "images have as few as 96 pixels a side and are scaled up to encoder.side, 128; "
        "lower it if most are so small"
        for text in caplog.messages
    )
    [few] = [text for text in caplog.messages if text.startswith("fewer images than words")]
    assert re.fullmatch(
        r"fewer images than words: 32 and \d+; an encoder learns the images by heart, raise "
        r"encoder\.min_images, or leave the encoder as it is",
        few,
    )


def test_no_frequent_word_ends_the_stage(scenes):
    with pytest.raises(InputError, match=r"; lower encoder\.min_images, or "):
        trained(scenes, "encoder.min_images=1000")


def test_commands_name_the_encoder(scenes):
    words = [word for field in ENCODER for word in ("--set", field)]
    where = ["-c", scenes.config_file, "--artifacts", scenes.folder / "elsewhere", *words]
    answer = a2("train", "--task", "encoder", *where, code=1)
    assert 'train-encoder needs preprocess, which is not finished; run "a2 preprocess"' in (
        answer.stderr
    )
    states = a2("status", *where, code=0).stdout.splitlines()
    assert states[:2] == ["preprocess     to run", "train-encoder  waiting"]
    assert str(UnfinishedStageError("extract", "train-encoder")) == (
        'extract needs train-encoder, which is not finished; run "a2 train --task encoder" or '
        '"a2 run"'
    )
