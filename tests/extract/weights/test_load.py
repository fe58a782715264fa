import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from a2cap.data.errors import WeightsError
from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.extract_config import META_KEY
from a2cap.extract.extractor import Extractor
from a2cap.extract.weights.load import (
    architecture_of,
    assemble_detector,
    load_detector,
    save_detector,
)
from tests.extract.tiny import CONFIG, refusal


@pytest.fixture
def saved(detector, tmp_path):
    path = tmp_path / "detector.safetensors"
    save_detector(detector, path)
    return path


def rewrite(path, *, tensors, meta):
    """Save the file again with other tensors or another meta."""
    save_file(tensors, path, metadata={} if meta is None else {META_KEY: meta})


def test_saving_and_loading_gives_the_same_detector(detector, saved):
    loaded = load_detector(saved)
    assert loaded.architecture == detector.architecture
    assert loaded.meta == detector.meta
    state = loaded.state_dict()
    assert state.keys() == detector.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in detector.state_dict().items())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_equal_detectors_give_equal_bytes_also_in_use(saved, tmp_path):
    extractor = Extractor(load_detector(saved), config=CONFIG)
    for detector in (load_detector(saved), extractor.detector):
        save_detector(detector, tmp_path / "again.safetensors")
        assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()
    assert not list(tmp_path.glob("*.partial"))


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
    reported = refusal(save_detector, detector, tmp_path / "half.safetensors", dtype=torch.float16)
    assert reported == message
    assert not (tmp_path / "half.safetensors").exists()


@pytest.mark.slow
def test_sizes_are_read_from_shapes():
    for depth in (18, 50, 101, 152):
        architecture = Architecture(depth, width=16, classes=7, attributes=0, proposal_width=3)
        with torch.device("meta"):
            detector = Detector(architecture, caffe_meta(origin="test", classes=7))
        read = architecture_of(detector.state_dict(), name="a")
        assert (read.depth, read.width, read.classes) == (depth, 16, 7)
        assert (read.attributes, read.proposal_width) == (0, 3)


def test_a_missing_file_is_reported(tmp_path):
    message = f"no detector weights at {str(tmp_path / 'gone.pkl')!r}; correct extract.weights"
    assert refusal(load_detector, tmp_path / "gone.pkl") == message


UNKNOWN_FORMAT = (
    "have an unknown format: the file begins with {!r}; name a safetensors file, "
    "a .pth or .bin of torch, a .pkl of airsplay or detectron2, a .caffemodel"
)
WEB_PAGE = (
    "are a web page, because the download link is dead; "
    'get the file elsewhere, see "a2 weights list"'
)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", UNKNOWN_FORMAT),
        (b"\x93NUMPY", UNKNOWN_FORMAT),
        (b"MZ and more than sixteen bytes", UNKNOWN_FORMAT),
        (b"\n<!DOCTYPE html> not found", WEB_PAGE),
    ],
)
def test_an_unknown_format_is_refused(tmp_path, head, message):
    (tmp_path / "a.pth").write_bytes(head)
    reported = refusal(load_detector, tmp_path / "a.pth")
    assert reported == f"weights 'a.pth' {message.format(head[:16])}"


PREDICTOR = "roi_heads.box_predictor"
WRITE = "write them with a2cap.extract.weights.load.save_detector"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tensors", "meta", "message"),
    [
        (
            {
                "roi_heads.res5.1.conv2.weight": None,
                "backbone.stem.conv1.norm.bias": None,
                "extra": torch.zeros(1),
                f"{PREDICTOR}.fc_attr.bias": torch.zeros(9),
            },
            {},
            "do not fit a ResNet-18 detector: "
            "missing: backbone.stem.conv1.norm.bias roi_heads.res5.1.conv2.weight, "
            "unexpected: extra, "
            f"of another shape: {PREDICTOR}.fc_attr.bias (9,) instead of (8,); "
            "name a complete file of a known layout",
        ),
        (
            {f"{PREDICTOR}.cls_score.weight": None},
            {},
            f"lack '{PREDICTOR}.cls_score.weight'; name a complete file of a known layout",
        ),
        ({}, None, f"do not state their conventions: no 'a2.detector' in the metadata; {WRITE}"),
        (
            {},
            {"anchors": None, "resize": "padded"},
            "state conventions that this version does not support: anchors: Field required, "
            f"resize: Input should be 'exact factor' or 'rounded size'; {WRITE}",
        ),
        (
            {},
            {"mean": [float("nan"), 1, 1]},
            "state conventions that this version does not support: "
            f"mean.0: Input should be a finite number; {WRITE}",
        ),
        (
            {f"{PREDICTOR}.cls_score.weight": torch.tensor(1.0)},
            {},
            "have tensors of impossible shapes: len() of a 0-d tensor; "
            "name a complete file of a known layout",
        ),
        (
            {f"{PREDICTOR}.cls_embedding.weight": torch.zeros(13)},
            {},
            "have tensors of impossible shapes: tuple index out of range; "
            "name a complete file of a known layout",
        ),
    ],
    ids=[
        *("wrong tensors", "no size", "no conventions", "wrong conventions", "no number"),
        *("no rows", "no columns"),
    ],
)
def test_tensors_and_conventions_of_no_detector_are_refused(
    saved, detector, tensors, meta, message
):
    changed = {**load_file(saved), **tensors}
    kept = {key: tensor for key, tensor in changed.items() if tensor is not None}
    if meta is not None:
        values = {**detector.meta.model_dump(mode="json"), **meta}
        meta = json.dumps({key: value for key, value in values.items() if value is not None})
    rewrite(saved, tensors=kept, meta=meta)
    assert refusal(load_detector, saved) == f"weights 'detector.safetensors' {message}"


def test_another_network_is_refused(saved, detector):
    rewrite(saved, tensors={"a": torch.zeros(1)}, meta=detector.meta.model_dump_json())
    message = (
        "weights 'detector.safetensors' are not of a ResNet-18, 50, 101 or 152 detector: "
        "they have (0, 0, 0, 0) blocks in res2 to res5; name a file in the canonical keys"
    )
    assert refusal(load_detector, saved) == message


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
