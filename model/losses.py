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
from a2cap.model.captioner import PLAIN, Memory, ScoredCaptions, Teaching
from a2cap.model.captioners.encoder_decoder import EncoderDecoder


@dataclass(frozen=True)
class MaskStatistics:
    """Health of the masks; scalars without gradient, means over tokens.

    keep: mean m of the perturbed pass (healthy between .5 and .98).
    gate: mean g of the aligned pass, None without a gate.
    penalty: of Eq. 4 before lambda.
    harm: L(perturbed) - L(aligned) in nats per token, the cost of masking.
    """

    keep: Tensor
    gate: Tensor | None
    penalty: Tensor
    harm: Tensor


@dataclass(frozen=True)
class TwoLosses:
    """Both losses of a batch.

    caption: nats per token.
    mask, masks: None without masks.
    tokens: int64 scalar, number of tokens, the weight of this batch among others (gradient
        accumulation, ranks).
    penalties: what the captioner adds to its caption loss, by name.
    """

    caption: Tensor
    mask: Tensor | None
    masks: MaskStatistics | None
    tokens: Tensor
    penalties: Mapping[str, Tensor]

    def total(self) -> Tensor:
        """Return the sum, the tensor to call `backward()` on; the masks share no parameter."""
        penalties = [*self.penalties.values(), *([] if self.mask is None else [self.mask])]
        return sum(penalties, self.caption)


def caption_loss(log_probs: Tensor, is_token: Tensor) -> Tensor:
    """Return Eq. 11 in nats per token.

    log_probs: (...) float, of the target tokens; is_token: the same shape, bool, False on padding.
    """
    # a rank may have no token in its part of a batch
    return -(log_probs * is_token).sum() / is_token.sum().clamp(min=1)


def mask_penalty(keeps: Sequence[Tensor], is_token: Tensor) -> Tensor:
    """Return |1 - m|^2 of Eq. 4: sum over regions, mean over layers, heads and tokens.

    keeps: one (B, H, Q, R) per layer, 1 on padding regions; is_token: (B, K, L) bool.
    """
    # padding regions have m = 1 and add nothing
    return _mean((1 - torch.stack(list(keeps))).square().sum(dim=-1), is_token)


def mask_loss(caption_loss: Tensor, penalty: Tensor, *, penalty_weight: float) -> Tensor:
    """Return Eq. 4: the masks maximise the caption loss and pay a penalty for masking.

    caption_loss: of the perturbed pass, nats per token; penalty: of `mask_penalty`.
    """
    return penalty_weight * penalty - caption_loss


def perturbed_pass_loss(
    captioner: EncoderDecoder, memory: Memory, captions: Tensor, *, teaching: Teaching = PLAIN
) -> Tensor:
    """Return Eq. 4 on given captions without running the aligned pass; see `two_losses`."""
    is_token = captions != captioner.special.pad
    perturbed = captioner.score(memory, captions, perturbed=True, teaching=teaching)
    return mask_loss(
        caption_loss(perturbed.log_probs, is_token),
        mask_penalty(_keeps(perturbed.attention), is_token),
        penalty_weight=captioner.config.alignment.penalty_weight,
    )


def two_losses(
    captioner: EncoderDecoder, memory: Memory, captions: Tensor, *, teaching: Teaching = PLAIN
) -> TwoLosses:
    """Compute the caption loss of the aligned pass and the mask loss of the perturbed pass.

    memory: of `captioner.encode`, encoded once for both.
    captions: (B, K, L) int64, tokens, <eos>, padding, without <bos>; a row of padding alone is
        ignored.
    The caption loss gives theta_m no gradient and the mask loss gives theta none.
    """
    is_token = captions != captioner.special.pad
    # the image is encoded once; only the decoder runs twice
    aligned = captioner.score(memory, captions, teaching=teaching)
    perturbed = None
    if captioner.has_masks:
        perturbed = captioner.score(memory, captions, perturbed=True, teaching=teaching)
    return losses_of_passes(
        aligned,
        perturbed,
        is_token,
        region_mask=memory.region_mask,
        penalty_weight=captioner.config.alignment.penalty_weight,
    )


def losses_of_passes(
    aligned: ScoredCaptions,
    perturbed: ScoredCaptions | None,
    is_token: Tensor,
    *,
    region_mask: Tensor,
    penalty_weight: float,
    is_query: Tensor | None = None,
) -> TwoLosses:
    """Compute both losses from captions that were scored in both passes.

    perturbed: None without masks.
    is_token: (B, K, L) bool, False on padding.
    region_mask: (B, R) bool.
    is_query: (B, 1, Q) bool, of the attention's queries where they are not the tokens.
    """
    caption = caption_loss(aligned.log_probs, is_token)
    if perturbed is None:
        return TwoLosses(caption, None, None, is_token.sum(), aligned.penalties)
    is_query = is_token if is_query is None else is_query
    perturbed_caption = caption_loss(perturbed.log_probs, is_token)
    keeps = _keeps(perturbed.attention)
    penalty = mask_penalty(keeps, is_query)
    statistics = MaskStatistics(
        keep=_mean_keep(keeps, is_query, region_mask),
        gate=_mean_gate(aligned.attention, is_query),
        penalty=penalty.detach(),
        harm=(perturbed_caption - caption).detach(),
    )
    mask = mask_loss(perturbed_caption, penalty, penalty_weight=penalty_weight)
    return TwoLosses(caption, mask, statistics, is_token.sum(), aligned.penalties)


def _keeps(attention: Sequence[AlignedAttention]) -> list[Tensor]:
    return [layer.keep for layer in attention if layer.keep is not None]


def _mean(values: Tensor, is_token: Tensor, weights: Tensor | None = None) -> Tensor:
    """Average over layers, heads and tokens.

    values: (layers, B, H, Q); is_token: (B, K, L) bool; weights: (B, 1, Q) of each token, 0 on
    padding, 1 by default.
    """
    counted = is_token.flatten(1)[:, None, :]  # -> (B, 1, Q)
    sums = (values * (counted if weights is None else weights)).flatten(1).sum(dim=1)
    return sums.sum() / (counted.sum().clamp(min=1) * (values.shape[0] * values.shape[2]))


@torch.no_grad()
def _mean_keep(keeps: Sequence[Tensor], is_token: Tensor, region_mask: Tensor) -> Tensor:
    """Average over the regions of each token's image, then over tokens.

    So the means of parts of a batch, weighted by tokens, are the mean of the batch.
    """
    regions = region_mask.sum(dim=1).clamp(min=1)[:, None, None]
    share = is_token.flatten(1)[:, None, :] / regions  # (B, 1, Q)
    return 1 - _mean((1 - torch.stack(list(keeps))).sum(dim=-1), is_token, share)


@torch.no_grad()
def _mean_gate(attention: Sequence[AlignedAttention], is_token: Tensor) -> Tensor | None:
    gates = [layer.gate for layer in attention if layer.gate is not None]
    return _mean(torch.stack(gates).squeeze(-1), is_token) if gates else None
