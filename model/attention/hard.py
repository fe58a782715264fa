"""Hard attention (Xu et al. 2015, section 4.1, arXiv:1502.03044): one region per token, sampled.

The location of a token is drawn from its attention, which therefore learns by REINFORCE. With
lambda_r 1 and lambda_e 0 the estimator is unbiased for the gradient of L_s = sum over s of
p(s | a) log p(y | s, a), whatever the baseline. The authors' code differs: its reward is the mean
over tokens, its lambda_r 0.1, and for half of the batches the location is its expected value.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import AlignedAttention
from a2cap.model.attention.hard_config import HardAttentionConfig

_MOMENTUM = 0.9  # of the moving baseline


class Locations(nn.Module):
    """The region that each query reads: sampled in training, by `decode` otherwise."""

    def __init__(self, config: HardAttentionConfig):
        super().__init__()
        self.decode = config.decode

    def forward(self, weights: Tensor) -> Tensor | None:
        """Return one-hot locations of weights (B, H, Q, R); None reads the expected context."""
        if self.training or self.decode == "sample":
            # the first of exponential clocks rings with probability `weights`; a NaN does not raise
            weights = weights.detach() / torch.empty_like(weights).exponential_()
        elif self.decode == "expectation":
            return None
        one_hot = functional.one_hot(weights.argmax(dim=-1), weights.shape[-1])
        return one_hot.to(weights.dtype)


class LocationLosses(nn.Module):
    """Losses of the attention whose gradients are its terms of the estimator."""

    names = ("reinforce", "entropy")

    def __init__(self, config: HardAttentionConfig):
        super().__init__()
        self.lambda_r, self.lambda_e = config.lambda_r, config.lambda_e
        self.moving: Tensor
        if config.baseline == "moving":
            self.register_buffer("moving", torch.zeros(()))  # nats per token

    def forward(
        self,
        log_probs: Tensor,
        attention: AlignedAttention,
        is_token: Tensor,
        soft_log_probs: Tensor | None,
    ) -> dict[str, Tensor]:
        """Return the losses by name, per token of the batch.

        log_probs: (B, K, L) of the captions under sampled locations.
        attention: of one head over the K * L tokens.
        soft_log_probs: under expected contexts, None for the moving baseline.
        """
        assert attention.locations is not None
        counts, tokens = is_token.sum(dim=-1), is_token.sum().clamp(min=1)
        reward = log_probs.detach().sum(dim=-1)  # (B, K), of whole captions
        if soft_log_probs is not None:
            baseline = soft_log_probs.sum(dim=-1)
        else:
            # the value before this batch: one of its own samples would bias the estimator
            baseline = self.moving * counts
            self.moving.mul_(_MOMENTUM).add_(reward.sum() / tokens, alpha=1 - _MOMENTUM)
        shape = (*is_token.shape, -1)  # (B, K, L, R)
        weights, attended = attention.used.reshape(shape), attention.locations.reshape(shape)
        # the smallest normal number keeps the gradient of a weight of 0 finite
        logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
        location, entropy = ((attended * logs).sum(dim=-1), -(weights * logs).sum(dim=-1))
        score = ((reward - baseline)[..., None] * location * is_token).sum()
        return {
            "reinforce": -self.lambda_r * score / tokens,
            "entropy": -self.lambda_e * (entropy * is_token).sum() / tokens,
        }
