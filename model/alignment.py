"""Attention alignment, Eq. 2-10 of A2 (Fei, AAAI 2022), after Lu et al. (ACL 2021) for translation.

Any attention that yields weights over regions can be aligned. The equations are pure functions;
`Alignment` applies them to one attention layer. On padding regions attention and average are 0 and
the mask is 1. All computations are at least float32, under autocast too.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from a2cap.model.alignment_config import FUSIONS, AlignmentConfig, FusionInputs, interpolate
from a2cap.model.errors import ModelError


def perturb(attention: Tensor, keep: Tensor, average: Tensor) -> Tensor:
    """Replace the weight of masked regions by the average weight (Eq. 3).

    attention, keep, average: broadcastable to (B, H, Q, R), float, in [0, 1].
    """
    # a row need not sum to 1: its regions may be masked differently
    return interpolate(attention, average, keep)


def evidence(attention: Tensor, keep: Tensor) -> Tensor:
    """Scale the attention by exp(1 - m), up to e where masking a region hurts the caption (Eq. 5).

    attention, keep: (B, H, Q, R) float in [0, 1]. Returns (B, H, Q, R), rows sum to [1, e].
    """
    return attention * torch.exp(1 - keep)


def renormalise(attention: Tensor) -> Tensor:
    """Scale each row (the last axis) to a sum of 1; rows of zeros stay."""
    sums = attention.sum(dim=-1, keepdim=True)
    return attention / sums.clamp(min=torch.finfo(sums.dtype).tiny)


def uniform_average(region_mask: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return equal weights for existing regions; (B, R) bool -> (B, 1, 1, R), 0 on padding."""
    exists = region_mask[:, None, None, :].to(dtype)
    return exists / exists.sum(dim=-1, keepdim=True)


def padding_bias(region_mask: Tensor, *, heads: int = 1) -> Tensor:
    """Return a summand of scores: 0, -inf where no region exists; (B, R) -> (B, H, 1, R)."""
    # the logarithms of 1 and of 0
    return region_mask[:, None, None, :].expand(-1, heads, -1, -1).float().log()


def scaled_product(queries: Tensor, keys: Tensor, *, scale: float, bias: Tensor) -> Tensor:
    """Return scale * q'k + bias, (B, H, Q, R), in one kernel.

    queries: (B or 1, H, Q, d).
    keys: (B, H, R, d).
    bias: (B, 1 or H, 1 or Q, R).
    """
    batch, heads = keys.shape[:2]
    bias = bias.to(queries.dtype).expand(-1, heads, -1, -1).flatten(0, 1)  # -> (B * H, 1 or Q, R)
    columns = keys.transpose(-1, -2).flatten(0, 1)  # (B, H, R, d) -> (B * H, d, R)
    rows = queries.expand(batch, -1, -1, -1).flatten(0, 1)  # -> (B * H, Q, d)
    scores = torch.baddbmm(bias, rows, columns, alpha=scale)
    return scores.view(batch, heads, *scores.shape[1:])  # -> (B, H, Q, R)


def softmax_of_rows(scores: Tensor) -> Tensor:
    """Return softmax weights over the last axis, at least float32."""
    scores = at_least_float32(scores)
    if scores.shape[-1] >= 16 or torch.is_grad_enabled() or scores.device.type != "cpu":
        return scores.softmax(dim=-1)
    # torch's kernel computes rows of less than 16 numbers one number at a time, 5 times slower
    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp_()
    return powers.div_(powers.sum(dim=-1, keepdim=True))


def head_average(attention: Tensor) -> Tensor:
    """Average the attention over heads; (B, H, Q, R) -> (B, 1, Q, R)."""
    return attention.mean(dim=1, keepdim=True)


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half-precision values to float32."""
    # in bfloat16 the mask 1 - sigmoid(6.5) is 0
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


class BilinearMask(nn.Module):
    """Mask network of Lu's reading of Eq. 2: m = sigmoid(q'k' / sqrt(d) + b), projected for itself.

    Equivariant to the order of the regions.
    """

    def __init__(self, *, hidden_width: int, region_width: int, heads: int, head_width: int):
        super().__init__()
        self.heads = heads
        self.scale = 1 / math.sqrt(head_width)
        self.query = nn.Linear(hidden_width, heads * head_width, bias=False)
        self.key = nn.Linear(region_width, heads * head_width, bias=False)
        # neither paper has b; one scalar per head lets masks open or close as a whole
        self.bias = nn.Parameter(torch.zeros(heads))
        nn.init.xavier_uniform_(self.query.weight)
        nn.init.xavier_uniform_(self.key.weight)

    def project(self, regions: Tensor) -> Tensor:
        """Project the regions to keys, at least float32; (B, R, D) -> (B, H, R, d)."""
        keys: Tensor = self.key(regions).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        # here, because each step of decoding would convert them again
        return at_least_float32(keys).contiguous()

    def forward(self, hidden: Tensor, keys: Tensor, padding: Tensor) -> Tensor:
        """Return keep probabilities m (B, H, Q, R), 1 on padding.

        hidden: (B or 1, Q, D).
        keys: (B, H, R, d).
        padding: (B, 1 or H, 1, R), of `padding_bias`.
        """
        # (B, Q, D) -> (B, H, Q, d)
        query = at_least_float32(self.query(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2))
        with torch.autocast(hidden.device.type, enabled=False):
            bias = at_least_float32(self.bias)[:, None, None] - padding
            logits = scaled_product(query, keys, scale=self.scale, bias=bias)
        return logits.sigmoid()


class LinearMask(nn.Module):
    """Mask network of Eq. 2 to the letter: m = sigmoid(W_m h + b_m), per head and region slot."""

    def __init__(self, *, hidden_width: int, heads: int, slots: int):
        super().__init__()
        self.heads, self.slots = heads, slots
        self.score = nn.Linear(hidden_width, heads * slots)
        nn.init.xavier_uniform_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def project(self, regions: Tensor) -> Tensor:
        """Return an empty tensor that carries the number of regions; (B, R, D) -> (B, 1, R, 0).

        Raises ModelError for more regions than slots.
        """
        if regions.shape[1] > self.slots:
            raise ModelError(
                f"an image has {regions.shape[1]} regions, the linear mask network has "
                f"{self.slots} slots; raise model.alignment.mask_slots and retrain, or set "
                "model.alignment.mask_network to bilinear"
            )
        # this mask depends on the state alone; only the number of regions is needed
        return regions[:, None, :, :0].detach()

    def forward(self, hidden: Tensor, keys: Tensor, padding: Tensor) -> Tensor:
        """Return keep probabilities m (B, H, Q, R), 1 on padding; keys: of `project`."""
        batch, length, _ = hidden.shape
        # (B, Q, D) -> (B, H, Q, slots)
        logits = self.score(hidden).reshape(batch, length, self.heads, -1).transpose(1, 2)
        return torch.sigmoid(at_least_float32(logits[..., : keys.shape[2]]) - padding)


class Gate(nn.Module):
    """Gate of Eq. 10: g = sigmoid(W_g q + b_g), with weights per head (Lu shares them)."""

    def __init__(self, *, heads: int, head_width: int):
        super().__init__()
        # Xavier's range of a layer with one output
        bound = math.sqrt(6 / (head_width + 1))
        self.weight = nn.Parameter(torch.empty(heads, head_width, 1).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(heads, 1, 1))

    def forward(self, queries: Tensor) -> Tensor:
        """Return gates (B, H, Q, 1) in (0, 1); queries: (B, H, Q, d), projected, before scaling."""
        # projected queries have this order in memory, so that nothing is copied
        by_head = at_least_float32(queries).transpose(0, 1)  # -> (H, B, Q, d)
        with torch.autocast(queries.device.type, enabled=False):
            weight, bias = at_least_float32(self.weight), at_least_float32(self.bias)
            gates = torch.baddbmm(bias, by_head.flatten(1, 2), weight).sigmoid()  # (H, B * Q, 1)
        return gates.view(*by_head.shape[:3], 1).transpose(0, 1)  # -> (B, H, Q, 1)


@dataclass(frozen=True)
class AlignedAttention:
    """Attention of one layer before and after alignment.

    original, used: (B, H, Q, R), softmax weights and the weights applied.
    keep: (B, H, Q, R), the mask m, None in a layer without one.
    gate: (B, H, Q, 1), None unless the aligned pass fuses by a gate.
    locations: (B, H, Q, R), one-hot locations of hard attention, None of an expected context.
    """

    original: Tensor
    used: Tensor
    keep: Tensor | None = None
    gate: Tensor | None = None
    locations: Tensor | None = None

    @classmethod
    def stacked(cls, attentions: Sequence["AlignedAttention"], *, dim: int) -> "AlignedAttention":
        """Stack attentions with the same fields along a new axis."""
        names = [name for name, values in vars(attentions[0]).items() if values is not None]
        stacked = {
            name: torch.stack([getattr(layer, name) for layer in attentions], dim) for name in names
        }
        return cls(**stacked)

    def each(self, change: Callable[[Tensor], Tensor]) -> "AlignedAttention":
        """Apply a function to every tensor."""
        present = {name: values for name, values in vars(self).items() if values is not None}
        return AlignedAttention(**{name: change(values) for name, values in present.items()})


@dataclass(frozen=True)
class DecoderPass:
    """One of A2's two passes: the aligned one trains the captioner, the perturbed one the masks.

    schedule_step: int64 scalar, optimiser updates so far, for the exponential decay (Eq. 8);
    expected: True if hard attention reads the expected context, as it does in the perturbed pass;
    dropout: rate at which weights over regions are dropped after alignment, 0 out of training;
    bias, uniform: (B, H, 1, R) and (B, 1, 1, R) float, for all layers: of `padding_bias`, and the
    uniform average of the perturbed pass; None to derive them in each layer.
    """

    schedule_step: Tensor
    perturbed: bool = False
    expected: bool = False
    dropout: float = 0.0
    bias: Tensor | None = None
    uniform: Tensor | None = None

    def padding(self, region_mask: Tensor) -> Tensor:
        """Return the summand of scores, (B, 1 or H, 1, R), -inf where no region exists."""
        return padding_bias(region_mask) if self.bias is None else self.bias


@dataclass(frozen=True)
class RegionProjection:
    """Regions as one cross-attention reads them, projected once for all K captions of an image.

    keys, values: (B, H, R, d).
    region_mask: (B, R) bool, True where a region exists.
    mask_keys: projection for the mask network, None without one.
    """

    keys: Tensor
    values: Tensor
    region_mask: Tensor
    mask_keys: Tensor | None

    def select(self, images: Tensor) -> "RegionProjection":
        """Return those of some images; images: int64, positions in the batch."""
        mask_keys = None if self.mask_keys is None else self.mask_keys[images]
        mask = self.region_mask[images]
        return RegionProjection(self.keys[images], self.values[images], mask, mask_keys)


class Alignment(nn.Module):
    """Mask network, perturbation and fusion of one attention layer.

    hidden_width: width of the decoder's state.
    region_width: width of the encoder's output.
    heads, head_width: of the attention to align (one head for an LSTM's attention).
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
            widths = {"region_width": region_width, "head_width": head_width}
            self.mask_network = BilinearMask(hidden_width=hidden_width, heads=heads, **widths)
        else:
            slots = config.mask_slots
            self.mask_network = LinearMask(hidden_width=hidden_width, heads=heads, slots=slots)
        self.fusion = FUSIONS[config.fusion]
        is_learned = self.fusion.learned
        self.gate = Gate(heads=heads, head_width=head_width) if is_learned else None

    def forward(
        self,
        attention: Tensor,
        *,
        queries: Tensor,
        hidden: Tensor,
        mask_keys: Tensor,
        region_mask: Tensor,
        decoder_pass: DecoderPass,
    ) -> AlignedAttention:
        """Align the attention (Eq. 5-10), or perturb it in the perturbed pass (Eq. 3).

        attention: (B, H, Q, R) softmax weights, 0 on padding.
        queries: (B or 1, H, Q, d), projected.
        hidden: (B or 1, Q, D), input of the attention.
        mask_keys: `mask_network.project(regions)`.
        region_mask: (B, R) bool.
        """
        config = self.config
        # Lu lets the caption loss reach the state and the regions through the mask
        if config.detach_mask and not decoder_pass.perturbed:
            hidden, mask_keys = hidden.detach(), mask_keys.detach()
        # on padding 1, which adds nothing to the penalty; attention and average are 0 there already
        keep = self.mask_network(hidden, mask_keys, decoder_pass.padding(region_mask))
        gate: Tensor | None = None
        if decoder_pass.perturbed:
            # "an average vector of attention heads" (Eq. 3) leaves open what is averaged
            average = decoder_pass.uniform
            if config.average == "heads":
                average = head_average(attention)
            elif average is None:
                average = uniform_average(region_mask, dtype=attention.dtype)
            used = perturb(attention, keep, average)
            is_renormalised = config.renormalise_perturbed
        else:
            if self.gate is not None:
                gate = self.gate(queries).expand(len(attention), -1, -1, -1)
            assert self.fusion.fuse is not None  # a layer without fusion has no alignment
            inputs = FusionInputs(config, decoder_pass.schedule_step, gate)
            used = self.fusion.fuse(attention, evidence(attention, keep), inputs)
            is_renormalised = config.renormalise_aligned
        used = renormalise(used) if is_renormalised else used
        return AlignedAttention(attention, used, keep, gate)


def mask_parameters(network: nn.Module) -> Iterator[nn.Parameter]:
    """Yield theta_m, the parameters of the mask networks of a captioner."""
    for module in network.modules():
        if isinstance(module, Alignment):
            yield from module.mask_network.parameters()


def caption_parameters(network: nn.Module) -> Iterator[nn.Parameter]:
    """Yield theta, all other parameters of a captioner."""
    masks = {id(parameter) for parameter in mask_parameters(network)}
    yield from (parameter for parameter in network.parameters() if id(parameter) not in masks)
