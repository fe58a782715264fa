"""One detector written in all five public layouts, and read back."""

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from a2cap.extract.detector.anchors import caffe_anchors, detectron2_anchors
from a2cap.extract.detector.conventions import as_anchors, detectron2_meta
from a2cap.extract.extractor import Extractor
from a2cap.extract.weights import checkpoint_layouts as layouts
from a2cap.extract.weights import load as weights
from a2cap.extract.weights.checkpoint_layouts import make_canonical
from a2cap.extract.weights.load import assemble_detector, load_detector
from tests.extract.tiny import CONFIG, refusal

PREDICTOR = "roi_heads.box_predictor"
HEAD = "proposal_generator.rpn_head"
CELL_ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
BOX_WEIGHTS = (10, 10, 5, 5)

Tensors = Mapping[str, Tensor]


def write_airsplay(tensors: Tensors, path: Path) -> None:
    arrays = {key: tensor.numpy() for key, tensor in with_box_weights(tensors).items()}
    path.write_bytes(pickle.dumps({"model": arrays}, protocol=2))


def write_hugging_face(tensors: Tensors, path: Path) -> None:
    state = with_box_weights(tensors)
    state[CELL_ANCHORS] = torch.from_numpy(detectron2_anchors(sizes=(64, 128, 256, 512))).float()
    for key in list(state):
        if key.endswith("running_var"):
            counter = key.replace("running_var", "num_batches_tracked")
            state[counter] = torch.zeros(1, dtype=torch.int64)
    torch.save(state, path)


def write_milvlg(tensors: Tensors, path: Path) -> None:
    names = {"cls_embedding": "cls_embed", "fc_attr": "attr_linear1", "attr_score": "attr_linear2"}
    state = {}
    for key, tensor in with_caffe_rows(tensors).items():
        module, _, kind = key.rpartition(".")
        head, _, part = module.rpartition(".")
        state[f"{head}.{names.get(part, part)}.{kind}"] = tensor
    state[CELL_ANCHORS] = torch.from_numpy(caffe_anchors()).float()
    torch.save({"model": state}, path)


def write_model_zoo(tensors: Tensors, path: Path) -> None:
    arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
    content = {"model": arrays, "__author__": "Detectron2 Model Zoo", "matching_heuristics": True}
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_caffemodel(tensors: Tensors, path: Path) -> None:
    message = text_field(1, "VGG_ILSVRC")
    for name, arrays in caffe_layers(with_caffe_rows(tensors)).items():
        message += caffe_layer(name, arrays)
    path.write_bytes(message)


def with_box_weights(tensors: Tensors) -> dict[str, Tensor]:
    changed = dict(tensors)
    for kind in ("weight", "bias"):
        rows = tensors[f"{PREDICTOR}.bbox_pred.{kind}"]
        factors = torch.tensor(BOX_WEIGHTS).repeat(len(rows) // 4)
        changed[f"{PREDICTOR}.bbox_pred.{kind}"] = rows * factors.view(-1, *[1] * (rows.ndim - 1))
    return changed


def with_caffe_rows(tensors: Tensors) -> dict[str, Tensor]:
    """Background first, boxes for it too, and a logit of its own for every anchor."""
    changed = dict(tensors)
    for kind in ("weight", "bias"):
        foreground = tensors[f"{HEAD}.objectness_logits.{kind}"]
        background = torch.full_like(foreground, 0.25)
        changed[f"{HEAD}.objectness_logits.{kind}"] = torch.cat(
            (background, foreground + background)
        )
        boxes = tensors[f"{PREDICTOR}.bbox_pred.{kind}"]
        changed[f"{PREDICTOR}.bbox_pred.{kind}"] = torch.cat((torch.ones_like(boxes[:4]), boxes))
        for part in ("cls_score", "cls_embedding", "attr_score"):
            if (key := f"{PREDICTOR}.{part}.{kind}") in tensors:
                changed[key] = tensors[key].roll(1, dims=0)
    return changed


def caffe_layers(tensors: Tensors) -> dict[str, list[np.ndarray]]:
    """Layer name -> blobs; normalisations as sums over 4 batches with their count."""
    names = {f"{HEAD}.conv": "rpn_conv/3x3", f"{HEAD}.objectness_logits": "rpn_cls_score"}
    names[f"{HEAD}.anchor_deltas"] = "rpn_bbox_pred"
    layers: dict[str, list[np.ndarray]] = {}
    for key in sorted(tensors, key=lambda key: key.endswith("bias")):
        module, _, kind = key.rpartition(".")
        if module.startswith((HEAD, PREDICTOR)):
            name = names.get(module, module.rpartition(".")[2])
            layers.setdefault(name, []).append(tensors[key].numpy())
        elif not module.endswith(".norm"):
            layers[caffe_name("res", module)] = [tensors[key].numpy()]
        elif kind == "weight":
            pair = [tensors[f"{module}.{part}"].numpy() for part in ("weight", "bias")]
            layers[caffe_name("scale", module.removesuffix(".norm"))] = pair
        elif kind == "running_mean":
            parts = ("running_mean", "running_var")
            sums = [tensors[f"{module}.{part}"].numpy() * 4 for part in parts]
            blobs = [*sums, np.array([4], np.float32)]
            layers[caffe_name("bn", module.removesuffix(".norm"))] = blobs
    return layers


def caffe_name(kind: str, module: str) -> str:
    """As in test.prototxt: units of res3 and res4 are a, b1, b2, ...; of the others a, b, c."""
    if module == "backbone.stem.conv1":
        return {"res": "conv1", "bn": "bn_conv1", "scale": "scale_conv1"}[kind]
    _, stage, unit, part = module.split(".")
    branch = {"shortcut": "1", "conv1": "2a", "conv2": "2b", "conv3": "2c"}[part]
    letters = "abc"[int(unit)] if stage in ("res2", "res5") or unit == "0" else f"b{unit}"
    return f"{kind}{stage[-1]}{letters}_branch{branch}"


def varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def bytes_field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def text_field(number: int, text: str) -> bytes:
    return bytes_field(number, text.encode())


def caffe_layer(name: str, arrays: list[np.ndarray]) -> bytes:
    blobs = b"".join(bytes_field(7, blob(array)) for array in arrays)
    return bytes_field(100, text_field(1, name) + text_field(2, "Layer") + blobs)


def blob(array: np.ndarray) -> bytes:
    data = bytes_field(5, np.ascontiguousarray(array, "<f4").tobytes())
    return data + bytes_field(7, bytes_field(1, b"".join(map(varint, array.shape))))


VISUAL_GENOME = {
    "caffemodel": (write_caffemodel, layouts.CAFFE_ROWS),
    "MILVLG": (write_milvlg, layouts.CAFFE_ROWS),
    "airsplay": (write_airsplay, layouts.AIRSPLAY),
    "Hugging Face": (write_hugging_face, layouts.HUGGING_FACE),
}


@pytest.fixture(scope="module")
def zoo(detector):
    """A detector of detectron2's form: 15 anchors, RoIAlign, a last stage that strides."""
    architecture = replace(detector.architecture, attributes=0, anchors=15)
    state, generator = detector.state_dict(), torch.Generator().manual_seed(0)
    tensors = {key: t for key, t in state.items() if not re.search("embedding|attr", key)}
    for key, rows in (("objectness_logits", 15), ("anchor_deltas", 60)):
        for kind in ("weight", "bias"):
            shape = (rows, *state[f"{HEAD}.{key}.{kind}"].shape[1:])
            tensors[f"{HEAD}.{key}.{kind}"] = 0.02 * torch.randn(shape, generator=generator)
    meta = detectron2_meta(origin=layouts.ZOO_LIKE.origin, classes=12)
    return assemble_detector(tensors, architecture=architecture, meta=meta, name="zoo")


@pytest.mark.parametrize("layout", VISUAL_GENOME)
def test_a_detector_is_read_equal_from_every_layout(detector, layout, tmp_path, make_image):
    write, published = VISUAL_GENOME[layout]
    write(detector.state_dict(), tmp_path / "a file")
    loaded = load_detector(tmp_path / "a file")
    expected = published.make_meta(origin=published.origin, classes=12)
    np.testing.assert_allclose(loaded.meta.anchors, expected.anchors, rtol=1e-6)
    assert loaded.meta == expected.model_copy(update={"anchors": loaded.meta.anchors})
    state = loaded.state_dict()
    for key, tensor in detector.state_dict().items():
        weights = loaded.meta.bbox_weights if "bbox_pred" in key else (1.0,)
        divisors = torch.tensor(weights).repeat(len(tensor) // len(weights))
        undone = state[key] / divisors.view(-1, *[1] * (tensor.ndim - 1))
        torch.testing.assert_close(undone, tensor, rtol=1e-6, atol=1e-7)
    same_graph = assemble_detector(
        detector.state_dict(), architecture=detector.architecture, meta=loaded.meta, name="a"
    )
    ours, theirs = (Extractor(d, config=CONFIG)(make_image(3)) for d in (same_graph, loaded))
    assert np.array_equal(ours.class_ids, theirs.class_ids)
    assert np.array_equal(ours.attribute_ids, theirs.attribute_ids)
    np.testing.assert_allclose(ours.boxes, theirs.boxes, atol=1e-3)
    np.testing.assert_allclose(ours.features, theirs.features, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_detector_of_the_model_zoo_keeps_its_conventions(zoo, tmp_path, make_image):
    write_model_zoo(zoo.state_dict(), tmp_path / "model_final.pkl")
    loaded = load_detector(tmp_path / "model_final.pkl")
    assert loaded.meta == zoo.meta
    ours, theirs = (Extractor(d, config=CONFIG)(make_image(3)) for d in (zoo, loaded))
    assert np.array_equal(ours.boxes, theirs.boxes)
    assert np.array_equal(ours.features, theirs.features)
    assert ours.attribute_ids is None


def test_stored_anchors_take_precedence(detector, tmp_path):
    write_milvlg(detector.state_dict(), tmp_path / "a.pth")
    content = torch.load(tmp_path / "a.pth", weights_only=True)
    content["model"][CELL_ANCHORS] += 1
    torch.save(content, tmp_path / "a.pth")
    assert load_detector(tmp_path / "a.pth").meta.anchors == as_anchors(caffe_anchors() + 1)


def test_attributes_may_be_missing(detector, tmp_path, make_image):
    tensors = {k: t for k, t in detector.state_dict().items() if not re.search("embedding|attr", k)}
    write_airsplay(tensors, tmp_path / "a")
    loaded = load_detector(tmp_path / "a")
    assert loaded.architecture.attributes == 0
    assert Extractor(loaded, config=CONFIG)(make_image(0)).attribute_ids is None


def test_unknown_layers_are_listed(detector, tmp_path):
    write_caffemodel(detector.state_dict(), tmp_path / "a")
    with (tmp_path / "a").open("ab") as file:
        file.write(caffe_layer("fc_extra", [np.ones((2, 2), np.float32)]))
    assert refusal(load_detector, tmp_path / "a") == (
        "weights 'a' do not fit a ResNet-18 detector: unexpected: fc_extra.weight; "
        "name a complete file of a known layout"
    )


def test_an_unpublished_number_of_anchors_is_refused(detector):
    tensors = detector.state_dict()
    for key, rows in (("objectness_logits", 9), ("anchor_deltas", 36)):
        tensors[f"{HEAD}.{key}.weight"] = tensors[f"{HEAD}.{key}.weight"][:rows]
    assert refusal(make_canonical, tensors, name="a") == (
        "weights 'a' have an unknown layout: they score 9 anchors, published ones 12 (Visual "
        "Genome) or 15 (COCO); write them with a2cap.extract.weights.load.save_detector"
    )


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "origin"),
    [
        ("airsplay_attr", layouts.AIRSPLAY.origin),
        ("airsplay_noattr", layouts.AIRSPLAY.origin),
        ("hf_frcnn_vg_finetuned", layouts.HUGGING_FACE.origin),
        ("milvlg_bua_caffe_r101", layouts.CAFFE_ROWS.origin),
        ("d2_coco_R101_C4_298dad", "detectron2 model zoo, faster_rcnn_R_101_C4"),
    ],
)
def test_the_published_keys_and_shapes_make_a_detector(shared, schema, origin):
    shapes = json.loads(
        (shared / "reference" / "checkpoint_schemas" / f"{schema}.json").read_text()
    )
    tensors, meta = make_canonical(
        {k: torch.zeros(shape) for k, shape in shapes.items()}, name=schema
    )
    architecture = weights.architecture_of(tensors, name=schema)
    detector = assemble_detector(tensors, architecture=architecture, meta=meta, name=schema)
    assert (architecture.depth, detector.meta.origin) == (101, origin)


@pytest.mark.shared
@pytest.mark.slow
def test_the_published_caffemodels_layers_make_a_detector(shared, tmp_path):
    layers = json.loads(
        (shared / "reference" / "checkpoint_schemas" / "caffemodel_vg_r101.json").read_text()
    )
    with (tmp_path / "a.caffemodel").open("wb") as file:
        file.write(text_field(1, "VGG"))
        for name, shapes in layers.items():
            file.write(caffe_layer(name, [np.zeros(shape, np.float32) for shape in shapes]))
    loaded = load_detector(tmp_path / "a.caffemodel")
    assert (loaded.architecture.depth, loaded.architecture.classes) == (101, 1600)
