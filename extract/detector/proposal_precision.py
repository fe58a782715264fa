"""Precisions of the selection of proposals; stored features are float32 in all.

Nine tenths of the time goes into res5 over all proposals, of which a tenth to a third is kept.
Mixed precision runs res5 on all of them in bfloat16, compiled with prepacked weights, and computes
the likely ones again in float32.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from a2cap.extract.detector.detector import Detector, chunk_on, probabilities
from a2cap.extract.detector.proposals import Proposals, batch_rois
from a2cap.extract.detector.region_selection import DetectedRegions, RegionSelection
from a2cap.extract.extract_config import ExtractConfig

logger = logging.getLogger(__name__)

Heads = Callable[[Tensor], Tensor]


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the kind of processor multiplies in bfloat16, which it then does faster.

    True for CUDA 8.0 and later and for CPUs with AVX512_BF16, which all CPUs with AMX have.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    # the oldest supported torch does not report it
    report = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)
    return device.type == "cpu" and bool(report())


def resolve_proposal_precision(
    config: ExtractConfig, device: torch.device
) -> Literal["exact", "mixed"]:
    """Return the precision that a configuration means on a device, equal on equal devices."""
    precision = config.precision_in_key
    if precision == "auto":
        return "mixed" if has_bfloat16(device) else "exact"
    return precision


def warn_about_mixed_precision(config: ExtractConfig, device: torch.device) -> None:
    """Warn if mixed precision was asked for on a device that emulates bfloat16."""
    if config.precision == "mixed" and not has_bfloat16(device):
        message = "%s emulates bfloat16, many times slower: extract.precision=mixed; set it to auto"
        logger.warning(message, device)


class MixedPrecision:
    """Classification in bfloat16, and again in float32 where selection is likely; `Classify`."""

    def __init__(self, detector: Detector) -> None:
        self._res5 = copy.deepcopy(detector.roi_heads).bfloat16()
        self._heads: Heads | None = None

    def __call__(
        self,
        detector: Detector,
        maps: Sequence[Tensor],
        proposals: Proposals,
        *,
        selection: RegionSelection,
    ) -> DetectedRegions:
        """Classify every proposal of B images; maps: (1, C, h, w) of each."""
        likely = selection.with_margin()
        # no first pass if the margin leaves out none of the proposals
        if proposals.boxes.shape[1] <= likely.min_regions:
            return detector.classify(maps, proposals, selection=selection)
        rough = [
            self.class_logits(detector, features, batch_rois([boxes]), roi_size=selection.roi_size)
            for features, boxes in zip(maps, proposals.boxes, strict=True)
        ]
        regions = DetectedRegions.rough(
            proposals,
            probabilities(torch.stack(rough)),
            feature_width=detector.architecture.feature_width,
            has_attributes=detector.architecture.attributes > 0,
        )
        rows, _ = likely(regions)
        exact = detector.classify(maps, proposals.rows(rows), selection=selection)
        return regions.updated(rows, exact)

    def class_logits(
        self, detector: Detector, features: Tensor, rois: Tensor, *, roi_size: int
    ) -> Tensor:
        """Return (K, classes + 1) float32; arguments as of `Detector.predict`."""
        chunks = detector.pooled(features, rois, roi_size=roi_size)
        vectors = torch.cat([self._features(chunk) for chunk in chunks])
        return cast(Tensor, detector.roi_heads.box_predictor(vectors.float()))

    def _features(self, pooled: Tensor) -> Tensor:
        # padded to a whole chunk, so that only one shape is compiled
        whole = F.pad(pooled, (0, 0, 0, 0, 0, 0, 0, chunk_on(pooled.device) - len(pooled)))
        batch = whole.to(torch.bfloat16, memory_format=torch.channels_last)
        if self._heads is None:
            self._heads = self._compiled(batch)
        return self._heads(batch)[: len(pooled)]

    def _compiled(self, example: Tensor) -> Heads:
        """Return the heads compiled, or uncompiled where that fails."""
        compiled = torch.compile(self._res5, options={"freezing": True})
        try:
            compiled(example)
        except torch.OutOfMemoryError:  # fewer images pass together
            raise
        except Exception as error:  # a missing or unfit C++ compiler raises types of its own
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            logger.warning("bfloat16 selection runs uncompiled: %s", reason)
            return self._res5
        return compiled
