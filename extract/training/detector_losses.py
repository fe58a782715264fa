"""Losses of the detector (Ren et al. 2015; Anderson et al. 2018, section 3.1).

Every loss is a mean over the samples of each image, then over images, as with caffe's one image per
step: the losses of parts of a batch, or of ranks, can be averaged by their numbers of images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

BEND = 1 / 9
"""Error from which smooth L1 grows linearly (caffe's sigma 3; torchvision's for both losses)."""


@dataclass(frozen=True)
class DetectorLosses:
    """The five losses of a batch, () float32 each.

    objectness, proposal_boxes: of the proposal network.
    classes, boxes, attributes: of the heads; attributes is 0 where none is known.
    """

    objectness: Tensor
    proposal_boxes: Tensor
    classes: Tensor
    boxes: Tensor
    attributes: Tensor

    def total(self, *, attribute_weight: float) -> Tensor:
        """Return the sum to minimise; caffe's attribute_weight is 0.5."""
        without = self.objectness + self.proposal_boxes + self.classes + self.boxes
        return without + attribute_weight * self.attributes

    def named(self) -> dict[str, Tensor]:
        """Return the five losses by name."""
        return dict(vars(self))


@dataclass(frozen=True)
class Samples:
    """K anchors or regions of a batch of B images on which one step trains.

    images: (K,) int64, index of the image.
    count: B.
    boxes: (K, 4) float32, the anchors or regions.
    deltas: (K, 4), those of the true boxes, 0 where there is none.
    foreground: (K,) bool.
    """

    images: Tensor
    count: int
    boxes: Tensor
    deltas: Tensor
    foreground: Tensor


def objectness_loss(logits: Tensor, sampled: Samples) -> Tensor:
    """Return the binary cross-entropy of object against background. logits: (K,) float32."""
    losses = F.binary_cross_entropy_with_logits(
        logits, sampled.foreground.to(logits.dtype), reduction="none"
    )
    return mean_by_image(losses, sampled.images, count=sampled.count)


def box_loss(deltas: Tensor, sampled: Samples) -> Tensor:
    """Return smooth L1 of the four deltas of foreground samples, averaged over all samples.

    deltas: (K, 4) float32, in the units of `sampled.deltas`.
    """
    errors = F.smooth_l1_loss(deltas, sampled.deltas, reduction="none", beta=BEND).sum(dim=1)
    losses = torch.where(sampled.foreground, errors, 0)
    return mean_by_image(losses, sampled.images, count=sampled.count)


def class_loss(logits: Tensor, class_ids: Tensor, sampled: Samples) -> Tensor:
    """Return the cross-entropy of classes.

    logits: (K, classes + 1) float32, background last; class_ids: (K,) int64.
    """
    losses = F.cross_entropy(logits, class_ids, reduction="none")
    return mean_by_image(losses, sampled.images, count=sampled.count)


AttributeTarget = Literal["softmax", "sigmoid", "families"]


@dataclass(frozen=True)
class AttributeLoss:
    """The loss of attributes, averaged over the attributes of each region.

    target: softmax, over all attributes, as published; sigmoid, of each attribute on its own;
    families, a softmax over each of `families`, ids of which a region has at most one. With a
    softmax over all, the attributes of one region compete: its loss does not fall below log A.
    """

    target: AttributeTarget = "softmax"
    families: Sequence[Sequence[int]] = ()

    def __call__(
        self, logits: Tensor, attribute_ids: Tensor, images: Tensor, *, count: int
    ) -> Tensor:
        """Return the loss, ().

        logits: (K, attributes + 1) float32.
        attribute_ids: (K, A) int64, padded with -1.
        images: (K,) int64 in [0, count). Regions without attributes are ignored.
        """
        has_attribute = attribute_ids >= 0
        is_labelled = has_attribute.any(dim=1)
        if self.target == "sigmoid":
            targets = logits.new_zeros(logits.shape)
            targets.scatter_add_(1, attribute_ids.clamp(min=0), has_attribute.to(logits))
            sums = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
            sums = sums[:, :-1].sum(dim=1)  # the last row is "no attribute"
        else:
            log_probabilities = self._log_probabilities(logits)
            label_log_probs = log_probabilities.gather(1, attribute_ids.clamp(min=0))
            sums = -torch.where(has_attribute, label_log_probs, 0).sum(dim=1)
        losses = sums[is_labelled] / has_attribute.sum(dim=1)[is_labelled]
        return mean_by_image(losses, images[is_labelled], count=count)

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        if self.target == "softmax":
            return logits.log_softmax(dim=1)
        log_probs = torch.zeros_like(logits)  # an attribute outside of all families adds no loss
        for ids in self.families:
            log_probs[:, ids] = logits[:, ids].log_softmax(dim=1)
        return log_probs


def mean_by_image(losses: Tensor, images: Tensor, *, count: int) -> Tensor:
    """Return the mean over images of the mean loss of each, 0 for an image without samples.

    losses: (K,) float32; images: (K,) int64 in [0, count). Returns () float32.
    """
    counts = torch.bincount(images, minlength=count)
    return (losses / counts[images]).sum() / count
