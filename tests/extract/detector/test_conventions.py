import pytest
from pydantic import ValidationError

from a2cap.extract.detector.conventions import (
    DetectorMeta,
    airsplay_meta,
    caffe_meta,
    custom_meta,
    detectron2_meta,
)


def new_meta(**changed):
    given = {
        "origin": "test",
        "classes": 5,
        "sizes": (24, 48),
        "ratios": (0.25, 1.0),
        "scale": (224, 300),
        "last_stage": "dilated",
        "region_pooling": "maximum",
    }
    return custom_meta(**{**given, **changed})


def test_every_convention_is_required_and_described():
    assert all(field.is_required() for field in DetectorMeta.model_fields.values())
    assert all(field.description for field in DetectorMeta.model_fields.values())


@pytest.mark.parametrize("make", [caffe_meta, airsplay_meta, detectron2_meta, new_meta])
def test_meta_is_equal_after_a_json_round_trip(make):
    meta = make(origin="test", classes=1600)
    assert DetectorMeta.model_validate_json(meta.model_dump_json()) == meta


def test_airsplay_differs_from_caffe_in_anchors_and_box_weights():
    caffe = caffe_meta(origin="a", classes=1600).model_dump()
    airsplay = airsplay_meta(origin="a", classes=1600).model_dump()
    assert {key for key in caffe if caffe[key] != airsplay[key]} == {
        "anchors",
        "anchor_order",
        "decode_plus1",
        "bbox_weights",
        "attribute_softmax",
    }
    assert airsplay["bbox_weights"] == (10, 10, 5, 5)


def test_unknown_conventions_are_refused():
    values = caffe_meta(origin="a", classes=1600).model_dump()
    with pytest.raises(ValidationError, match="resize"):
        DetectorMeta(**{**values, "resize": "padded"})


def test_another_procedure_keeps_the_conventions_of_the_weights():
    caffe = caffe_meta(origin="a", classes=1600)
    other = caffe.with_procedure("detectron2")
    changed = {k for k, v in caffe.model_dump().items() if other.model_dump()[k] != v}
    assert changed == {"decode_limit", "clip_minus1", "min_size_rule", "nms_plus1", "resize"}
    assert other.with_procedure("caffe") == caffe
    assert caffe.with_procedure("airsplay") == other


def test_detectron2s_own_models_follow_its_procedure():
    meta = detectron2_meta(origin="a", classes=80)
    assert meta == meta.with_procedure("detectron2")
    assert (len(meta.anchors), meta.scale) == (15, (800, 1333))


def test_custom_anchors_have_every_size_and_ratio_around_the_centre_of_a_cell():
    assert new_meta().anchors == (
        (8 - 24, 8 - 6, 8 + 24, 8 + 6),
        (8 - 12, 8 - 12, 8 + 12, 8 + 12),
        (8 - 48, 8 - 12, 8 + 48, 8 + 12),
        (8 - 24, 8 - 24, 8 + 24, 8 + 24),
    )


def test_custom_conventions_are_detectron2s_except_for_the_given_ones():
    usual, new = detectron2_meta(origin="test", classes=5).model_dump(), new_meta().model_dump()
    assert {key for key in usual if usual[key] != new[key]} == {
        "anchors",
        "scale",
        "last_stage",
        "region_pooling",
        "attribute_softmax",
    }
    assert (new["scale"], new["last_stage"]) == ((224, 300), "dilated")
    assert new_meta(last_stage="strided", region_pooling="bilinear").region_pooling == "bilinear"
