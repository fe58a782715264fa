import json

import numpy as np
import pytest
import torch

from a2cap.data.annotations.instances import Instances
from a2cap.data.boxes import box_iou
from a2cap.model.alignment import Alignment, padding_bias
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.pipeline.captioning.grounding import MIN_IOU
from benchmarks.study.grid import (
    CLAIMED,
    DEEP_PHOTOGRAPHED,
    DEEP_WEIGHTS,
    RATES,
    STUDIED,
    TRAININGS,
    Extent,
    trials,
)
from benchmarks.study.grounding import (
    GroundedWord,
    GroundingMeter,
    grounded_words,
)
from benchmarks.study.measuring import (
    companion_errors,
    companion_words,
    masks_of_others,
    random_masks,
)
from benchmarks.study.results import Results, Row, paired_difference
from benchmarks.study.running import Study, jobs
from benchmarks.study.worlds import PHOTOGRAPHED, Images, chosen_images, draw_world

BOXES = np.array([[0, 0, 10, 10], [20, 20, 30, 30]], dtype=np.float32)
# the first object, 0.6 of it, 0.4 of it, which is too little, and the second object
REGIONS = np.array(
    [[0, 0, 10, 10], [0, 0, 10, 6], [0, 0, 10, 4], [20, 20, 30, 30]], dtype=np.float32
)
BALL = GroundedWord("ball", "kinds", (0,))


def grounding_of(words, attention, regions=REGIONS):
    """Return the results of a meter for one caption; attention: (layers, L, R)."""
    meter = GroundingMeter()
    by_layer = {"attention": np.array(attention)}
    meter.add(words, by_layer, box_iou(regions, BOXES) >= MIN_IOU)
    return meter.results()


def test_grounding_is_the_share_of_attention_on_regions_that_overlap_the_boxes_of_the_word():
    words = [None, BALL, GroundedWord("left", "relations", (0, 1))]
    layers = [
        [[1, 0, 0, 0], [0.4, 0.2, 0.3, 0.1], [0.1, 0.1, 0.7, 0.1]],
        [[1, 0, 0, 0], [0.0, 0.0, 1.0, 0.0], [0.5, 0.5, 0.0, 0.0]],
    ]
    grounding = grounding_of(words, layers)
    assert grounding["kinds"] == pytest.approx(
        {
            "attention": (0.6 + 0.0) / 2,
            "attention layer 1": 0.6,
            "attention layer 2": 0.0,
            "attention points": 0.0,  # to the third region
            "chance": 2 / 4,
            "words": 1,
        }
    )
    assert grounding["relations"]["attention"] == pytest.approx((0.3 + 1.0) / 2)
    assert grounding["relations"]["chance"] == 3 / 4
    assert grounding["all"]["words"] == 2
    assert grounding["all"]["attention"] == pytest.approx((0.3 + 0.65) / 2)


def test_grounding_does_not_depend_on_the_sum_of_a_row():
    row = np.array([0.4, 0.2, 0.3, 0.1])
    once, thrice = (grounding_of([BALL], [[row * factor]]) for factor in (1, 3))
    assert once["kinds"] == pytest.approx(thrice["kinds"])


def test_words_without_an_overlapping_region_and_zero_evidence_have_no_grounding():
    assert grounding_of([BALL], np.ones((1, 1, 2)), REGIONS[2:]) == {}
    assert grounding_of([BALL], np.zeros((1, 1, 4)))["kinds"] == {"chance": 0.5, "words": 1}


def test_words_without_objects_or_group_are_not_grounded():
    groups = {"ball": "kinds", "balls": "kinds", "red": "colours"}
    caption = [["the", []], ["red", [1]], ["ball", [1]], ["of", [1]], ["balls", []]]
    words = grounded_words(caption, groups)
    red, ball = ("colours", (1,)), ("kinds", (1,))
    assert [word and (word.group, word.objects) for word in words] == [None, red, ball, None, None]


def test_random_masks_move_the_values_of_a_mask_among_the_regions_of_its_image():
    torch.manual_seed(0)
    widths = {"hidden_width": 8, "region_width": 8, "heads": 2, "head_width": 4}
    captioner = torch.nn.Sequential(Alignment(AlignmentConfig(fusion="gate"), **widths))
    network = captioner[0].mask_network
    exists = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    hidden, regions = torch.randn(2, 3, 8), torch.randn(2, 6, 8)
    inputs = (hidden, network.project(regions), padding_bias(exists))

    keep = network(*inputs)
    with random_masks(captioner):
        moved, again = network(*inputs), network(*inputs)

    assert torch.equal(moved.sort(dim=-1).values, keep.sort(dim=-1).values)
    assert torch.equal(moved[1, ..., 4:], torch.ones(2, 3, 2))
    assert not torch.equal(moved, keep)
    assert not torch.equal(moved, again)
    with masks_of_others(captioner):
        of_others = network(*inputs)
    assert torch.equal(of_others, keep[[1, 0]])
    assert torch.equal(network(*inputs), keep)


def test_differences_are_paired_by_seed():
    difference = paired_difference({0: 1.0, 1: 5.0, 2: 9.0}, {1: 4.0, 0: 0.5, 7: 100.0})
    assert difference.mean == 0.75
    assert difference.half_width == pytest.approx(12.706 * 0.25, abs=1e-3)
    assert not difference.excludes_zero
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_variation_common_to_pairs_does_not_widen_their_interval():
    baseline = {0: 0.1, 1: 10.0, 2: -5.0}
    difference = paired_difference({s: v + 1 for s, v in baseline.items()}, baseline)
    assert (difference.mean, difference.half_width) == pytest.approx((1.0, 0.0))
    assert difference.excludes_zero


def instances(*names):
    return Instances(np.zeros((len(names), 4), np.float32), names)


def test_a_paired_word_refers_to_the_companions_in_the_image_if_any():
    caption = [["two", [0, 1]], ["kites", [0, 1]], ["ball", [2]]]
    pairs = {"kite": "cloud", "cup": "mushroom"}
    objects = ("kite", "kite", "ball", "stone")
    words = companion_words(caption, instances(*objects, "cloud", "cloud"), pairs)
    assert [word and word.objects for word in words] == [None, (4, 5), None]
    assert companion_words(caption, instances(*objects), pairs) == [None, None, None]


def test_errors_are_predictions_of_absent_categories():
    errors = companion_errors(
        {"1": "two kites and a ball", "2": "a ball", "3": "a kite", "4": "a kite"},
        {
            "1": instances("ball", "cloud"),
            "2": instances("ball", "cloud"),
            "3": instances("ball", "stone"),
            "4": instances("kite", "cloud"),  # present, so not a case
        },
        {"kite": "cloud"},
    )
    assert errors == {
        "with companion": 0.5,
        "without companion": 1.0,
        "cases with": 2,
        "cases without": 1,
    }


def test_held_out_images_are_split_again_and_the_others_train():
    splits = ["train", "val", "train", "test", "train", "val"]
    images = [{"cocoid": number, "split": split} for number, split in enumerate(splits)]
    chosen = chosen_images(images, Images(6, train=2, validate=1, test=2))
    expected = {0: "train", 2: "train", 1: "val", 3: "test", 5: "test"}
    assert [(image["cocoid"], image["split"]) for image in chosen] == list(expected.items())
    with pytest.raises(ValueError, match="too few images for val: 0 of 1; draw more"):
        chosen_images([{"split": "train"}], Images(1, 1, validate=1, test=0))


@pytest.mark.slow
def test_a_captioner_of_several_parts_is_trained_once(tmp_path):
    extent = Extent(seeds=1, planted_seeds=1, other_seeds=1)
    wanted = trials(extent, [*STUDIED, *(part for part in CLAIMED if part != DEEP_PHOTOGRAPHED)])
    images = Images(5, train=3, validate=1, test=1)
    to_run = jobs(Study(tmp_path, "scenes", images, 1), wanted)
    assert sum(len(job.trials) for job in to_run) == len(wanted)
    shared = {job.trials[0].label: job for job in to_run if len(job.trials) > 1}
    control = ["fusions", "random masks"]
    assert {label: [trial.part for trial in job.trials] for label, job in shared.items()} == {
        "none": ["fusions", "layers", "rivals", "random masks"],
        "max": control,
        "moving": control,
        "decay": control,
        "gate": ["fusions", "penalty", "ablations", "layers", "rivals", "random masks"],
    }
    assert all(job.config.scst.epochs > 0 for job in shared.values())
    others = [job for job in to_run if not any(trial.self_critical for trial in job.trials)]
    assert others
    assert {job.config.scst.epochs for job in others} == {0}
    starts = {job.world.name: job.config for job in to_run if job.trials[0].part == "starts"}
    parts = ("depth", "trainings", "learning rates", "depth penalty")
    deep = [job for job in to_run if job.trials[0].part in parts]
    rated = [f"{fusion}, {rate}" for rate in RATES for fusion in ("none", "gate")]
    labels = [*shared, *TRAININGS, *rated, *map(str, DEEP_WEIGHTS)]
    assert [job.trials[0].label for job in deep] == labels
    # trained from the beginning
    assert {
        (job.start, job.config.model.decoder_layers, job.config.train.start) for job in deep
    } == {(None, 6, None)}
    further = [job for job in to_run[len(starts) :] if job not in deep]
    assert starts.keys() == {"plain", "planted"}
    assert [job.start for job in further] == [starts[job.world.name] for job in further]
    assert (starts["plain"].train.epochs, shared["gate"].config.train.epochs) == (16, 3)


def test_photographs_have_the_trainings_of_scenes_on_cells(tmp_path):
    captions = tmp_path / "captions.csv"
    lines = [f"{number}.jpg,A dog runs ." for number in range(8)]
    splits = ["train"] * 5 + ["val"] * 3
    rows = [f"{line},{split}" for line, split in zip(lines, splits, strict=True)]
    captions.write_text("\n".join(["image,caption,split", *rows, rows[0]]))
    images = Images(drawn=0, train=4, validate=1, test=2)
    study = Study(tmp_path / "study", "scenes", images, 1, photographs=captions)
    world = study.world(PHOTOGRAPHED)
    draw_world(world, images)
    entries = json.loads(world.annotations.read_text())["images"]
    assert [(entry["filename"], entry["split"]) for entry in entries] == [
        *((f"{number}.jpg", "train") for number in range(4)),
        *(("5.jpg", "val"), ("6.jpg", "test"), ("7.jpg", "test")),
    ]
    assert len(entries[0]["sentences"]) == 2
    extent = Extent(other_seeds=1)
    on_scenes, on_photographs = (trials(extent, [part]) for part in ("depth", DEEP_PHOTOGRAPHED))
    *of_fusions, of_moving_masks = on_photographs
    assert [t.fields for t in of_fusions] == [t.fields for t in on_scenes]
    assert (of_moving_masks.label, of_moving_masks.seed) == ("gate, λ 0.0005", 0)
    weights = [job.config.model.alignment.penalty_weight for job in jobs(study, on_photographs)]
    assert weights == [0.035] * 5 + [0.0005]
    configs = [job.config for job in jobs(study, on_photographs)]
    assert {(c.extract.boxes, c.model.standardise, c.data.images) for c in configs} == {
        ("grid", True, tmp_path / "images")
    }


def test_results_are_written_as_a_table_with_a_column_per_value(tmp_path):
    rows = [
        Row("fusions", "none", "XE", 0, {"CIDEr": 0.5}),
        Row("fusions", "gate", "XE", 0, {"CIDEr": 0.75, "grounding/all/aligned": 1.0}),
    ]
    Results(rows).write(tmp_path / "results.csv")
    assert (tmp_path / "results.csv").read_text() == (
        "part,label,phase,seed,failure,machine,CIDEr,grounding/all/aligned\n"
        "fusions,none,XE,0,,,0.5,\nfusions,gate,XE,0,,,0.75,1\n"
    )
