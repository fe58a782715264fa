"""Captions of image files, compared with those of the evaluation."""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from a2cap.data.batches.collate import collate
from a2cap.data.errors import InputError
from a2cap.pipeline.captioning import attention as caption_attention
from a2cap.pipeline.captioning import image_captioner
from a2cap.pipeline.captioning.caption_images import caption_files
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.named_images import NamedImage
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.weights.captioners import BUNDLED
from tests.experiments import a2, copied_captioner, detecting

CPU = RuntimeConfig(device="cpu")


@pytest.fixture
def boxes(experiment):
    return experiment.scenes / "instances.json"


@pytest.fixture
def model(experiment, tmp_path):
    """A copy of the trained directory outside the experiment."""
    return copied_captioner(experiment.directory("train-xe"), tmp_path / "my model")


def caption(images, *, model, boxes, beam_size=2, **how):
    photos = map(NamedImage, images)
    decoding = CaptioningConfig(beam_size=beam_size)
    pairs = caption_files(
        photos, models=[model], boxes=boxes, decoding=decoding, runtime=CPU, **how
    )
    return [(image.path, captioned) for image, captioned in pairs]


a2_caption = partial(a2, "caption")


def evaluated(experiment):
    entries = json.loads((experiment.directory("evaluate") / "captions.json").read_text())
    return {
        experiment.scenes / "images" / f"{entry['image_id']:012d}.jpg": entry["caption"]
        for entry in entries
    }


@pytest.fixture
def a2_words(experiment, model, boxes):
    """Return a function that runs the command with the experiment's model and boxes."""

    def run(*arguments, **options_of_run):
        options = ("--model", model, "--boxes", boxes, "--beam-size", 2)
        return a2_caption(*arguments, *options, **options_of_run)

    return run


def test_beams_are_printed_with_scores_and_widen_the_search(experiment, model, boxes, a2_words):
    image = next(iter(evaluated(experiment)))
    [(_, captioned)] = caption([image], model=model, boxes=boxes, beam_size=4)
    scores = [beam.score for beam in captioned.beams]
    assert scores == sorted(scores, reverse=True)
    answer = a2_words(image, "--beams", 4, code=0)
    assert len(scores) == 4
    assert answer.stdout.splitlines() == [
        f"{image}: {captioned.beams[0].caption}",
        *[f"{beam.score:>10.4f}  {beam.caption}" for beam in captioned.beams],
    ]
    assert len(a2_words(image, "--beams", 1).stdout.splitlines()) == 2


def test_json_is_an_object_per_image(experiment, model, boxes, a2_words):
    images = list(evaluated(experiment))
    answer = a2_words(*images, "--json")
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["image"] for line in lines] == list(map(str, images))
    expected = caption(images, model=model, boxes=boxes)
    for line, (_, captioned) in zip(lines, expected, strict=True):
        assert {"caption", "score", "beams"} < line.keys()
        assert line["model"] == str(model)
        assert line["beams"] == [
            {"caption": beam.caption, "score": pytest.approx(beam.score, abs=1e-4)}
            for beam in captioned.beams
        ]
        assert (line["caption"], line["score"]) == tuple(line["beams"][0].values())
        assert (line["width"], line["height"]) == (96, 96)
        assert np.allclose(line["boxes"], captioned.regions.boxes, atol=0.05)
    line_of_image = json.loads(a2_words(images[0], "--json", "--beams", 1).stdout)
    assert len(line_of_image["beams"]) == 1


@pytest.mark.slow
def test_a_folder_and_standard_input_name_images(experiment, a2_words, tmp_path):
    expected = evaluated(experiment)
    folder = tmp_path / "fotos d’été"
    (folder / "inner").mkdir(parents=True)
    first, second, *_ = expected
    shutil.copyfile(first, folder / "inner" / first.name)
    shutil.copyfile(second, folder / second.name)
    (folder / "letter.txt").write_text("dear")
    lines = f"{first}\r\n\n{first}".encode()
    answer = a2_words(folder, "-", input=lines, code=0)
    inside = {folder / second.name: second, folder / "inner" / first.name: first}
    assert answer.stdout.splitlines() == [
        *[f"{path}: {expected[inside[path]]}" for path in sorted(inside)],
        *[f"{first}: {expected[first]}"] * 2,
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("none", "x.jpg"),
            "no images in 'none' (searched for .avif .bmp .gif .heic .heif .hif .jfif .jpe "
            ".jpeg .jpg .mpo .png .tif .tiff .webp); check the folder",
        ),
        (("-",), "no images on standard input; write one path per line"),
        (("-", "-"), "standard input is named twice, as '-'; name it once"),
    ],
)
def test_missing_images_are_an_error(a2_words, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("none").mkdir()
    answer = a2_words(*arguments, input=b"\n")
    assert (answer.exit_code, answer.stdout, answer.stderr) == (1, "", f"a2: {message}\n")


@pytest.mark.slow
def test_group_sizes_grow_and_do_not_change_the_captions(experiment, model, boxes, monkeypatch):
    images = sorted((experiment.scenes / "images").iterdir())[:12]
    sizes = []
    monkeypatch.setattr(
        image_captioner, "collate", lambda items: sizes.append(len(items)) or collate(items)
    )
    together = caption(images, model=model, boxes=boxes, batch_size=4)
    assert sizes == [1, 2, 4, 4, 1]
    sizes.clear()
    alone = caption(images, model=model, boxes=boxes, batch_size=1)
    assert sizes == [1] * 12
    assert [c.beams[0].caption for _, c in together] == [c.beams[0].caption for _, c in alone]


@pytest.mark.slow
def test_each_caption_is_yielded_before_the_next_image_is_read(experiment, model, boxes):
    asked, images = [], list(evaluated(experiment))
    named_images = (asked.append(path) or NamedImage(path) for path in images)
    how = {"decoding": CaptioningConfig(beam_size=1), "runtime": CPU, "batch_size": 1}
    for image, _ in caption_files(named_images, models=[model], boxes=boxes, **how):
        assert asked == images[: len(asked)]
        assert image.path == asked[-1]


def test_decoding_follows_the_configuration(experiment, a2_words):
    image = next(iter(evaluated(experiment)))
    short = a2_words(image, "--set", "evaluate.max_length=2").stdout
    assert len(short.removeprefix(f"{image}: ").split()) <= 2
    groups = a2_words(image, "--set", "evaluate.groups=2", "--beams", 3, code=2)
    assert "3 beams cannot be divided among 2 groups" in groups.stderr


@pytest.mark.parametrize("field", ["model.width", "evaluate.ensemble", "evaluate.batch_size"])
def test_settings_without_effect_on_captions_are_rejected(a2_words, field):
    assert a2_words("x.jpg", "--set", f"{field}=3", code=2).stderr == (
        f"a2: setting has no effect on these captions: {field!r}; remove it, or set a field of "
        "runtime or evaluate (beam_size, collapse_repeats, consensus, diversity, ensemble_average, "
        "ensemble_weights, groups, length_penalty, max_length, method, min_length, "
        "no_repeat_ngram, precision, prompt, seed, temperature, top_k, top_p)\n"
    )


def test_a_stopped_command_reports_that_it_starts_again(a2_words, monkeypatch):
    def stopped(images, **how):
        os.kill(os.getpid(), signal.SIGTERM)
        yield from ()

    monkeypatch.setattr("a2cap.pipeline.cli.images.caption.caption_files", stopped)
    answer = a2_words("x.jpg", code=143)
    assert answer.stderr == "a2: stopped; run the same command again to restart\n"


@pytest.mark.slow
def test_a_closed_output_pipe_ends_the_command_without_an_error(experiment, model, boxes):
    """Run the command like `a2 caption … | head -1`."""
    image = next(iter(evaluated(experiment)))
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "a2cap.pipeline", "caption", str(image)]
    words = ["--model", str(model), "--boxes", str(boxes)]
    with os.fdopen(writing, "wb") as pipe:
        ended = subprocess.run([*command, *words], stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 1
    assert ended.stderr.decode() == (
        "the captioner was trained on drawings of a2 scenes; its captions of photographs mean "
        "nothing\n"
    )


@pytest.mark.slow
def test_images_with_names_that_are_not_utf8_are_captioned(experiment, model, tmp_path):
    detecting(model)
    image = os.path.join(os.fsencode(tmp_path), b"caf\xe9.png")  # noqa: PTH118
    Image.open(next(iter(evaluated(experiment)))).save(os.fsdecode(image))
    plain = a2_caption("-", "--model", model, input=image, code=0)
    assert plain.stdout.startswith(f"{tmp_path}/caf\ufffd.png: ")
    line = json.loads(a2_caption("-", "--model", model, "--json", input=image).stdout)
    assert os.fsencode(line["image"]) == image


def test_the_figure_of_one_image_has_the_given_path(experiment, a2_words, tmp_path):
    image, text = next(iter(evaluated(experiment).items()))
    answer = a2_words(image, "--figure", tmp_path / "new" / "out.png", "--layer", 1, "--head", 2)
    assert answer.stdout == f"{image}: {text}\n"
    assert answer.stderr == f"figure: {tmp_path / 'new' / 'out.png'}\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out.png"]
    with Image.open(tmp_path / "new" / "out.png") as drawn:
        assert (drawn.format, drawn.width > 1000) == ("PNG", True)


@pytest.mark.parametrize("names", [["a.jpg", "b.jpg"], ["-"], ["{folder}"]])
def test_one_file_for_figures_of_many_images_is_rejected(a2_words, tmp_path, names):
    (tmp_path / "a.jpg").write_bytes(b"")
    path = tmp_path / "out.png"
    answer = a2_words(*[n.format(folder=tmp_path) for n in names], "--figure", path, code=2)
    assert answer.stderr == (
        f"a2: --figure names one file for many images: {str(path)!r}; "
        "name a folder (a name without the suffix of an image)\n"
    )


LAYERS = "--layer needs --figure, and --head needs --layer; add the option"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--figure-style", "boxes"], "--figure-style needs --figure; add the option"),
        (["--figure-below", "x"], "--figure-below needs --figure; add the option"),
        (
            ["--figure", "x.gif", "--figure-style", "boxes"],
            "--figure-style does not apply to an animation: 'x.gif'; use .png",
        ),
        (
            ["--figure", "x.png", "--figure-below", "x", "--layer", 1],
            "--figure-below draws panels of the mean: leave --layer out",
        ),
        (["--layer", 1], LAYERS),
        (["--figure", "x.png", "--head", 1], LAYERS),
    ],
)
def test_an_option_of_figures_without_effect_is_rejected(a2_words, options, message):
    assert f"Error: {message}\n" in a2_words("a.jpg", *options, code=2).stderr


def test_a_second_captioner_attends_to_the_same_caption(experiment, a2_words, model, tmp_path):
    image = next(iter(evaluated(experiment)))
    a2_words(image, "--figure", tmp_path / "a.png", "--figure-below", model, code=0)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_an_image_without_its_figure_is_captioned_again(experiment, a2_words, tmp_path):
    image = next(iter(evaluated(experiment)))
    words = image, "--output", tmp_path / "x.jsonl", "--figure", tmp_path / "figures"
    a2_words(*words, "--layer", 9, code=1)
    assert not (tmp_path / "x.jsonl").exists()
    a2_words(*words, "--layer", 1, code=0)
    assert (tmp_path / "figures" / f"{image.stem}.png").is_file()
    assert a2_words(*words, "--layer", 1).stderr.startswith(
        "a2: no figure of 1 image that had captions; add --force to caption and draw them again\n"
    )


@pytest.mark.slow
def test_a_figure_that_would_replace_an_image_skips_that_image_alone(
    experiment, a2_words, tmp_path
):
    drawn, kept = list(evaluated(experiment))[:2]
    shutil.copy(drawn, tmp_path)
    with Image.open(kept) as scene:
        scene.save(tmp_path / f"{kept.stem}.png")
    answer = a2_words(tmp_path, "--figure", tmp_path, code=3)
    skipped = f"a2: skipped '{tmp_path / kept.stem}.png': --figure would replace a file"
    assert skipped in answer.stderr
    assert (tmp_path / f"{drawn.stem}.png").is_file()


@pytest.mark.slow
def test_a_captioner_without_attention_has_no_figure(experiment, a2_words, tmp_path, monkeypatch):
    monkeypatch.setattr(caption_attention, "trace_attention", lambda *arguments: [])
    image = next(iter(evaluated(experiment)))
    assert a2_words(image, "--figure", tmp_path / "a.png", code=1).stderr == (
        "a2: nothing to draw: this captioner has no attention to regions; leave --figure out\n"
    )


@pytest.mark.slow
def test_unusable_models_and_boxes_are_rejected(model, boxes, tmp_path):
    def refused(code, *arguments):
        answer = a2_caption("x.jpg", "--model", *arguments)
        assert answer.exit_code == code
        return answer.stderr

    assert refused(2, model) == (
        f"a2: the captioner in {str(model)!r} was trained on given boxes; "
        "name the images' boxes with --boxes FILE (COCO instances)\n"
    )
    assert refused(1, model, "--boxes", "no.json") == "a2: no file 'no.json'; check the path\n"
    assert refused(1, tmp_path) == (
        f"a2: no trained model in {str(tmp_path)!r}: model.safetensors is missing; "
        'name a directory that "a2 train" has finished\n'
    )
    detecting(model)
    assert refused(2, model, "--boxes", boxes) == (
        f"a2: the captioner in {str(model)!r} was not trained on given boxes; leave --boxes out\n"
    )


@pytest.mark.slow
def test_unreadable_images_are_reported_and_the_others_are_captioned(
    experiment, a2_words, boxes, tmp_path
):
    good, text = next(iter(evaluated(experiment).items()))
    broken, unknown = tmp_path / good.name, tmp_path / "unknown.jpg"
    broken.write_bytes(b"no image")
    shutil.copyfile(good, unknown)
    missing = tmp_path / sorted((experiment.scenes / "images").iterdir())[-1].name
    assert missing.name != good.name
    answer = a2_words(broken, missing, unknown, good, code=3)
    assert answer.stdout == f"{good}: {text}\n"
    assert answer.stderr.splitlines() == [
        f"a2: skipped {str(broken)!r}: image {good.name!r} is not in a supported format: "
        "it is text, 'no image'…; get the file again",
        f"a2: skipped {str(missing)!r}: cannot read image {missing.name!r}: "
        "No such file or directory; check the image folder",
        f"a2: skipped {str(unknown)!r}: no boxes for image {str(unknown)!r} in {str(boxes)!r}; "
        "add it to 'images' there, by its file name",
    ]


@pytest.mark.slow
def test_regions_are_limited_as_in_training_and_rounded_as_in_the_store(
    experiment, model, boxes, monkeypatch
):
    description = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**description, "max_regions": 2}))
    seen = []
    monkeypatch.setattr(
        image_captioner, "collate", lambda items: seen.extend(items) or collate(items)
    )
    images = sorted((experiment.scenes / "images").iterdir())[:8]
    caption(images, model=model, boxes=boxes)
    assert len(seen) == 8
    assert max(len(item.regions) for item in seen) == 2
    assert {str(item.regions.features.dtype) for item in seen} == {"float16"}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"method": "sampling", "beam_size": 2}])
def test_threads_change_no_caption_and_errors_stay_in_their_places(tmp_path, settings):
    with Image.open(str(files("a2cap.pipeline") / "chelsea.jpg")) as cat:
        for number in range(6):
            cat.crop((40 * number, 0, cat.width, cat.height)).save(tmp_path / f"{number}.png")
    (tmp_path / "2.png").write_bytes(b"no image")
    images = [NamedImage(tmp_path / f"{number}.png") for number in range(6)]
    before = torch.get_num_threads()
    by_threads = {}
    for threads in (1, 2):
        captioned = caption_files(
            images,
            models=[BUNDLED["photos"].folder],
            boxes=None,
            decoding=CaptioningConfig(**settings),
            runtime=RuntimeConfig(device="cpu", threads=threads),
            attention=True,
        )
        by_threads[threads] = list(captioned)
    torch.set_num_threads(before)
    assert [image for image, _ in by_threads[2]] == images
    for (_, alone), (_, threaded) in zip(by_threads[1], by_threads[2], strict=True):
        if isinstance(alone, InputError):
            assert str(threaded) == str(alone) and "2.png" in str(alone)
            continue
        assert [beam.caption for beam in alone.beams] == [beam.caption for beam in threaded.beams]
        np.testing.assert_allclose(alone.attention.aligned, threaded.attention.aligned, atol=1e-5)
    assert sum(isinstance(captioned_image, InputError) for _, captioned_image in by_threads[2]) == 1
