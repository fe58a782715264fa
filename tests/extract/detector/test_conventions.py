import pytest

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
        "roi_size": 7,
        "proposals": 20,
    }
    return custom_meta(**{**given, **changed})


def test_every_convention_is_required_and_described():
    fields = DetectorMeta.model_fields.items()
    assert {name for name, field in fields if not field.is_required()} == {"roi_size", "proposals"}
    stated = caffe_meta(origin="a", classes=5).model_dump()
    assert not {"roi_size", "proposals"} & stated.keys()
    assert all(field.description for field in DetectorMeta.model_fields.values())


@pytest.mark.parametrize("make", [caffe_meta, airsplay_meta, detectron2_meta, new_meta])
def test_meta_is_equal_after_a_json_round_trip(make):
    meta = make(origin="test", classes=1600)
    assert DetectorMeta.model_validate_json(meta.model_dump_json()) == meta


CAFFE = caffe_meta(origin="test", classes=5)
PROCEDURE = {"decode_limit", "clip_minus1", "min_size_rule", "nms_plus1", "resize"}


@pytest.mark.parametrize(
    ("usual", "other", "changed"),
    [
        (
            CAFFE,
            airsplay_meta(origin="test", classes=5),
            {"anchors", "anchor_order", "decode_plus1", "bbox_weights", "attribute_softmax"},
        ),
        (CAFFE, CAFFE.with_procedure("detectron2"), PROCEDURE),
        (
            detectron2_meta(origin="test", classes=5),
            new_meta(),
            {
                *("anchors", "scale", "last_stage", "region_pooling", "attribute_softmax"),
                "roi_size",
                "proposals",
            },
        ),
    ],
    ids=["airsplay", "procedure", "custom"],
)
def test_conventions_differ_in_nothing_else(usual, other, changed):
    values = usual.model_dump(), other.model_dump()
    names = values[0].keys() | values[1].keys()
    assert {name for name in names if values[0].get(name) != values[1].get(name)} == changed


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
