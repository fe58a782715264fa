"""Penalties on attention that rival alignment: supervision by boxes, and Prophet Attention.

Supervision: Liu et al., "Attention Correctness in Neural Image Captioning" (AAAI 2017,
arXiv:1605.09553), the cross-entropy of attention against a distribution over the word's regions. It
needs boxes in training and is an upper bound for what does not.

Prophet Attention: Liu et al. (NeurIPS 2020, arXiv:2210.10914). Attention computed from the word
that is predicted, "ideal" as the word is its input, is the target of the captioner's attention,
whose input is the words before it. Stated by the abstract and reviews of the paper: future words, a
distance between both attentions, training alone. Inferred here, without the paper's equations at
hand: the form for one word (its embedding is the query of a dot product), that the ideal attention
is trained by predicting its word from what it attends to, the L1 distance, and that the distance
moves the captioner's attention alone. The paper's noun phrases (DPA) are left out. Self-critical
training keeps both terms, over the sampled captions: the cross-entropy of their words from the
ideal attention, which reaches the encoder, and the distance. Neither is weighed by the reward.

Both act on the mean of the attention before alignment over layers and heads.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import AlignedAttention, at_least_float32, padding_bias
from a2cap.model.errors import ModelError


def mean_attention(layers: Sequence[AlignedAttention]) -> Tensor:
    """Average attention before alignment over layers and heads, (B, Q, R) float.

    Raises ModelError for a captioner without attention.
    """
    if not layers:
        raise ModelError("captioner has no attention to supervise; set train.supervision to 0")
    return torch.stack([layer.original.mean(dim=1) for layer in layers]).mean(dim=0)


def supervision_penalty(
    layers: Sequence[AlignedAttention], targets: Tensor, tokens: Tensor
) -> Tensor:
    """Return the cross-entropy -sum_i beta_i log alpha_i, summed over words, per token.

    targets: (B, Q, R) float, beta of each word, a distribution over its regions or 0 for a word
    without any; tokens: number of tokens of the batch, the scalar that the loss is divided by.
    """
    # attention may underflow to 0, and 0 log 0 is 0
    tiny = torch.finfo(torch.float32).tiny
    log_attention = mean_attention(layers).clamp(min=tiny).log()
    return -(targets * log_attention).sum() / tokens.clamp(min=1)


class ProphetAttention(nn.Module):
    """Attention by the word that is predicted, which trains that of the captioner.

    width: D of the encoder's states; weight: of the distance.
    """

    names = ("prophet", "prophet_distance")

    def __init__(self, *, width: int, vocabulary_size: int, weight: float):
        super().__init__()
        self.weight = weight
        self.query = nn.Embedding(vocabulary_size, width)
        nn.init.normal_(self.query.weight, std=width**-0.5)
        self.key = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, vocabulary_size)

    def forward(
        self,
        layers: Sequence[AlignedAttention],
        states: Tensor,
        region_mask: Tensor,
        captions: Tensor,
        *,
        pad: int,
    ) -> dict[str, Tensor]:
        """Return both penalties per token.

        states: (B, R, D), of the encoder.
        region_mask: (B, R) bool.
        captions: (B, K, L) int64.
        """
        words = captions.flatten(1)  # -> (B, Q)
        is_token = words != pad
        tokens = is_token.sum().clamp(min=1)
        scores = self.query(words) @ self.key(states).transpose(-1, -2)  # -> (B, Q, R)
        scores = scores / states.shape[-1] ** 0.5
        bias = padding_bias(region_mask, heads=1)[:, 0]
        ideal = (at_least_float32(scores) + bias).softmax(dim=-1)
        attended = ideal.to(states.dtype) @ states  # -> (B, Q, D)
        logits = at_least_float32(self.output(attended)).transpose(1, 2)  # -> (B, V, Q)
        predicted = functional.cross_entropy(logits, words, reduction="none", ignore_index=pad)
        distance = (mean_attention(layers) - ideal.detach()).abs().sum(dim=-1)
        losses = (predicted.sum(), self.weight * (distance * is_token).sum())
        return {name: loss / tokens for name, loss in zip(self.names, losses, strict=True)}
