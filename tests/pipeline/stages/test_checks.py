"""Checks before a run: all problems at once, each with its remedy, before any work."""

import json
from types import SimpleNamespace

import click
import pytest
import torch
from safetensors.torch import save_file

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, ConfigError, InputError, WeightsError
from a2cap.pipeline.cli.upkeep.doctor import _marks
from a2cap.pipeline.configuration import load_config, override
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.metrics import pycocoevalcap
from a2cap.pipeline.stages.estimates import detector_training_disk
from a2cap.pipeline.stages.plan import check_stages, require_runnable
from a2cap.pipeline.upkeep import machine
from tests.data.sources.samples import tar_bytes
from tests.experiments import a2, check_of, copied_captioner, free, problems, settings, swap_words

NO_IMAGES = "data.images is not set; name the folder with --set data.images=DIR"
NO_CAPTIONS = "data.annotations is not set; name the file with --set data.annotations=FILE"


# --- all at once --------------------------------------------------------------------------------


def test_an_experiment_that_can_run_has_no_problem(experiment, new):
    assert problems(experiment.open()) == []
    assert problems(new()) == []
    with new() as opened:
        require_runnable(opened, opened.names)


@pytest.mark.parametrize("name", ["s.tar", "list.txt"])
def test_tars_and_lists_are_images_too(new, tmp_path, name):
    (tmp_path / "s.tar").write_bytes(tar_bytes({"1.jpg": b""}))
    (tmp_path / "list.txt").write_text("1.jpg\n")
    check = check_of(new(override("data.images", tmp_path / name)), "extract", "images")
    assert (check.problem, check.text) == (None, f"those of {tmp_path / name}")
    missing = check_of(new(override("data.images", tmp_path / "none.tar")), "extract", "images")
    assert missing.problem and "1 of 1 files" in missing.text


def test_all_problems_are_reported_at_once_and_each_once(tmp_path):
    missing = override("evaluate.baseline", tmp_path / "none.json")
    config = load_config(None, [missing, "runtime.device=tpu"])
    with Experiment(config, tmp_path / "new") as opened, pytest.raises(A2Error) as raised:
        require_runnable(opened, opened.names)
    first, *lines = str(raised.value).splitlines()
    assert type(raised.value) is A2Error
    assert first == "5 problems, nothing was started:"
    assert lines[0] == f"  {NO_IMAGES}"
    assert lines[1:] == [
        "  no detector weights are named: extract.weights is null; name a file with "
        "--set extract.weights=FILE (of any known layout: docs/guide/extraction.md)",
        "  runtime.device is not a device: 'tpu'; use auto, cpu, cuda or mps",
        f"  {NO_CAPTIONS}",
        f"  file of evaluate.baseline not found: {str(tmp_path / 'none.json')!r}; check the path",
    ]
    assert not (tmp_path / "new").exists()  # no digest was needed


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (["data.annotations=null"], ConfigError, NO_CAPTIONS),
        (["extract.weights=null"], WeightsError, "no detector weights are named: "),
        (["evaluate.baseline=none.json"], InputError, "file of evaluate.baseline not found: "),
        (
            ["data.images=null", "data.annotations=null"],
            ConfigError,
            f"2 problems, nothing was started:\n  {NO_IMAGES}\n  {NO_CAPTIONS}",
        ),
    ],
)
def test_one_problem_is_raised_as_it_is_and_several_of_a_kind_as_that_kind(
    new, overrides, kind, message
):
    with new(*overrides) as opened, pytest.raises(kind) as raised:
        require_runnable(opened, opened.names)
    assert str(raised.value).startswith(message)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "stage", "need"),
    [
        ("data.split_list", "preprocess", "annotations"),
        ("data.word_groups", "evaluate", "word groups"),
        ("data.scenes", "evaluate", "scenes"),
        ("data.instances", "evaluate", "instances"),
        ("evaluate.baseline", "evaluate", "baseline"),
    ],
)
def test_a_missing_file_is_reported(new, tmp_path, field, stage, need):
    opened = new(override(field, tmp_path / "none"), "extract.boxes=detect")
    check = check_of(opened, stage, need)
    missing = f"file of {field} not found: {str(tmp_path / 'none')!r}; check the path"
    assert (check.state, check.text) == ("problem", missing)


@pytest.mark.parametrize(
    ("field", "need", "message"),
    [
        (
            "evaluate.baseline",
            "baseline",
            "evaluate.baseline contains no metrics: {}; name a metrics.json",
        ),
        ("data.instances", "instances", "not COCO instances: {} (no key 'images'); "),
        ("data.word_groups", "word groups", "not word groups: {} (not an object of lists); "),
    ],
)
def test_what_the_report_reads_last_is_read_before_any_work(new, tmp_path, field, need, message):
    path = tmp_path / "other.json"
    path.write_text("{}")
    check = check_of(new(override(field, path), "extract.boxes=detect"), "evaluate", need)
    assert check.state == "problem"
    assert check.text.startswith(message.format(repr(str(path))))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("data.instances=null", "data.scenes=null"),
            "evaluate.chair needs COCO's instances alone, and data.instances is not set; set "
            "data.instances and no data.scenes, or leave evaluate.chair out",
        ),
        ((), "evaluate.chair needs COCO's instances alone, and data.scenes is "),
        (("data.scenes=null",), "not COCO's 80 categories: ball, "),
    ],
)
def test_chair_without_cocos_instances_is_rejected(new, experiment, overrides, message):
    scenes = override("data.scenes", experiment.scenes / "instances.json")
    opened = new("evaluate.chair=true", "extract.boxes=detect", scenes, *overrides)
    check = check_of(opened, "evaluate", "instances")
    assert check.state == "problem"
    assert check.text.startswith(message)


def test_a_missing_file_of_meteor_is_a_problem(new, tmp_path, monkeypatch):
    monkeypatch.setattr(pycocoevalcap, "pycocoevalcap_folder", lambda: tmp_path)
    for name in ("tokenizer/stanford-corenlp-3.4.1.jar", "meteor/meteor-1.5.jar"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert problems(new(), "evaluate") == [
        f"pycocoevalcap lacks {str(tmp_path / 'meteor/data/paraphrase-en.gz')!r}; "
        'run "pip install --force-reinstall --no-deps pycocoevalcap"'
    ]


def test_an_unreadable_file_is_a_problem_beside_the_others(new, monkeypatch):
    def refuse(path, **how):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("a2cap.pipeline.stages.input_files.read_annotations", refuse)
    opened = new("extract.boxes=detect")
    path = str(opened.config.data.annotations)
    assert problems(opened, "preprocess") == [
        f"Permission denied: {path!r}; check the path and its permissions"
    ]


@pytest.mark.parametrize("trained", [True, False])
def test_a_member_of_an_ensemble_with_another_vocabulary_is_a_problem(
    experiment, tmp_path, trained
):
    member = copied_captioner(experiment.directory("train-xe"), tmp_path / "member")
    expected = Vocabulary.load(member / "vocabulary.json").digest
    other = swap_words(member)
    first = "train-xe" if trained else "preprocess"  # known before the captioner is
    (member / "model.safetensors").write_bytes(b"never read")
    changed = "train.seed=0" if trained else "train.seed=5"
    opened = experiment.open(override("evaluate.ensemble", (member,)), changed)
    check = check_of(opened, "evaluate", "ensemble")
    assert (check.state, check.text) == (
        "problem",
        f"vocabulary of {str(member)!r} is {other[:12]}, that of "
        f"{str(experiment.directory(first))!r} is {expected[:12]}; an ensemble needs captioners "
        "that were trained on the same features and vocabulary",
    )


@pytest.mark.slow
def test_instances_are_needed_only_if_attention_is_compared(new, tmp_path):
    gone = override("data.instances", tmp_path / "none.json")
    for unread in ("data.instances=null", "evaluate.attention=none"):
        opened = new(gone, "extract.boxes=detect", unread)
        assert check_of(opened, "evaluate", "instances").text == "none"


@pytest.mark.slow
def test_a_stage_has_only_its_own_needs(new, tmp_path, monkeypatch):
    monkeypatch.setattr(pycocoevalcap, "pycocoevalcap_folder", lambda: tmp_path)
    for stage in ("extract", "train-xe"):
        assert problems(new(), stage) == []
    for stage in ("preprocess", "evaluate"):
        [problem] = problems(new(), stage)
        assert problem.startswith("pycocoevalcap lacks ")
        with new() as opened, pytest.raises(InputError):
            require_runnable(opened, [stage])


@pytest.mark.slow
def test_a_problem_that_follows_from_another_is_not_reported_twice(new):
    check = check_of(new("extract.weights=null"), "extract", "disk")
    assert (check.state, check.text) == ("unknown", "unknown until the other problems are fixed")
    assert len(problems(new("extract.weights=null"))) == 1
    assert len(problems(new("data.images=null"))) == 1


# --- inputs -------------------------------------------------------------------------------------


def test_a_folder_without_any_of_the_images_is_reported(new, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.jpg").touch()
    images = override("data.images", tmp_path / "other")
    assert problems(new(images)) == [
        f"none of the 40 images has a file in {str(tmp_path / 'other')!r}; check data.images"
    ]


def test_images_without_a_file_are_counted_with_an_example_before_any_work(
    new, copied_scenes, experiment, tmp_path, caplog
):
    scenes, overrides = copied_scenes
    names = [path.name for path in sorted((scenes / "images").iterdir())]
    (scenes / "images" / names[3]).unlink()
    doubt = (
        f"1 of 40 images have no file in {str(scenes / 'images')!r}, such as {names[3]!r}; add "
        "them, else they are left out"
    )
    for stage in ("extract", "preprocess", "evaluate"):
        check = check_of(new(*overrides), stage, "images")
        assert (check.state, check.text, check.problem) == ("warning", doubt, None)
    with new(*overrides) as opened:
        require_runnable(opened, ["preprocess"])  # which reads no image
    assert caplog.messages == [doubt]
    place = ("-c", experiment.config_file, "--artifacts", tmp_path / "new", *settings(*overrides))
    lines = a2("doctor", *place).stdout.splitlines()
    assert lines[0] == f"extract        warning  images: {doubt}"  # once
    assert lines[-1] == "no problems, 1 warning"


def test_captions_are_preprocessed_without_images(new, copied_scenes, tmp_path):
    scenes, overrides = copied_scenes
    for path in sorted((scenes / "images").iterdir())[:3]:
        path.unlink()
    [problem] = problems(new(*overrides), "extract")
    with new(*overrides) as opened:
        assert [c.text for c in check_stages(opened, ["preprocess"]) if c.state == "warning"] == [
            problem
        ]
    for images in ("null", tmp_path / "none"):
        assert problems(new(*overrides, override("data.images", images)), "preprocess") == []


def test_images_without_boxes_are_reported_before_any_work(new, copied_scenes):
    folder, overrides = copied_scenes
    content = json.loads((folder / "instances.json").read_text())
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] not in (5, 9)]
    (folder / "instances.json").write_text(json.dumps(content))
    assert problems(new(*overrides)) == [
        "no boxes for 2 of 40 images: 000000000005, 000000000009; "
        "add them to data.instances, or set extract.boxes=detect"
    ]
    assert problems(new(*overrides, "extract.boxes=detect")) == []


def test_captions_that_preprocessing_rejects_stop_extraction(new, copied_scenes):
    folder, overrides = copied_scenes
    path = folder / "dataset_coco.json"
    content = json.loads(path.read_text())
    for image in content["images"]:
        image["split"] = "train"
    path.write_text(json.dumps(content))
    assert problems(new(*overrides)) == [
        f"no image of split 'val' in {str(path)!r}; give each of train and val at least one"
    ]
    path.write_text("{")
    [problem] = problems(new(*overrides))
    assert problem.startswith("not JSON: ")


def test_a_setting_that_contradicts_the_weights_is_a_problem_with_its_remedy(new):
    assert problems(new("extract.weights=scenes", "extract.proposals=300")) == [
        "the weights were trained with other settings: extract.min_side is 96, extract.max_side "
        "is 96, extract.proposals is 300; add --set extract.min_side=224 --set "
        "extract.max_side=224 --set extract.proposals=36"
    ]


def test_damaged_weights_are_detected_by_their_header(new, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"x": torch.zeros(9)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    [problem] = problems(new(override("extract.weights", path)))
    assert problem.startswith("weights 'weights.safetensors' are damaged: ")
    assert problem.endswith("; download or create them again")


def test_weights_of_a_grid_that_cannot_be_read_are_a_problem(new, tmp_path):
    (tmp_path / "weights.pth").write_bytes(b"not weights at all")
    grid = ("extract.boxes=grid", "extract.grid_backbone=efficientnet-lite2")
    assert problems(new(override("extract.weights", tmp_path / "weights.pth"), *grid)) == [
        "weights 'weights.pth' have an unknown format: the file begins with b'not weights at a'; "
        "name a safetensors file, a .pth or .bin of torch, a .pkl of airsplay or detectron2, "
        "a .caffemodel"
    ]


# --- the commands -------------------------------------------------------------------------------


def test_every_command_reports_all_problems_first(tmp_path):
    answer = a2("run", "--artifacts", tmp_path / "new", code=1)
    assert answer.stderr.startswith("a2: 3 problems, nothing was started:\n")
    assert f"  {NO_CAPTIONS}\n" in answer.stderr
    answer = a2("extract", "--artifacts", tmp_path / "new", "--shard", "0/2")
    assert answer.stderr.startswith("a2: 2 problems, nothing was started:\n")


def test_the_doctor_lists_every_need_of_every_stage(experiment, tmp_path):
    answer = a2("doctor", "-c", experiment.config_file, "--artifacts", tmp_path / "new", code=0)
    lines = answer.stdout.splitlines()
    described = [line.split()[0] for line in lines[:5]]
    assert described == ["versions", "device", "java", "disk", "memory"]
    assert f"torch {torch.__version__.partition('+')[0]}" in lines[0]
    assert lines[1] == "device         cpu, 1 threads"
    assert lines[3].endswith(f" GB free at {str(tmp_path / 'new')!r}")
    assert lines[5] == "extract        ok       images: 40, each with a file"
    assert {line.split()[0] for line in lines[5:-1]} == set(experiment.open().names)
    assert lines[-1] == "no problems"


def test_the_doctor_names_each_problem_with_its_remedy(
    experiment, tmp_path, without_java, monkeypatch
):
    place = ("-c", experiment.config_file, "--artifacts", tmp_path / "new")
    monkeypatch.setattr(pycocoevalcap, "pycocoevalcap_folder", lambda: tmp_path)
    answer = a2("doctor", *place, code=1)
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("preprocess     problem  metrics: pycocoevalcap lacks ")  # once
    assert lines[3] == "java           none"
    assert lines[-1] == "1 problem"
    monkeypatch.setattr(machine, "available_memory", lambda: None)
    answer = a2("doctor", *place, "--set", "runtime.device=tpu")
    assert {"device         not usable", "memory         unknown"} <= set(
        answer.stdout.splitlines()
    )
    assert answer.stdout.splitlines()[-1] == "2 problems"


def test_warnings_are_listed_after_problems_and_logged_before_a_run(new, tmp_path, caplog):
    rows = [
        {"image": f"{n}.jpg", "captions": ["a dog " * n], "split": "val" if n == 9 else "train"}
        for n in range(1, 11)
    ]
    file = tmp_path / "captions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = [override("data.annotations", file), "preprocess.max_length=19", "train.warmup=500"]
    length = (
        "1 of 10 captions (10.0%) have more than 19 tokens and are cut; raise "
        "preprocess.max_length, or set preprocess.eos_after_cut to false"
    )
    schedule = (
        "500 of at most 16 updates are warm-up, so that the learning rate stays low in most of the "
        "training; set train.warmup to 1, or train.schedule to constant"
    )
    for stage, need, text in (("preprocess", "length", length), ("train-xe", "schedule", schedule)):
        check = check_of(new(*overrides), stage, need)
        assert (check.state, check.text, check.problem) == ("warning", text, None)
    open_ended = check_of(new(*overrides, "preprocess.eos_after_cut=false"), "preprocess", "length")
    assert open_ended.text.endswith("and are cut; raise preprocess.max_length")
    with new(*overrides) as opened:
        require_runnable(opened, ["preprocess", "train-xe"])
    assert caplog.messages == [length, schedule]


@pytest.mark.parametrize(
    ("overrides", "found_text"),
    [
        (["train.warmup=12"], "12 of at most 32 updates are warm-up"),
        (["train.warmup=12", "train.grouping=caption"], "12 of at most 160 updates are warm-up"),
        (["train.schedule=constant"], "no warm-up"),
    ],
)
def test_a_warm_up_of_at_most_half_of_all_updates_is_right(new, overrides, found_text):
    check = check_of(new(*overrides), "train-xe", "schedule")
    assert (check.state, check.text) == ("ok", found_text)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_terminal_gets_coloured_marks_if_it_has_them(encoding):
    marks = _marks(SimpleNamespace(isatty=lambda: True, encoding=encoding))
    if encoding == "latin-1":
        assert marks == {state: f"{state:<8}" for state in ("ok", "warning", "problem", "unknown")}
    else:
        assert [click.unstyle(mark) for mark in marks.values()] == ["✓", "!", "✗", "?"]
        assert marks["problem"] == "\x1b[31m✗\x1b[0m"


# --- SPICE --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_doctor_reports_if_spice_will_run_and_its_absence_is_not_a_problem(new, monkeypatch):
    needs = (
        "will not run, exit code 3: SPICE needs its parser and Rhino; "
        'run "a2 weights fetch spice" first'
    )
    left_out = check_of(new("evaluate.spice=auto"), "evaluate", "spice")
    assert (left_out.state, left_out.text.partition(": ")[0]) == ("ok", "left out")
    check = check_of(new("evaluate.spice=true"), "evaluate", "spice")
    assert (check.state, check.text) == ("ok", needs)
    assert check_of(new(), "evaluate", "spice").text == "not requested"
    monkeypatch.setattr("a2cap.pipeline.metrics.spice.spice_jars", list)
    assert check_of(new("evaluate.spice=true"), "evaluate", "spice").text == "ready"


# --- a detector's training ----------------------------------------------------------------------


def detector_plan(labelled, artifacts, **changes):
    path = artifacts.parent / "detector.yaml"
    path.write_text(json.dumps({"detector": labelled.fields(**changes)}))
    return Experiment(load_config(path), artifacts)


def of_detector(opened, **options):
    with opened:
        checks = check_stages(opened, ["train-detector"], **options)
    return {check.need: check.text for check in checks}


@pytest.mark.slow
def test_the_inputs_of_a_detector_s_training_are_checked(labelled, tmp_path):
    text_of = of_detector(detector_plan(labelled, tmp_path / "new"))
    labels = [str(labelled.folder / name / "instances.json") for name in ("train", "val")]
    assert text_of["labels"] == ", ".join(labels)
    assert text_of["labelled images"] == ("12 in detector.images, 6 in detector.validation_images")
    assert text_of["start"] == "random"
    assert text_of["disk"].startswith("checkpoints take at least 9.5 MB, ")
    assert text_of["folder"] == str(tmp_path)  # the one above, where it is made


def test_a_start_that_is_not_a_weights_file_is_reported_before_any_work(labelled, tmp_path):
    (tmp_path / "start.pth").write_bytes(b"not weights at all")
    opened = detector_plan(labelled, tmp_path / "new", start=str(tmp_path / "start.pth"))
    assert "'start.pth'" in of_detector(opened)["start"]
    with opened, pytest.raises(WeightsError):
        require_runnable(opened, ["train-detector"])


def test_checkpoints_of_a_detector_must_fit(labelled, tmp_path, monkeypatch):
    opened = detector_plan(labelled, tmp_path / "new", width=64)
    needed = detector_training_disk(opened.config.detector)
    free(monkeypatch, needed)
    assert of_detector(opened)["disk"] == ("checkpoints take at least 584 MB, 584 MB free")
    free(monkeypatch, needed - 1)
    assert of_detector(opened)["disk"] == (
        "disk too small for checkpoints: at least 584 MB needed, 584 MB free after the earlier "
        "stages; free disk space"
    )


def test_a_detector_s_training_is_not_a_stage_of_the_experiment(experiment, labelled, new):
    stages = experiment.open().names
    labels = override("detector.labels", labelled.folder / "train" / "instances.json")
    assert new().shown == new().names == stages
    assert new(labels).shown == ["train-detector", *stages]
    assert new(labels).names == stages
    assert new(labels, "data.images=null", "data.annotations=null").shown == ["train-detector"]
