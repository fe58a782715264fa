import json
import pickle
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from a2cap.data.errors import WeightsError
from a2cap.extract.detector.conventions import airsplay_meta, caffe_meta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.extractor import Extractor
from a2cap.extract.weights.load import (
    META_KEY,
    architecture_of,
    assemble_detector,
    load_detector,
    save_detector,
)
from tests.extract.tiny import CONFIG


@pytest.fixture
def saved(detector, tmp_path):
    path = tmp_path / "detector.safetensors"
    save_detector(detector, path)
    return path


def rewrite(path, *, tensors=None, meta=None):
    """Save the file again with other tensors or another meta."""
    kept = load_file(path) if tensors is None else tensors
    save_file(kept, path, metadata={} if meta is None else {META_KEY: meta})


def test_saving_and_loading_gives_the_same_detector(detector, saved):
    loaded = load_detector(saved)
    assert loaded.architecture == detector.architecture
    assert loaded.meta == detector.meta
    state = loaded.state_dict()
    assert state.keys() == detector.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in detector.state_dict().items())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_equal_detectors_give_equal_bytes(detector, saved, tmp_path):
    save_detector(load_detector(saved), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_a_detector_in_use_is_saved_with_the_same_bytes(detector, saved, tmp_path):
    extractor = Extractor(load_detector(saved), config=CONFIG)
    save_detector(extractor.detector, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()


def test_float16_halves_the_file_and_loads_as_float32(detector, saved, tmp_path):
    path = tmp_path / "half.safetensors"
    save_detector(detector, path, dtype=torch.float16)
    assert path.stat().st_size < 0.6 * saved.stat().st_size
    loaded, exact = load_detector(path).state_dict(), detector.state_dict()
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}
    for key, tensor in exact.items():
        expected = tensor.half().float() if tensor.ndim > 1 else tensor
        assert torch.equal(loaded[key], expected), key
    save_detector(load_detector(path), tmp_path / "again.safetensors", dtype=torch.float16)
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_weights_too_large_for_float16_are_refused(saved, tmp_path):
    detector = load_detector(saved)
    detector.roi_heads.box_predictor.cls_score.weight[0, 0] = 70000
    message = (
        "weights are too large for float16: 'roi_heads.box_predictor.cls_score.weight' reaches "
        "7e+04; store them as float32"
    )
    with pytest.raises(WeightsError, match=re.escape(message)):
        save_detector(detector, tmp_path / "half.safetensors", dtype=torch.float16)
    assert not (tmp_path / "half.safetensors").exists()


def test_sizes_are_read_from_shapes():
    for depth in (18, 50, 101, 152):
        architecture = Architecture(depth, width=16, classes=7, attributes=0, proposal_width=3)
        with torch.device("meta"):
            detector = Detector(architecture, caffe_meta(origin="test", classes=7))
        found = architecture_of(detector.state_dict(), name="a")
        assert (found.depth, found.width, found.classes) == (depth, 16, 7)
        assert (found.attributes, found.proposal_width) == (0, 3)


def airsplay_pickle(detector, path, *, without=()):
    arrays = {
        key: tensor.numpy() for key, tensor in detector.state_dict().items() if key not in without
    }
    path.write_bytes(pickle.dumps({"model": arrays}, protocol=2))
    return path


def test_a_pickle_in_airsplays_layout_gives_the_same_tensors_with_its_own_meta(detector, tmp_path):
    loaded = load_detector(airsplay_pickle(detector, tmp_path / "any name"))
    assert loaded.meta == airsplay_meta(origin=loaded.meta.origin, classes=12)
    state = loaded.state_dict()
    assert all(torch.equal(state[key], value) for key, value in detector.state_dict().items())


def test_a_pickle_without_the_attribute_head_is_a_detector_without_attributes(
    detector, tmp_path, make_image
):
    head = [
        key
        for key in detector.state_dict()
        if any(part in key for part in ("cls_embedding", "fc_attr", "attr_score"))
    ]
    path = airsplay_pickle(detector, tmp_path / "a.pkl", without=head)
    loaded = load_detector(path)
    assert loaded.architecture.attributes == 0
    regions = Extractor(loaded, config=CONFIG)(make_image(0))
    assert regions.attribute_ids is None


def test_a_missing_file_is_reported(tmp_path):
    message = f"no detector weights at {str(tmp_path / 'gone.pkl')!r}; correct extract.weights"
    with pytest.raises(WeightsError, match=re.escape(message)):
        load_detector(tmp_path / "gone.pkl")


@pytest.mark.parametrize("head", [b"", b"\x93NUMPY", b"MZ and more than sixteen bytes"])
def test_an_unknown_format_is_refused(tmp_path, head):
    (tmp_path / "a.pth").write_bytes(head)
    message = (
        f"weights 'a.pth' have an unknown format: the file begins with {head[:16]!r}; "
        "name a safetensors file, a .pth or .bin of torch, a .pkl of airsplay or detectron2, "
        "a .caffemodel"
    )
    with pytest.raises(WeightsError, match=re.escape(message)):
        load_detector(tmp_path / "a.pth")


def test_a_web_page_is_refused(tmp_path):
    (tmp_path / "a.pth").write_text("\n<!DOCTYPE html> not found")
    with pytest.raises(WeightsError) as error:
        load_detector(tmp_path / "a.pth")
    assert str(error.value) == (
        "weights 'a.pth' are a web page, because the download link is dead; "
        'get the file elsewhere, see "a2 weights list"'
    )


def test_missing_unexpected_and_misshapen_tensors_are_all_listed(saved, detector):
    tensors = load_file(saved)
    del tensors["roi_heads.res5.1.conv2.weight"], tensors["backbone.stem.conv1.norm.bias"]
    tensors["extra"] = torch.zeros(1)
    tensors["roi_heads.box_predictor.fc_attr.bias"] = torch.zeros(9)
    rewrite(saved, tensors=tensors, meta=detector.meta.model_dump_json())
    with pytest.raises(WeightsError) as error:
        load_detector(saved)
    assert str(error.value) == (
        "weights 'detector.safetensors' do not fit a ResNet-18 detector: "
        "missing: backbone.stem.conv1.norm.bias roi_heads.res5.1.conv2.weight, "
        "unexpected: extra, "
        "of another shape: roi_heads.box_predictor.fc_attr.bias (9,) instead of (8,); "
        "name a complete file of a known layout"
    )


def test_a_missing_tensor_that_determines_a_size_is_named(saved, detector):
    tensors = load_file(saved)
    del tensors["roi_heads.box_predictor.cls_score.weight"]
    rewrite(saved, tensors=tensors, meta=detector.meta.model_dump_json())
    message = (
        "weights 'detector.safetensors' lack 'roi_heads.box_predictor.cls_score.weight'; "
        "name a complete file of a known layout"
    )
    with pytest.raises(WeightsError, match=message):
        load_detector(saved)


def test_another_network_is_refused(saved, detector):
    rewrite(saved, tensors={"a": torch.zeros(1)}, meta=detector.meta.model_dump_json())
    message = (
        "weights 'detector.safetensors' are not of a ResNet-18, 50, 101 or 152 detector: "
        "they have (0, 0, 0, 0) blocks in res2 to res5; name a file in the canonical keys"
    )
    with pytest.raises(WeightsError, match=re.escape(message)):
        load_detector(saved)


def test_a_file_without_conventions_is_refused(saved):
    rewrite(saved)
    message = (
        "weights 'detector.safetensors' do not state their conventions: no 'a2.detector' in the "
        "metadata; write them with a2cap.extract.weights.load.save_detector"
    )
    with pytest.raises(WeightsError, match=message):
        load_detector(saved)


def test_incomplete_conventions_are_refused(saved, detector):
    meta = detector.meta.model_dump(mode="json")
    del meta["anchors"]
    meta["resize"] = "padded"
    rewrite(saved, meta=json.dumps(meta))
    with pytest.raises(WeightsError) as error:
        load_detector(saved)
    assert str(error.value) == (
        "weights 'detector.safetensors' state conventions that this version does not support: "
        "anchors: Field required, resize: Input should be 'exact factor' or 'rounded size'; "
        "write them with a2cap.extract.weights.load.save_detector"
    )


def test_conventions_that_contradict_the_tensors_are_refused(detector):
    tensors, architecture = detector.state_dict(), detector.architecture
    fewer = detector.meta.model_copy(update={"anchors": detector.meta.anchors[:9]})
    message = "weights 'a' score 12 anchors, their meta states 9; correct the meta"
    with pytest.raises(WeightsError, match=message):
        assemble_detector(tensors, architecture=architecture, meta=fewer, name="a")
    first = detector.meta.model_copy(update={"background_index": 0})
    message = (
        "weights 'a' have the background at 0, canonical weights have it last, at 12; move its rows"
    )
    with pytest.raises(WeightsError, match=message):
        assemble_detector(tensors, architecture=architecture, meta=first, name="a")


@pytest.mark.parametrize("part", [0.001, 0.5, 0.99])
def test_truncated_safetensors_are_refused(saved, part):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(part * len(whole))])
    message = "weights 'detector.safetensors' are damaged: .*; download or make them again"
    with pytest.raises(WeightsError, match=message):
        load_detector(saved)


def test_a_malicious_pickle_is_refused_and_nothing_runs(tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path / "ran").touch, ()

    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": Evil()}, protocol=2))
    with pytest.raises(
        WeightsError, match=r"it refers to .*, and nothing of it was run; do not use"
    ):
        load_detector(tmp_path / "a.pkl")
    assert not (tmp_path / "ran").exists()
