from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from a2cap.data.errors import ConfigError, InputError
from a2cap.extract.detector import proposals
from a2cap.extract.detector.input import BATCH
from a2cap.extract.extractor import Extractor, load_extractor
from a2cap.extract.weights.load import save_detector
from tests.data.messages import message_of
from tests.extract.tiny import CONFIG, with_meta

BOXES = np.array([[10, 10, 60, 50], [0, 0, 127, 95], [70, 20, 120, 90]], np.float32)


@pytest.fixture(scope="session")
def extractor(detector):
    return Extractor(detector, config=CONFIG)


def relative(actual, expected):
    return np.abs(actual - expected).max() / np.abs(expected).max()


def test_detected_regions_have_the_promised_shapes_and_ranges(extractor, make_image):
    regions = extractor(make_image(0))
    assert 5 <= len(regions) <= 20
    assert regions.boxes.shape == (len(regions), 4)
    assert regions.features.shape == (len(regions), 64)
    assert {regions.boxes.dtype, regions.features.dtype, regions.scores.dtype} == {
        np.dtype(np.float32)
    }
    assert {regions.class_ids.dtype, regions.attribute_ids.dtype} == {np.dtype(np.int32)}
    assert (regions.features >= 0).all()
    assert (regions.scores > 0).all()
    assert (regions.scores <= 1).all()
    assert set(regions.class_ids) <= set(range(12))
    assert set(regions.attribute_ids) <= set(range(5))
    assert (regions.width, regions.height) == (128, 96)


def test_equal_images_give_equal_regions(extractor, make_image):
    first = extractor(make_image(0))
    extractor(make_image(1, 160, 90))
    again = extractor(make_image(0))
    for name in ("boxes", "features", "scores", "class_ids", "attribute_ids"):
        assert np.array_equal(getattr(first, name), getattr(again, name))


def test_detected_boxes_given_as_boxes_have_the_same_features(extractor, make_image):
    """Features belong to the boxes that are written, not to refined ones."""
    detected = extractor(make_image(0))
    given = extractor(make_image(0), detected.boxes)
    assert relative(given.features, detected.features) < 1e-5
    assert np.array_equal(given.class_ids, detected.class_ids)
    np.testing.assert_allclose(given.scores, detected.scores, rtol=1e-4)


def test_given_boxes_keep_their_order(extractor, make_image):
    regions = extractor(make_image(0), BOXES)
    turned = extractor(make_image(0), BOXES[::-1])
    assert np.array_equal(regions.boxes, BOXES)
    assert relative(turned.features[::-1], regions.features) < 1e-5
    assert relative(regions.features[0], regions.features[2]) > 1e-2


@pytest.mark.slow
def test_many_images_equal_single_ones(extractor, make_image):
    images = [make_image(seed) for seed in range(BATCH + 2)] + [make_image(0, 128, 96)]
    images.insert(3, make_image(0, 80, 80))
    boxes: list[NDArray[np.float32] | None] = [
        BOXES[: 1 + index % 3] / np.float32(2) for index in range(len(images))
    ]
    boxes[5] = None
    for many, image, given in zip(
        extractor.extract_many(images, boxes), images, boxes, strict=True
    ):
        single = extractor(image, given)
        assert np.array_equal(many.boxes, single.boxes)
        assert relative(many.features, single.features) < 1e-5
        assert np.array_equal(many.class_ids, single.class_ids)
        assert (many.width, many.height) == (single.width, single.height)


@pytest.fixture
def padded(monkeypatch):
    """Return a function that extracts images together as on a GPU, on a CPU."""
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)

    def extract(extractor, images):
        with torch.inference_mode():
            return extractor._detect_padded(images)()

    return extract


def assert_equal_regions(actual, expected):
    for name in ("boxes", "features", "scores", "class_ids", "attribute_ids", "attribute_scores"):
        assert np.array_equal(getattr(actual, name), getattr(expected, name)), name
    assert (actual.width, actual.height) == (expected.width, expected.height)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["exact", "mixed"])
@pytest.mark.parametrize("counts", [(5, 20), (36, 36)])
def test_images_detected_without_waiting_equal_single_ones(
    detector, make_image, padded, asked, counts
):
    fields = {"precision": asked, "min_regions": counts[0], "max_regions": counts[1]}
    extractor = Extractor(detector, config=CONFIG.model_copy(update=fields))
    images = [make_image(seed, 80 + 16 * seed, 128) for seed in range(4)]
    for regions, image in zip(padded(extractor, images), images, strict=True):
        assert_equal_regions(regions, extractor(image))


@pytest.mark.slow
@pytest.mark.parametrize("height", [96, 104])  # scaled to 256 and 236 pixels of width
def test_images_of_about_one_size_pass_the_backbone_together_only_with_mixed(
    detector, make_image, padded, monkeypatch, height
):
    images = [make_image(0, 96, 128), make_image(1, 80, 80), make_image(2, height, 128)]
    for asked, expected in (("exact", [1, 1, 1]), ("mixed", [2, 1])):
        config = CONFIG.model_copy(update={"precision": asked})
        extractor = Extractor(detector, config=config)
        stem, sizes = extractor._network.backbone.stem, []
        stem.register_forward_pre_hook(lambda _, inputs, sizes=sizes: sizes.append(len(inputs[0])))
        together = padded(extractor, images)
        assert sizes[: len(expected)] == expected  # others are detected again, alone
        for regions, image in zip(together, images, strict=True):
            single = extractor(image)
            assert relative(regions.features, single.features) < 1e-5
            assert np.array_equal(regions.class_ids, single.class_ids)


@pytest.mark.slow
def test_an_image_whose_suppression_takes_more_rounds_is_detected_again(
    extractor, make_image, padded, monkeypatch
):
    few = partial(proposals.nms_in_rounds, rounds=1)
    monkeypatch.setattr(proposals, "nms_in_rounds", few)
    again = []
    detect = Extractor._detect
    monkeypatch.setattr(Extractor, "_detect", lambda *args: again.append(1) or detect(*args))
    [regions] = padded(extractor, [make_image(0)])
    assert again == [1]
    assert_equal_regions(regions, extractor(make_image(0)))


def test_an_image_that_is_too_small_is_refused_when_the_batch_ends(extractor, make_image, padded):
    with pytest.raises(InputError, match="too few regions of 16 x 16 pixels: 0 proposed"):
        padded(extractor, [make_image(0, 10, 14)])


@pytest.mark.slow
def test_images_that_do_not_fit_the_memory_are_halved(detector, make_image, monkeypatch, caplog):
    extractor = Extractor(detector, config=CONFIG)
    images, boxes = [make_image(seed) for seed in range(BATCH)], [BOXES] * BATCH
    expected = extractor.extract_many(images, boxes)
    network, sizes = extractor._network.backbone, []

    def limited(_, inputs):
        sizes.append(len(inputs[0]))
        if sizes[-1] > BATCH // 4:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    network.register_forward_pre_hook(limited)
    for _ in range(2):  # the smaller batch is kept
        for regions, whole in zip(extractor.extract_many(images, boxes), expected, strict=True):
            assert relative(regions.features, whole.features) < 1e-5
    assert caplog.messages == [
        "out of memory with 8 images together; trying 4",
        "out of memory with 4 images together; trying 2",
    ]
    assert sizes == [8, 4, *[2] * 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("convention", "other"),
    [
        ("stem_pool", "padding 1"),
        ("last_stage", "strided"),
        ("region_pooling", "bilinear"),
        ("resize", "rounded size"),
    ],
)
def test_another_convention_changes_features(detector, make_image, convention, other):
    """Negative controls: conventions of stock detectron2."""
    changed = with_meta(detector, detector.meta.model_copy(update={convention: other}))
    regions, theirs = (
        Extractor(d, config=CONFIG)(make_image(0, 95, 127), BOXES) for d in (detector, changed)
    )
    assert relative(theirs.features, regions.features) > 1e-2


def outside(*box):
    """Return a good box, a bad one, and the message about the bad one."""
    return [BOXES[0], box], (
        f"box 1 is not in the image of 128 x 96 pixels: {[float(side) for side in box]}; "
        "boxes are x1 y1 x2 y2 with x1 <= x2 and y1 <= y2"
    )


def misshapen(*shape):
    return np.zeros(shape), (
        f"boxes of an image have shape {shape}, not (R, 4) with R of at least 1; "
        "give every image a box, or leave it out"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        outside(60, 10, 10, 50),
        outside(10, 50, 60, 10),
        outside(128, 0, 140, 5),
        outside(0, -9, 9, -1),
        outside(0, 0, float("nan"), 9),
        misshapen(0, 4),
        misshapen(3, 5),
        misshapen(4),
        (
            None,
            "no boxes for the image, but extract.boxes is 'given'; "
            "supply boxes, or set extract.boxes=detect",
        ),
    ],
)
def test_unusable_boxes_are_refused(detector, make_image, boxes, message):
    config = CONFIG.model_copy(update={"boxes": "given"})
    given = None if boxes is None else np.array(boxes, np.float32)
    assert message_of(Extractor(detector, config=config), make_image(0), given) == message


def test_an_image_too_small_for_regions_is_refused(extractor, make_image):
    message = (
        "too few regions of 16 x 16 pixels: 0 proposed in an image of 14 x 10, "
        "extract.min_regions is 5; lower it, or leave the image out"
    )
    with pytest.raises(InputError, match=message):
        extractor(make_image(0, 10, 14))


@pytest.mark.parametrize("rows", ["all", "foreground"])
def test_confidences_of_attributes_follow_the_softmax_of_the_weights(detector, make_image, rows):
    changed = with_meta(detector, detector.meta.model_copy(update={"attribute_softmax": rows}))
    regions = Extractor(changed, config=CONFIG)(make_image(0), BOXES)
    features = torch.from_numpy(regions.features)
    predictor = detector.roi_heads.box_predictor
    logits = predictor.attribute_logits(features, predictor(features)).detach()
    probabilities = logits[:, : 5 if rows == "foreground" else 6].softmax(dim=1)[:, :5]
    np.testing.assert_allclose(regions.attribute_scores, probabilities.amax(dim=1), rtol=1e-4)
    assert regions.attribute_scores.dtype == np.float32


@pytest.mark.slow
def test_settings_that_contradict_the_weights_are_an_error_with_the_remedy(
    detector, tmp_path, caplog
):
    meta = detector.meta.model_copy(update={"roi_size": 7})
    save_detector(with_meta(detector, meta), tmp_path / "a.safetensors")
    load = partial(load_extractor, tmp_path / "a.safetensors", strict=True)
    load(config=CONFIG)
    other = CONFIG.model_copy(update={"min_side": 100, "roi_size": 14})
    message = (
        "the weights were trained with other settings: extract.min_side is 100, extract.roi_size "
        "is 14; add --set extract.min_side=192 --set extract.roi_size=7"
    )
    with pytest.raises(ConfigError) as error:
        load(config=other)
    assert str(error.value) == message
    assert caplog.messages == []
    load(config=other, strict=False)  # as for a captioner that was trained so
    assert caplog.messages == [message]
