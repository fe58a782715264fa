"""The two losses of A2: the caption loss (Eq. 11) for theta, the mask loss (Eq. 4) for theta_m.

A training step:

    memory = captioner.encode(features, boxes, region_mask)
    losses = two_losses(captioner, memory, captions)
    losses.total().backward()
    # clip caption_parameters() and mask_parameters() separately, then step both optimisers
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from a2cap.model.alignment import AlignedAttention
from a2cap.model.captioner import PLAIN, Memory, Teaching, TrainableCaptioner


@dataclass(frozen=True)
class MaskStatistics:
    """Health of the masks; scalars without gradient, means over tokens.

    keep: mean m of the perturbed pass (healthy between .5 and .98); gate: mean g of the aligned
    pass, None without a gate; penalty: of Eq. 4 before lambda; harm: L(perturbed) - L(aligned) in
    nats per token, the cost of masking.
    """

    keep: Tensor
    gate: Tensor | None
    penalty: Tensor
    harm: Tensor


@dataclass(frozen=True)
class TwoLosses:
    """Both losses of a batch.

    caption: nats per token; mask, statistics: None without masks; tokens: int64 scalar, number of
    tokens, the weight of this batch among others (gradient accumulation, ranks). penalties: what
    the captioner adds to its caption loss, by name.
    """

    caption: Tensor
    mask: Tensor | None
    statistics: MaskStatistics | None
    tokens: Tensor
    penalties: Mapping[str, Tensor]

    def total(self) -> Tensor:
        """Return the sum, the tensor to call `backward()` on; the masks share no parameter."""
        others = [*self.penalties.values(), *([] if self.mask is None else [self.mask])]
        return sum(others, self.caption)


def caption_loss(log_probs: Tensor, is_token: Tensor) -> Tensor:
    """Return Eq. 11 in nats per token.

    log_probs: (...) float, of the target tokens; is_token: the same shape, bool, False on padding.
    """
    # a rank may have no token in its part of a batch
    return -(log_probs * is_token).sum() / is_token.sum().clamp(min=1)


def mask_penalty(keeps: Sequence[Tensor], is_token: Tensor) -> Tensor:
    """Return |1 - m|^2 of Eq. 4: sum over regions, mean over layers, heads and tokens.

    keeps: one (B, H, K * L, R) per layer, 1 on padding regions; is_token: (B, K, L) bool.
    """
    counted = is_token.flatten(1)[:, None, :]  # -> (B, 1, K * L)
    # padding regions have m = 1 and add nothing
    per_layer = [((1 - keep).square().sum(dim=-1) * counted).sum() for keep in keeps]
    return torch.stack(per_layer).sum() / _count(keeps, counted)


def mask_loss(caption_loss: Tensor, penalty: Tensor, *, penalty_weight: float) -> Tensor:
    """Return Eq. 4: the masks maximise the caption loss and pay a penalty for masking.

    caption_loss: of the perturbed pass, nats per token; penalty: of `mask_penalty`.
    """
    return penalty_weight * penalty - caption_loss


def perturbed_pass_loss(captioner: TrainableCaptioner, memory: Memory, captions: Tensor) -> Tensor:
    """Return Eq. 4 on given captions without running the aligned pass; see `two_losses`."""
    is_token = captions != captioner.special.pad
    perturbed = captioner.score(memory, captions, perturbed=True)
    return mask_loss(
        caption_loss(perturbed.log_probs, is_token),
        mask_penalty(_keeps(perturbed.attention), is_token),
        penalty_weight=captioner.config.alignment.penalty_weight,
    )


def two_losses(
    captioner: TrainableCaptioner, memory: Memory, captions: Tensor, *, teaching: Teaching = PLAIN
) -> TwoLosses:
    """Compute the caption loss of the aligned pass and the mask loss of the perturbed pass.

    memory: of `captioner.encode`, encoded once for both; captions: (B, K, L) int64, tokens, <eos>,
    padding, without <bos>; a row of padding alone is ignored. The caption loss gives theta_m no
    gradient and the mask loss gives theta none.
    """
    is_token = captions != captioner.special.pad
    if not captioner.has_masks:
        alone = captioner.score(memory, captions, teaching=teaching)
        caption = caption_loss(alone.log_probs, is_token)
        return TwoLosses(caption, None, None, is_token.sum(), alone.penalties)
    # the image is encoded once; only the decoder runs twice
    aligned, perturbed = captioner.score_both(memory, captions, teaching=teaching)
    caption = caption_loss(aligned.log_probs, is_token)
    perturbed_caption = caption_loss(perturbed.log_probs, is_token)
    keeps = _keeps(perturbed.attention)
    penalty = mask_penalty(keeps, is_token)
    penalty_weight = captioner.config.alignment.penalty_weight
    statistics = MaskStatistics(
        keep=_mean_keep(keeps, is_token, memory.region_mask),
        gate=_mean_gate(aligned.attention, is_token),
        penalty=penalty.detach(),
        harm=(perturbed_caption - caption).detach(),
    )
    mask = mask_loss(perturbed_caption, penalty, penalty_weight=penalty_weight)
    return TwoLosses(caption, mask, statistics, is_token.sum(), aligned.penalties)


def _keeps(attention: Sequence[AlignedAttention]) -> list[Tensor]:
    return [layer.keep for layer in attention if layer.keep is not None]


def _count(values: Sequence[Tensor], counted: Tensor) -> Tensor:
    """Count layers times heads times tokens; values: (B, H, ...) each, counted: (B, 1, K * L)."""
    return counted.sum().clamp(min=1) * (len(values) * values[0].shape[1])


@torch.no_grad()
def _mean_keep(keeps: Sequence[Tensor], is_token: Tensor, region_mask: Tensor) -> Tensor:
    """Average over the regions of each token's image, then over tokens.

    So the means of parts of a batch, weighted by tokens, are the mean of the batch.
    """
    counted = is_token.flatten(1)[:, None, :]
    share = counted / region_mask.sum(dim=1).clamp(min=1)[:, None, None]  # (B, 1, K * L)
    dropped = torch.stack([((1 - keep).sum(dim=-1) * share).sum() for keep in keeps]).sum()
    return 1 - dropped / _count(keeps, counted)


@torch.no_grad()
def _mean_gate(attention: Sequence[AlignedAttention], is_token: Tensor) -> Tensor | None:
    gates = [layer.gate for layer in attention if layer.gate is not None]
    if not gates:
        return None
    counted = is_token.flatten(1)[:, None, :]
    total = torch.stack([(gate.squeeze(-1) * counted).sum() for gate in gates]).sum()
    return total / _count(gates, counted)
