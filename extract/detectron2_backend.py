"""The detector built from detectron2's modules (facebookresearch/detectron2 @02b5c4e).

Stem, residual stages, proposal head and pooler are detectron2's. Proposals are selected as in the
native backend, by the meta. Only this module imports detectron2, which package indexes lack.
"""

import copy
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from a2cap.data.errors import A2Error, WeightsError
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.detector import Detector, Pooling
from a2cap.extract.detector.resnet import BLOCKS, Architecture


def rebuild(detector: Detector) -> Detector:
    """Return a copy of the detector with detectron2's backbone, proposal head, res5 and pooling.

    Raises A2Error where detectron2 is not installed, WeightsError for a depth that detectron2 does
    not dilate.
    """
    architecture, meta = detector.architecture, detector.meta
    if not architecture.has_bottlenecks:
        raise WeightsError(
            f"detectron2 does not dilate ResNet-{architecture.depth}; set extract.backend=native"
        )
    parts = {
        "backbone.stem": _stem(architecture, meta),
        "backbone.res2": _stage(architecture, 2, meta),
        "backbone.res3": _stage(architecture, 3, meta),
        "backbone.res4": _stage(architecture, 4, meta),
        "proposal_generator.rpn_head": _ProposalHead(architecture),
        "roi_heads.res5": _stage(architecture, 5, meta),
    }
    shared = {id(t): t for t in (*detector.parameters(), *detector.buffers())}
    rebuilt = copy.deepcopy(detector, memo=dict(shared))
    for name, part in parts.items():
        part.load_state_dict(detector.get_submodule(name).state_dict())
        parent, _, child = name.rpartition(".")
        setattr(rebuilt.get_submodule(parent), child, part)
    rebuilt.pool = _pool(meta)
    return rebuilt.requires_grad_(False).eval()


class _ProposalHead(nn.Module):
    """detectron2's head, with outputs in the order of `anchor_grid`."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        head = _module("modeling.proposal_generator.rpn").StandardRPNHead(
            in_channels=architecture.stage_width(4),
            num_anchors=architecture.anchors,
            conv_dims=[architecture.proposal_width],
        )
        self.conv, self.objectness_logits = head.conv, head.objectness_logits
        self.anchor_deltas = head.anchor_deltas
        self._forward = head.forward

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, h * w * A) and deltas (B, h * w * A, 4). features: (B, C, h, w)."""
        logits, deltas = self._forward([features])
        return (
            logits[0].permute(0, 2, 3, 1).flatten(1),
            deltas[0].permute(0, 2, 3, 1).reshape(len(features), -1, 4),
        )


def _stem(architecture: Architecture, meta: DetectorMeta) -> nn.Module:
    resnet = _module("modeling.backbone.resnet")

    class CaffeStem(resnet.BasicStem):  # type: ignore[misc, name-defined]
        """A stem with caffe's pool, which detectron2 does not have."""

        def forward(self, x: Tensor) -> Tensor:
            return F.max_pool2d(F.relu_(self.conv1(x)), 3, stride=2, padding=0, ceil_mode=True)

    form = resnet.BasicStem if meta.stem_pool == "padding 1" else CaffeStem
    stem: nn.Module = form(3, architecture.width, norm="FrozenBN")
    return stem


def _stage(architecture: Architecture, stage: int, meta: DetectorMeta) -> nn.Sequential:
    dilated = stage == 5 and meta.last_stage == "dilated"
    resnet = _module("modeling.backbone.resnet")
    blocks = BLOCKS[architecture.depth][stage - 2]
    first_stride = 1 if stage == 2 or dilated else 2
    outputs = architecture.stage_width(stage)
    made = resnet.ResNet.make_stage(
        resnet.BottleneckBlock,
        blocks,
        stride_per_block=[first_stride] + [1] * (blocks - 1),
        in_channels=architecture.width if stage == 2 else architecture.stage_width(stage - 1),
        out_channels=outputs,
        bottleneck_channels=outputs // 4,
        norm="FrozenBN",
        stride_in_1x1=True,
        dilation=2 if dilated else 1,
    )
    return nn.Sequential(*made)


def _pool(meta: DetectorMeta) -> Pooling:
    """Return detectron2's pooler with the arguments of `roi_pool`."""
    form = "ROIPool" if meta.region_pooling == "maximum" else "ROIAlignV2"

    def pool(
        maps: Tensor, rois: Tensor, *, size: int, scale: float, chunk: int
    ) -> Iterator[Tensor]:
        pooler = _module("modeling.poolers").ROIPooler(
            size, scales=[scale], sampling_ratio=0, pooler_type=form
        )
        boxes = _module("structures").Boxes
        for part in torch.split(rois, chunk):
            per_image = [part[part[:, 0] == index, 1:] for index in range(len(maps))]
            yield pooler([maps], [boxes(corners) for corners in per_image])

    return pool


def _module(name: str) -> ModuleType:
    try:
        return import_module(f"detectron2.{name}")
    except ImportError as error:
        raise A2Error(
            f"detectron2 cannot be imported: {error}; build it from its source (no package index "
            "has it), or set extract.backend=native, which gives the same features"
        ) from error
