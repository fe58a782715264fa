"""Faithfulness of attention to gradient importance (A2, analysis section, Fig. 2, 5 and 6).

Gradient importance is |grad_{h_i} p(y_t | y_<t, x)|_2 on the encoder's output h_i. Kendall's tau
compares its ranking of the regions with those of a layer's attention and masks, token by token. The
Jensen-Shannon divergence (Eq. 13) measures how far alignment moves the attention.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from a2cap.model.alignment import AlignedAttention, Alignment, renormalise
from a2cap.model.captioner import CaptionModel, Memory, decoder_input, trace_attention
from a2cap.model.errors import ModelError

_PAIRS = 1 << 24
"""Pairs of regions in memory at once."""


def kendall_tau(first: Tensor, second: Tensor, valid: Tensor) -> Tensor:
    """Compute Kendall's tau-b of two rankings: concordant minus discordant pairs, tie-corrected.

    first, second: (N, R) float; valid: (N, R) bool, True where a value counts. Returns (N,) float64
    in [-1, 1], NaN where all values of one side are equal.
    """
    rows = max(1, _PAIRS // first.shape[1] ** 2)
    if len(first) > rows:
        parts = [slice(start, start + rows) for start in range(0, len(first), rows)]
        return torch.cat([kendall_tau(first[p], second[p], valid[p]) for p in parts])
    pairs = (valid[:, :, None] & valid[:, None, :]).float()  # -> (N, R, R), each pair twice
    signs, other_signs = (
        (values[:, :, None] - values[:, None, :]).sign().float() * pairs
        for values in (first, second)
    )
    agreement = (signs * other_signs).sum(dim=(1, 2)).double()
    untied = signs.abs().sum(dim=(1, 2)).double() * other_signs.abs().sum(dim=(1, 2)).double()
    return agreement / untied.sqrt()


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence of two distributions (Eq. 13), nats in [0, log 2].

    first, second: (..., R) float, rows sum to 1. Returns (...) float64.
    """
    # a difference of entropies would drown small divergences in rounding
    first, second = first.double(), second.double()
    mean = (first + second) / 2
    return (_relative_entropy(first, mean) + _relative_entropy(second, mean)) / 2


def _relative_entropy(values: Tensor, reference: Tensor) -> Tensor:
    ratio = torch.where(values > 0, values / reference, 1.0)
    return (values * ratio.log()).sum(dim=-1)


@contextmanager
def differentiable_masks(captioner: CaptionModel | nn.Module) -> Iterator[None]:
    """Let gradients pass through the masks of the aligned pass, despite `detach_mask`.

    Training may detach the masks; the exact derivative of p(y_t | x) must not.
    """
    modules = captioner.modules() if isinstance(captioner, nn.Module) else ()
    configs = {module: module.config for module in modules if isinstance(module, Alignment)}
    for alignment, config in configs.items():
        alignment.config = config.model_copy(update={"detach_mask": False})
    try:
        yield
    finally:
        for alignment, config in configs.items():
            alignment.config = config


@dataclass(frozen=True)
class RegionGradients:
    """Gradients of p(y_t | y_<t, x) per token and region of one caption per image, (B, L, R).

    Of a model of `transformers`, the regions are the tokens of the image, and there is one image.

    importance: |grad_{h_i} p|_2 on the encoder's output h_i; product: h_i' grad_{h_i} p, "gradient
    x input" (Shrikumar et al. 2016, arXiv:1605.01713), which ranks regions as the gradient of log p
    does. On the features, whose scale LayerNorm removes after their projection, it ranked regions
    of scenes no better than at random. Both are 0 on padding regions.
    """

    importance: Tensor
    product: Tensor


def region_gradients(
    captioner: CaptionModel, features: Tensor, boxes: Tensor, region_mask: Tensor, captions: Tensor
) -> RegionGradients:
    """Compute the gradients of the probability of each token of one caption per image.

    features, boxes, region_mask: as for `encode`.
    captions: (B, L) int64, tokens, <eos>, padding.
    """
    with torch.enable_grad(), differentiable_masks(captioner):
        # the encoder of recurrent captioners has no parameter that would start a graph
        memory = captioner.encode(features.detach().requires_grad_(), boxes, region_mask)
        tokens = decoder_input(captions, bos=captioner.special.bos)
        log_probs = captioner.forward(memory, tokens[:, None])[:, 0]  # -> (B, L, V)
        probabilities = log_probs.gather(-1, captions[..., None])[..., 0].exp()
        return gradients_of(probabilities, memory.states)


def gradients_of(probabilities: Tensor, states: Tensor) -> RegionGradients:
    """Compute the gradients of probabilities (B, L) with respect to the states (B, R, D)."""
    importance, product = [], []
    # images are independent, so that one backward pass of their sum serves all
    for step in probabilities.unbind(dim=1):
        [gradient] = torch.autograd.grad(step.sum(), states, retain_graph=True)
        importance.append(gradient.norm(dim=-1))
        product.append((gradient * states.detach()).sum(dim=-1))
    return RegionGradients(torch.stack(importance, dim=1), torch.stack(product, dim=1))


@dataclass(frozen=True)
class LayerFaithfulness:
    """Means over the tokens of all captions of one decoder layer; None where undefined.

    layer: 1 is the lowest.
    words: number of tokens, <eos> included.
    attention, aligned, evidence: Kendall's tau of alpha, alpha^a and 1 - m, averaged over heads,
        with gradient importance.
    divergence: JSD(alpha, alpha^a) in nats, alpha^a renormalised, per head.
    keep, gate: means of m and g.
    constant: tokens with equal 1 - m for all regions.
    """

    layer: int
    words: int
    attention: float | None
    aligned: float | None
    evidence: float | None
    divergence: float | None
    keep: float | None
    gate: float | None
    constant: int


class _LayerMeans:
    """Running means of one layer, by field of `LayerFaithfulness`, without NaN."""

    def __init__(self) -> None:
        self.words = self.constant = 0
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()

    def add(self, weights: AlignedAttention, importance: Tensor, region_mask: Tensor) -> None:
        """Add N tokens; weights: (N, H, R) each; importance, region_mask: (N, R)."""
        self.words += len(importance)
        values = {"attention": kendall_tau(weights.original.mean(1), importance, region_mask)}
        if weights.keep is not None:
            values["aligned"] = kendall_tau(weights.used.mean(1), importance, region_mask)
            # 1 - mean(m) would be 0 where heads differ by less than float32 resolves near 1
            dropped = (1 - weights.keep.double()).mean(1)
            values["evidence"] = kendall_tau(dropped, importance.double(), region_mask)
            values["divergence"] = _divergence(weights)
            values["keep"] = weights.keep.mean(1)[region_mask]
            self.constant += int(values["evidence"].isnan().sum())
        if weights.gate is not None:
            values["gate"] = weights.gate
        for name, tensor in values.items():
            defined = tensor[~tensor.isnan()].double()
            self._totals[name] += defined.sum().item()
            self._counts[name] += len(defined)

    def means(self) -> dict[str, float | None]:
        """Return the mean of each field, None where no value is defined."""
        names = ("attention", "aligned", "evidence", "divergence", "keep", "gate")
        counts = {name: self._counts[name] for name in names}
        return {
            name: self._totals[name] / count if count else None for name, count in counts.items()
        }


def divergence_by_layer(captioner: CaptionModel, memory: Memory, captions: Tensor) -> list[float]:
    """Return the mean JSD(alpha, alpha^a) in nats over all tokens per layer, lowest layer first.

    captions: (B, L) int64, tokens, <eos>, padding. 0 for a layer that is not aligned.
    """
    return [
        0.0 if weights.keep is None else _divergence(weights).mean().item()
        for weights in _trace_layers(captioner, memory, captions)
    ]


def _divergence(weights: AlignedAttention) -> Tensor:
    """Compute the divergence of each token and head, (N, H) float64."""
    return jensen_shannon(weights.original, renormalise(weights.used))


class FaithfulnessMeter:
    """Measurement of one captioner over batches of images with one caption each."""

    def __init__(self) -> None:
        self._layers: list[_LayerMeans] = []

    def add_captions(
        self,
        captioner: CaptionModel,
        features: Tensor,
        boxes: Tensor,
        region_mask: Tensor,
        captions: Tensor,
    ) -> dict[str, Tensor]:
        """Measure a batch, and return what orders its regions: name -> (T, R), image by image.

        Arguments as for `region_gradients`. T: the tokens of all images. The orders are those of
        `region_orders` and the gradient times its input.
        """
        gradients = region_gradients(captioner, features, boxes, region_mask, captions)
        with torch.no_grad():
            memory = captioner.encode(features, boxes, region_mask)
        layers = _trace_layers(captioner, memory, captions)
        is_token = captions != captioner.special.pad
        self.add(layers, gradients.importance[is_token], region_mask[is_token.nonzero()[:, 0]])
        return {**region_orders(layers), "gradient": gradients.product[is_token]}

    def add(
        self, layers: Sequence[AlignedAttention], importance: Tensor, region_mask: Tensor
    ) -> None:
        """Measure T tokens; layers: (T, H, R) of each; importance, region_mask: (T, R)."""
        self._layers = self._layers or [_LayerMeans() for _ in layers]
        for means, weights in zip(self._layers, layers, strict=True):
            means.add(weights, importance, region_mask)

    def layers(self) -> list[LayerFaithfulness]:
        """Return the means of all batches so far, the lowest layer first."""
        return [
            LayerFaithfulness(number, words=sums.words, constant=sums.constant, **sums.means())
            for number, sums in enumerate(self._layers, start=1)
        ]


def region_orders(layers: Sequence[AlignedAttention]) -> dict[str, Tensor]:
    """Return what orders the regions at each of T tokens, name -> (T, R), higher first.

    layers: (T, H, R) of each. The attention, the aligned attention and the evidence 1 - m are
    averaged over heads and layers, the evidence over the layers with masks. Without masks, the
    latter two are left out.
    """
    orders = {"attention": _over_layers([layer.original for layer in layers])}
    keeps = [1 - layer.keep.double() for layer in layers if layer.keep is not None]
    if keeps:
        orders["aligned"] = _over_layers([layer.used for layer in layers])
        orders["evidence"] = _over_layers(keeps)
    return orders


def _over_layers(layers: list[Tensor]) -> Tensor:
    """Average (T, H, R) of each layer over heads and layers."""
    return torch.stack([layer.mean(dim=1) for layer in layers]).mean(dim=0)  # -> (T, R)


def _trace_layers(
    captioner: CaptionModel, memory: Memory, captions: Tensor
) -> list[AlignedAttention]:
    """Return the attention of each layer at all tokens, (N, H, R), image by image."""
    steps = trace_attention(captioner, memory, captions)
    if not steps:
        raise ModelError(
            "captioner has no attention over regions: nothing to measure; name one that attends"
        )
    is_token = captions != captioner.special.pad
    layers = zip(*(step.layers for step in steps), strict=True)
    joined = (AlignedAttention.stacked(of_layer, dim=1) for of_layer in layers)
    return [layer.each(lambda values: values[is_token]) for layer in joined]
