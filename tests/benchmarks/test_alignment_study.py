import importlib
import math
from pathlib import Path

import numpy as np
import pytest

from a2cap.data.annotations.instances import Instances

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def study(monkeypatch):
    """Imports a module of the study by its name."""
    monkeypatch.syspath_prepend(FOLDER)
    return lambda name: importlib.import_module(f"study.{name}")


BOXES = np.array([[0, 0, 10, 10], [20, 20, 30, 30]], dtype=np.float32)
REGIONS = np.array(
    [
        [0, 0, 10, 10],  # the first thing
        [0, 0, 10, 6],  # 0.6 of it
        [0, 0, 10, 4],  # 0.4 of it: too little
        [20, 20, 30, 30],  # the second thing
    ],
    dtype=np.float32,
)


def meter_of(study, words, attention):
    """A meter that took in one caption; attention: (layers, L, R)."""
    grounding = study("grounding")
    meter = grounding.GroundingMeter()
    looks = grounding.Looks({"attention": np.array(attention)})
    meter.add(words, looks, grounding.right_regions(REGIONS, BOXES))
    return meter.results()


def test_grounding_is_the_share_of_the_mass_on_regions_that_overlap_the_words_boxes(study):
    word = study("grounding").GroundedWord
    words = [None, word("ball", "kinds", (0,)), word("left", "relations", (0, 1))]
    layers = [
        [[1, 0, 0, 0], [0.4, 0.2, 0.3, 0.1], [0.1, 0.1, 0.7, 0.1]],
        [[1, 0, 0, 0], [0.0, 0.0, 1.0, 0.0], [0.5, 0.5, 0.0, 0.0]],
    ]
    found = meter_of(study, words, layers)
    assert found["kinds"] == pytest.approx(
        {
            "attention": (0.6 + 0.0) / 2,
            "attention layer 1": 0.6,
            "attention layer 2": 0.0,
            "attention points": 0.0,  # to the third region
            "chance": 2 / 4,
            "words": 1,
        }
    )
    assert found["relations"]["attention"] == pytest.approx((0.3 + 1.0) / 2)
    assert found["relations"]["chance"] == 3 / 4
    assert found["all"]["words"] == 2
    assert found["all"]["attention"] == pytest.approx((0.3 + 0.65) / 2)


def test_rows_need_no_sum_of_one(study):
    word = study("grounding").GroundedWord("ball", "kinds", (0,))
    row = np.array([0.4, 0.2, 0.3, 0.1])
    once, thrice = (meter_of(study, [word], [[row * factor]]) for factor in (1, 3))
    assert once["kinds"] == pytest.approx(thrice["kinds"])


def test_words_count_only_where_a_region_overlaps_their_boxes(study):
    grounding = study("grounding")
    meter = grounding.GroundingMeter()
    word = grounding.GroundedWord("ball", "kinds", (0,))
    overlapping = grounding.right_regions(REGIONS[2:], BOXES)
    meter.add([word], grounding.Looks({"attention": np.ones((1, 1, 2))}), overlapping)
    assert meter.results() == {}


def test_masks_that_mask_nothing_are_grounded_nowhere(study):
    word = study("grounding").GroundedWord("ball", "kinds", (0,))
    found = meter_of(study, [word], np.zeros((1, 1, 4)))
    assert found["kinds"] == {"chance": 0.5, "words": 1}


def test_words_without_things_or_group_are_not_grounded(study):
    grounding = study("grounding")
    groups = grounding.group_of_words({"kinds": ["ball", "balls"], "colours": ["red"]})
    caption = [["the", []], ["red", [1]], ["ball", [1]], ["of", [1]], ["balls", []]]
    found = grounding.grounded_words(caption, groups)
    assert [one and (one.group, one.things) for one in found] == [
        None,
        ("colours", (1,)),
        ("kinds", (1,)),
        None,
        None,
    ]


@pytest.mark.parametrize(  # published tables of Student's t, two-sided 95 %
    ("degrees", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042)]
)
def test_quantiles_are_students(study, degrees, quantile):
    assert study("statistics").t_quantile(degrees) == pytest.approx(quantile, abs=6e-4)


def test_the_interval_is_the_t_interval_of_the_mean(study):
    found = study("statistics").interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3
    assert found.half_width == pytest.approx(2.776 * math.sqrt(2.5 / 5), abs=1e-3)
    assert str(found) == "3.000 ± 1.963"


def test_one_value_has_no_interval(study):
    found = study("statistics").interval([0.25])
    assert (str(found), found.excludes_zero) == ("0.250", False)


def test_differences_are_paired_by_seed(study):
    statistics = study("statistics")
    found = statistics.paired_difference({0: 1.0, 1: 5.0, 2: 9.0}, {1: 4.0, 0: 0.5, 7: 100.0})
    assert (found.mean, found.count) == (0.75, 2)
    assert found.half_width == pytest.approx(12.706 * 0.25, abs=1e-3)
    assert not found.excludes_zero
    assert statistics.paired_difference({0: 1.0}, {1: 1.0}) is None


def test_what_pairs_share_does_not_widen_their_interval(study):
    statistics = study("statistics")
    baseline = {0: 0.1, 1: 10.0, 2: -5.0}
    found = statistics.paired_difference({s: v + 1 for s, v in baseline.items()}, baseline)
    assert (found.mean, found.half_width) == pytest.approx((1.0, 0.0))
    assert found.excludes_zero


def instances(*names):
    return Instances(np.zeros((len(names), 4), np.float32), names)


def test_a_paired_word_is_about_the_companions_that_are_there(study):
    words = study("measuring").companion_words(
        [["two", [0, 1]], ["kites", [0, 1]], ["ball", [2]]],
        instances("kite", "kite", "ball", "cloud", "cloud", "stone"),
        {"kite": "cloud", "cup": "mushroom"},
    )
    assert [one and one.things for one in words] == [None, (3, 4), None]


def test_a_word_whose_companion_is_absent_is_about_none(study):
    words = study("measuring").companion_words(
        [["kite", [0]]], instances("kite", "stone"), {"kite": "cloud"}
    )
    assert words == [None]


def test_errors_are_kinds_said_that_are_absent(study):
    found = study("measuring").companion_errors(
        {"1": "two kites and a ball", "2": "a ball", "3": "a kite", "4": "a kite"},
        {
            "1": instances("ball", "cloud"),
            "2": instances("ball", "cloud"),
            "3": instances("ball", "stone"),
            "4": instances("kite", "cloud"),  # it is there: no case
        },
        {"kite": "cloud"},
    )
    assert found == {
        "with companion": 0.5,
        "without companion": 1.0,
        "cases with": 2,
        "cases without": 1,
    }


def test_the_held_out_images_are_divided_anew_and_the_rest_trains(study):
    worlds = study("worlds")
    splits = ["train", "val", "train", "test", "train", "val"]
    images = [{"cocoid": number, "split": split} for number, split in enumerate(splits)]
    chosen = worlds.chosen_images(images, worlds.Images(6, train=2, validate=1, test=2))
    assert [(image["cocoid"], image["split"]) for image in chosen] == [
        (0, "train"),
        (2, "train"),
        (1, "val"),
        (3, "test"),
        (5, "test"),
    ]


def test_too_few_images_are_refused(study):
    worlds = study("worlds")
    with pytest.raises(ValueError, match="too few images were drawn for val: 0 of 1"):
        worlds.chosen_images([{"split": "train"}], worlds.Images(1, 1, validate=1, test=0))


def test_what_several_parts_ask_for_is_trained_once(study, tmp_path):
    grid, running, worlds = study("grid"), study("running"), study("worlds")
    extent = grid.Extent(seeds=1, planted_seeds=1, other_seeds=1)
    images = worlds.Images(5, train=3, validate=1, test=1)
    wanted = grid.trials(extent)
    found = running.jobs(running.Study(tmp_path, "calibrated-random", images, 1), wanted)
    assert sum(len(job.trials) for job in found) == len(wanted)
    [shared] = [job for job in found if len(job.trials) > 1]
    assert [trial.part for trial in shared.trials] == ["fusions", "penalty", "ablations"]
    assert shared.config.scst.epochs > 0
    alone = [job for job in found if not any(trial.refined for trial in job.trials)]
    assert alone
    assert {job.config.scst.epochs for job in alone} == {0}


def test_results_are_read_as_they_were_written(study, tmp_path):
    results = study("results")
    rows = [
        results.Row("fusions", "none", "XE", 0, {"CIDEr": 0.5}),
        results.Row("fusions", "gate", "XE", 0, {"CIDEr": 0.75, "grounding/all/aligned": 1.0}),
    ]
    results.Results(rows).write(tmp_path / "results.csv")
    found = results.read_results(tmp_path / "results.csv")
    assert found.rows == rows
