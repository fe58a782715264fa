import pytest
from pydantic import ValidationError

from a2.extract.meta import DetectorMeta, airsplay_meta, caffe_meta, detectron2_meta


def test_every_convention_has_to_be_named():
    assert all(field.is_required() for field in DetectorMeta.model_fields.values())
    assert all(field.description for field in DetectorMeta.model_fields.values())


@pytest.mark.parametrize("make", [caffe_meta, airsplay_meta, detectron2_meta])
def test_meta_survives_json(make):
    meta = make(origin="test", classes=1600)
    assert DetectorMeta.model_validate_json(meta.model_dump_json()) == meta


def test_airsplay_differs_from_caffe_in_what_its_weights_were_converted_for():
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


def test_conventions_that_are_not_built_are_refused():
    values = caffe_meta(origin="a", classes=1600).model_dump()
    with pytest.raises(ValidationError, match="resize"):
        DetectorMeta(**{**values, "resize": "padded"})


def test_another_procedure_keeps_what_belongs_to_the_weights():
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
