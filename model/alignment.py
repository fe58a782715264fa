"""Attention alignment, Eq. 2-10 of A2 (Fei, AAAI 2022), after Lu et al. (ACL 2021) for translation.

Independent of the Transformer: any attention that yields weights over regions can be aligned. The
equations are pure functions, `Alignment` joins them for one attention layer. Everything here runs
in at least float32, under autocast too: in bfloat16 the mask 1 - sigmoid(6.5) is 0.

Padding receives no weight and enters no sum: attention and average are 0 there, the mask is 1.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from a2cap.model.config import AlignmentConfig
from a2cap.model.errors import ModelError


def perturb(attention: Tensor, keep: Tensor, average: Tensor) -> Tensor:
    """Eq. 3: a masked region loses its own weight and receives the average one.

    attention, keep, average: broadcastable to (B, H, Q, R), float, in [0, 1].
    """
    return keep * attention + (1 - keep) * average


def evidence(attention: Tensor, keep: Tensor) -> Tensor:
    """Eq. 5: the attention, up to e times larger where masking a region would hurt the caption.

    attention, keep: (B, H, Q, R) float in [0, 1]. Returns (B, H, Q, R), rows sum to [1, e].
    """
    return attention * torch.exp(1 - keep)


def fuse_max(attention: Tensor, evidence: Tensor) -> Tensor:
    """Eq. 6; since exp(1 - m) >= 1 this always equals the evidence."""
    return torch.maximum(attention, evidence)


def fuse_moving(attention: Tensor, evidence: Tensor, *, rate: float) -> Tensor:
    """Eq. 7; rate is eta."""
    return attention + rate * evidence


def fuse_decay(
    attention: Tensor, evidence: Tensor, *, schedule_step: Tensor, decay_steps: float
) -> Tensor:
    """Eq. 8: from the attention at step 0 to the evidence; schedule_step is an int64 scalar."""
    weight = torch.exp(-schedule_step.to(attention.dtype) / decay_steps)
    return weight * attention + (1 - weight) * evidence


def fuse_gate(attention: Tensor, evidence: Tensor, *, gate: Tensor) -> Tensor:
    """Eq. 9; gate: broadcastable to (B, H, Q, R), in (0, 1), 1 leaves the attention as it is."""
    return gate * attention + (1 - gate) * evidence


def renormalise(attention: Tensor) -> Tensor:
    """Scales each row (the last axis) to a sum of 1."""
    return attention / attention.sum(dim=-1, keepdim=True)


def uniform_average(region_mask: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """One share of the regions that exist; (B, R) bool -> (B, 1, 1, R), 0 on padding."""
    exists = region_mask[:, None, None, :].to(dtype)
    return exists / exists.sum(dim=-1, keepdim=True)


def head_average(attention: Tensor) -> Tensor:
    """The mean of the heads' attention; (B, H, Q, R) -> (B, 1, Q, R)."""
    return attention.mean(dim=1, keepdim=True)


def widened(values: Tensor) -> Tensor:
    """The values in float32, or as they are where they are already at least as wide."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


class BilinearMask(nn.Module):
    """Eq. 2 as Lu read it: m = sigmoid(q'k' / sqrt(d) + b), own projections of state and region.

    b, one scalar per head, is ours and 0 at the start. Equivariant to the order of the regions.
    """

    def __init__(self, *, hidden_width: int, region_width: int, heads: int, head_width: int):
        super().__init__()
        self.heads = heads
        self.scale = 1 / math.sqrt(head_width)
        self.query = nn.Linear(hidden_width, heads * head_width, bias=False)
        self.key = nn.Linear(region_width, heads * head_width, bias=False)
        self.bias = nn.Parameter(torch.zeros(heads))
        nn.init.xavier_uniform_(self.query.weight)
        nn.init.xavier_uniform_(self.key.weight)

    def project(self, regions: Tensor) -> Tensor:
        """The regions' side of the comparison; (B, R, D) -> (B, H, R, d)."""
        return self._heads(self.key(regions))

    def forward(self, hidden: Tensor, projected: Tensor) -> Tensor:
        """Keep-probabilities; hidden: (B, Q, D), projected: (B, H, R, d). Returns (B, H, Q, R)."""
        query = widened(self._heads(self.query(hidden)))
        with torch.autocast(hidden.device.type, enabled=False):
            logits = (query * self.scale) @ widened(projected).transpose(-1, -2)
            return torch.sigmoid(logits + widened(self.bias)[:, None, None])

    def _heads(self, states: Tensor) -> Tensor:
        batch, length, _ = states.shape
        return states.reshape(batch, length, self.heads, -1).transpose(1, 2)


class LinearMask(nn.Module):
    """Eq. 2 to the letter: m = sigmoid(W_m h + b_m), one output per head and region slot."""

    def __init__(self, *, hidden_width: int, heads: int, slots: int):
        super().__init__()
        self.heads, self.slots = heads, slots
        self.score = nn.Linear(hidden_width, heads * slots)
        nn.init.xavier_uniform_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def project(self, regions: Tensor) -> Tensor:
        """Only the number of regions matters here; (B, R, D) -> (B, 1, R, 0), which counts them."""
        if regions.shape[1] > self.slots:
            raise ModelError(
                f"an image has {regions.shape[1]} regions, the linear mask network has "
                f"{self.slots} slots; raise model.alignment.mask_slots and retrain, or set "
                "model.alignment.mask_network to bilinear"
            )
        return regions[:, None, :, :0].detach()

    def forward(self, hidden: Tensor, projected: Tensor) -> Tensor:
        """Keep-probabilities; hidden: (B, Q, D), projected: of `project`. Returns (B, H, Q, R)."""
        batch, length, _ = hidden.shape
        logits = self.score(hidden).reshape(batch, length, self.heads, -1).transpose(1, 2)
        return torch.sigmoid(widened(logits[..., : projected.shape[2]]))


class Gate(nn.Module):
    """Eq. 10: g = sigmoid(W_g q + b_g), own weights per head (Lu shares them over heads)."""

    def __init__(self, *, heads: int, head_width: int):
        super().__init__()
        bound = math.sqrt(6 / (head_width + 1))
        self.weight = nn.Parameter(torch.empty(heads, head_width, 1).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(heads, 1, 1))

    def forward(self, queries: Tensor) -> Tensor:
        """queries: (B, H, Q, d), projected, before scaling. Returns (B, H, Q, 1) in (0, 1)."""
        with torch.autocast(queries.device.type, enabled=False):
            logits = widened(queries) @ widened(self.weight) + widened(self.bias)
            return torch.sigmoid(logits)


@dataclass(frozen=True)
class AlignedAttention:
    """The attention of one layer: what it was, what it became, and why.

    original, used: (B, H, Q, R); keep: (B, H, Q, R), the mask m, or None in a layer without one;
    gate: (B, H, Q, 1), or None unless the fusion is a gate and the pass is the aligned one.
    """

    original: Tensor
    used: Tensor
    keep: Tensor | None = None
    gate: Tensor | None = None


@dataclass(frozen=True)
class DecoderPass:
    """Which of A2's two passes runs: the aligned one (captions), or the perturbed one (masks).

    schedule_step: int64 scalar, optimiser updates so far; the exponential decay reads it.
    """

    schedule_step: Tensor
    perturbed: bool = False


class Alignment(nn.Module):
    """Mask network, perturbation and fusion of one attention layer.

    hidden_width: of the decoder's state; region_width: of the encoder's output; heads and
    head_width: of the attention that is aligned (one head for an LSTM's attention).
    """

    def __init__(
        self,
        config: AlignmentConfig,
        *,
        hidden_width: int,
        region_width: int,
        heads: int,
        head_width: int,
    ):
        super().__init__()
        self.config = config
        self.mask_network: BilinearMask | LinearMask
        if config.mask_network == "bilinear":
            self.mask_network = BilinearMask(
                hidden_width=hidden_width,
                region_width=region_width,
                heads=heads,
                head_width=head_width,
            )
        else:
            self.mask_network = LinearMask(
                hidden_width=hidden_width, heads=heads, slots=config.mask_slots
            )
        self.gate = Gate(heads=heads, head_width=head_width) if config.fusion == "gate" else None

    def forward(
        self,
        attention: Tensor,
        *,
        queries: Tensor,
        hidden: Tensor,
        projected: Tensor,
        region_mask: Tensor,
        decoder_pass: DecoderPass,
    ) -> AlignedAttention:
        """Aligns the attention, or perturbs it in the perturbed pass.

        attention: (B, H, Q, R) softmax weights, 0 on padding; queries: (B, H, Q, d), projected;
        hidden: (B, Q, D), input of the attention; projected: `mask_network.project(regions)`;
        region_mask: (B, R) bool.
        """
        if self.config.detach_mask and not decoder_pass.perturbed:
            hidden, projected = hidden.detach(), projected.detach()
        keep = self.mask_network(hidden, projected)
        keep = keep.masked_fill(~region_mask[:, None, None, :], 1.0)
        if decoder_pass.perturbed:
            return self._perturbed(attention, keep, region_mask)
        return self._aligned(attention, keep, queries, decoder_pass.schedule_step)

    def _perturbed(self, attention: Tensor, keep: Tensor, region_mask: Tensor) -> AlignedAttention:
        if self.config.average == "uniform":
            average = uniform_average(region_mask, dtype=attention.dtype)
        else:
            average = head_average(attention)
        used = perturb(attention, keep, average)
        if self.config.renormalise_perturbed:
            used = renormalise(used)
        return AlignedAttention(attention, used, keep)

    def _aligned(
        self, attention: Tensor, keep: Tensor, queries: Tensor, schedule_step: Tensor
    ) -> AlignedAttention:
        gate = None if self.gate is None else self.gate(queries)
        used = self._fuse(attention, evidence(attention, keep), gate, schedule_step)
        if self.config.renormalise_aligned:
            used = renormalise(used)
        return AlignedAttention(attention, used, keep, gate)

    def _fuse(
        self, attention: Tensor, evidence: Tensor, gate: Tensor | None, schedule_step: Tensor
    ) -> Tensor:
        if gate is not None:
            return fuse_gate(attention, evidence, gate=gate)
        if self.config.fusion == "max":
            return fuse_max(attention, evidence)
        if self.config.fusion == "moving":
            return fuse_moving(attention, evidence, rate=self.config.moving_rate)
        return fuse_decay(
            attention,
            evidence,
            schedule_step=schedule_step,
            decay_steps=self.config.decay_steps,
        )
