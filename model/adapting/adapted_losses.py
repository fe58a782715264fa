"""Both losses of A2 for a captioner of `transformers`: its aligned and its perturbed pass."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutput

from a2cap.model.adapting.adapted_attention import recording
from a2cap.model.adapting.adapted_layers import AdaptedLayers
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.attention.wrapped import alignment_pass
from a2cap.model.captioner import ScoredCaptions
from a2cap.model.errors import ModelError
from a2cap.model.losses import TwoLosses, losses_of_passes

_NO_TOKEN = -100
"""Label where there is no token, as in all losses of `transformers`."""


def adapted_losses(
    model: Any, layers: AdaptedLayers, config: AlignmentConfig, batch: Mapping[str, Any], step: int
) -> TwoLosses:
    """Compute the caption loss (Eq. 11) and the mask loss (Eq. 4) of a batch.

    batch: arguments of the model's `forward` with `labels`, (B, L) int64.
    step: optimiser updates so far.
    Raises ModelError for a batch without labels, and with gradient checkpointing.
    """
    if batch.get("labels") is None:
        raise ModelError("no labels to learn from; give labels=, as to the model's forward")
    if model.is_activation_checkpointing:
        raise ModelError(
            "gradient checkpointing is on, which computes a pass again after its end; turn it off"
        )
    for module in model.modules():
        if hasattr(module, "schedule_step"):
            module.schedule_step.fill_(step)
    targets = _targets(model.config, batch["labels"])
    is_token = (targets != _NO_TOKEN)[:, None]
    aligned, region_mask, encoded = _score(model, layers, batch, targets, step=step)
    perturbed, is_query = None, is_token
    if config.fusion != "none":
        if encoded is not None and "encoder_outputs" in inspect.signature(model.forward).parameters:
            # the image is encoded once; only the decoder runs twice
            batch = {**batch, "encoder_outputs": BaseModelOutput(encoded.detach())}
        perturbed, _, _ = _score(model, layers, batch, targets, step=step, perturbed=True)
        queries = max(a.original.shape[2] for a in perturbed.attention if a.keep is not None)
        if layers.words:  # the queries are a Q-Former's, not the tokens
            is_query = is_token.new_ones(len(is_token), 1, queries)
        else:  # the tokens after the image, GIT's last token of the image among them
            is_query = functional.pad(is_token, (queries - is_token.shape[-1], 0))
    return losses_of_passes(
        aligned,
        perturbed,
        is_token,
        region_mask=region_mask,
        penalty_weight=config.penalty_weight,
        is_query=is_query,
    )


def _score(
    model: Any,
    layers: AdaptedLayers,
    batch: Mapping[str, Any],
    targets: Tensor,
    *,
    step: int,
    perturbed: bool = False,
) -> tuple[ScoredCaptions, Tensor, Tensor | None]:
    """Run one pass; returns also the region mask, and the encoder's output if it is known."""
    with alignment_pass(model, step, perturbed=perturbed), recording() as recorded:
        output = model(**batch)
        log_probs = output.logits[:, -targets.shape[1] :].float().log_softmax(dim=-1)
    token_log_probs = log_probs.gather(-1, targets[..., None].clamp(min=0)).squeeze(-1)
    attention = tuple(recorded.layers[layer][0] for layer in layers.images)
    exists = recorded.region_mask
    if exists is None:
        exists = torch.ones_like(attention[0].original[:, 0, 0], dtype=torch.bool)
    scored = ScoredCaptions(token_log_probs[:, None], attention)
    return scored, exists, getattr(output, "encoder_last_hidden_state", None)


def _targets(config: Any, labels: Tensor) -> Tensor:
    """Return (B, L), the token that each position predicts."""
    alone = getattr(config, "use_decoder_only_language_model", True)
    if config.is_encoder_decoder or not alone:
        return labels
    # a decoder alone reads its labels and predicts the next one
    return functional.pad(labels[:, 1:], (0, 1), value=_NO_TOKEN)
