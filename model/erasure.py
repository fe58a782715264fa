"""Erasure: the regions that a word depends on, found by removing regions.

Serrano and Smith (2019, arXiv:1906.03731) remove inputs in the order of their attention.
Comprehensiveness and sufficiency are those of DeYoung et al. (2020, arXiv:1911.03429, Eq. 1-3),
with the logarithm of the word's probability and averaged over the number of removed regions.

A region is removed as if it had not been extracted, by `region_mask` or, where regions are a set,
by leaving it out, which is the same: encoder and decoder read the other regions only, and images
of few regions occur in training (not so for the cells of a grid).
Weights set to 0 in the decoder alone would leave what the encoder mixed into other regions. One
region always stays, because attention over none is undefined.

Of a model of `transformers`, the tokens of the image take the place of regions
(`a2cap.model.adapting.removal`); all of them can be removed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from a2cap.model.captioner import CaptionModel, decoder_input
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.faithfulness import kendall_tau
from a2cap.model.threads import map_in_threads

EXACT_REGIONS = 12
"""Most regions of an image for exact Shapley values: 4,095 subsets."""

SIZES = 11
"""Most numbers of removed regions on a curve: all of them, for EXACT_REGIONS."""

TOKEN_SIZES = 5
"""The same for tokens of a model of `transformers`, of which each number is a run for each word."""

SHARES = tuple(number / 10 for number in range(1, 10))
"""Shares of the regions at which curves are stated."""

_LOGITS = 1 << 23
"""Predictions in memory at once, of each thread: 32 MiB of float32."""

_ROWS = 256
"""Most subsets at once, on a CPU; more of them leave its caches."""


def kept_log_probs(
    captioner: CaptionModel,
    features: Tensor,
    boxes: Tensor,
    kept: Tensor,
    caption: Tensor,
    *,
    is_set: bool = False,
) -> Tensor:
    """Compute log p(y_t | y_<t, kept regions) of an image's caption for S subsets of its regions.

    features: (R, F).
    boxes: (R, 5), as for `encode`.
    kept: (S, R) bool, a region or more in each row.
    caption: (L,) int64 without padding.
    is_set: True if no prediction depends on the order of the regions; then subsets of one size are
        encoded together, without the removed regions, which is faster and gives the same.
    Returns (S, L) float.
    """
    on_cpu = kept.device.type == "cpu"
    at_once = max(1, _LOGITS // (len(caption) * captioner.vocabulary_size))
    at_once = min(at_once, _ROWS) if on_cpu else at_once
    sizes = kept.sum(dim=1) if is_set else kept.new_zeros(len(kept), dtype=torch.int64)
    groups = [(sizes == size).nonzero()[:, 0] for size in torch.unique(sizes)]
    tokens = decoder_input(caption[None, None], bos=captioner.special.bos)

    @torch.no_grad()  # here, because each thread has its own mode
    def log_probs_of(rows: Tensor) -> Tensor:
        count, exists = len(rows), kept[rows]
        if is_set:
            index = exists.nonzero()[:, 1].view(count, -1)
            regions = features[index], boxes[index], torch.ones_like(index, dtype=torch.bool)
        else:
            regions = features.expand(count, -1, -1), boxes.expand(count, -1, -1), exists
        log_probs = captioner.forward(captioner.encode(*regions), tokens.expand(count, -1, -1))
        return log_probs[:, 0].gather(-1, caption.expand(count, -1)[..., None])[..., 0]

    parts = [part for group in groups for part in group.split(at_once)]
    # of a captioner that is known: one of a user may keep a state
    is_threaded = on_cpu and is_set
    log_probs = (
        map_in_threads(log_probs_of, parts) if is_threaded else list(map(log_probs_of, parts))
    )
    return torch.cat(log_probs)[torch.cat(groups).argsort()]


def subsets(regions: int) -> Tensor:
    """Return all subsets but the empty one, (2^R - 1, R) bool; row n has the bits of n + 1."""
    return (torch.arange(1, 1 << regions)[:, None] >> torch.arange(regions)) % 2 == 1


def shapley_values(values: Tensor) -> Tensor:
    """Compute the Shapley value of each region exactly (Shapley 1953).

    values: (2^R - 1, L), of `subsets(R)`. Returns (L, R). The value of no region counts as 0;
    another one would add the same constant to all regions, which changes no ranking.
    """
    regions = len(values).bit_length()
    kept = subsets(regions).to(values.device)
    # of the subsets without a region, each size has the same share
    share = [1 / (regions * math.comb(regions - 1, size)) for size in range(regions)] + [0.0]
    shares, sizes = values.new_tensor(share), kept.sum(dim=1)
    weights = torch.where(kept, shares[sizes - 1, None], -shares[sizes, None])
    return values.T @ weights


def first_regions(scores: Tensor, sizes: Tensor) -> Tensor:
    """Return the top-scoring regions, (..., K, R) bool; scores: (..., R); sizes: (K,) int64.

    Of equal scores, the region that comes first counts as higher.
    """
    ranks = scores.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return ranks[..., None, :] < sizes[:, None].to(scores.device)


@dataclass(frozen=True)
class Erasure:
    """Means over words of one order of the regions, in nats; None where undefined.

    comprehensiveness: loss of log-probability without the first regions, higher if the word depends
        on them.
    sufficiency: loss with the first regions alone, lower if they suffice.
    Both are means over the numbers of regions.
    shapley: Kendall's tau with exact Shapley values, over `exact` words of images of at most
        EXACT_REGIONS regions.
    all_removed: loss without any region.
    words: <eos> included, but not the end of a caption of `transformers`.
    deletion, insertion: the loss without the first share of the regions and with it alone, at each
        of `shares`.
    of_images: words, and sums of comprehensiveness and sufficiency over them, of each image.
    """

    order: str
    words: int
    exact: int
    comprehensiveness: float
    sufficiency: float
    shapley: float | None
    all_removed: float | None
    deletion: tuple[float, ...]
    insertion: tuple[float, ...]
    of_images: tuple[tuple[int, float, float], ...]
    shares: tuple[float, ...] = SHARES


KeptLogProbs = Callable[[Tensor], Tensor]
"""Subsets of the regions of an image, (S, R) bool, to the log-probability of each word, (S, L)."""


class ErasureMeter:
    """Measurement of orders of the regions, a random one included, on the first `images` images.

    images: those of one region are left out, as they have nothing to remove. sizes: most numbers of
    removed regions. erased: how many images were measured.
    """

    def __init__(self, *, images: int, sizes: int = SIZES) -> None:
        self._limit, self._sizes = images, sizes
        self._noise = torch.Generator().manual_seed(0)
        self._measured: dict[str, list[Tensor]] = {}
        self.erased = 0

    @property
    def is_full(self) -> bool:
        """Report whether all images are measured."""
        return self.erased == self._limit

    def measure(
        self, log_probs_of: KeptLogProbs, scores: Mapping[str, Tensor], *, empty: bool = False
    ) -> None:
        """Measure an image, unless all are measured or it has one region.

        scores: order -> (L, R), higher first; empty: `log_probs_of` takes a subset of no region.
        """
        words, regions = next(iter(scores.values())).shape
        if self.is_full or regions < 2:
            return
        self.erased += 1
        noise = torch.rand(words, regions, generator=self._noise)
        device = next(iter(scores.values())).device
        scores = {**scores, "random": noise.to(device)}
        steps = torch.linspace(1, regions - 1, min(regions - 1, self._sizes)).round().long()
        first = torch.stack([first_regions(values, steps) for values in scores.values()])
        # (orders, L, K, 2, R) -> (S, R), (orders, L, K, 2)
        kept, index = _distinct(torch.stack((~first, first), dim=-2))
        if empty:
            kept = torch.cat((kept, kept.new_zeros(1, regions)))
        log_probs = log_probs_of(kept).double()
        blind = log_probs[-1:] if empty else log_probs[:0]
        log_probs = log_probs[: len(log_probs) - empty]
        position = torch.arange(words, device=device)[:, None, None]
        losses = log_probs[-1][:, None, None] - log_probs[index, position]
        exact = losses.new_full((len(scores), words), torch.nan)
        if regions <= EXACT_REGIONS:
            shapley = shapley_values(log_probs)  # (S, L) -> (L, R)
            valid = torch.ones_like(shapley, dtype=torch.bool)
            taus = [kendall_tau(values.double(), shapley, valid) for values in scores.values()]
            exact = torch.stack(taus)
        nothing = losses.new_full((len(scores), words), torch.nan)
        if empty:
            nothing[:] = log_probs[-1] - blind[0]
        curves = _curves(losses, steps, regions, nothing)
        parts = (losses.mean(dim=2), exact[..., None], nothing[..., None], curves)
        for name, measured in zip(scores, torch.cat(parts, dim=-1), strict=True):
            self._measured.setdefault(name, []).append(measured.cpu())

    def results(self) -> list[Erasure]:
        """Return the means of each order so far."""
        return [_means(name, parts) for name, parts in self._measured.items()]


def _means(order: str, images: list[Tensor]) -> Erasure:
    """Return the means of an order; images: (L, 4 + 2 * len(SHARES)) of each."""
    words = torch.cat(images)
    exact = int((~words[:, 2].isnan()).sum())
    removed, alone, tau, nothing, *curves = words.nanmean(dim=0).tolist()
    return Erasure(
        order,
        len(words),
        exact,
        removed,
        alone,
        shapley=tau if exact else None,
        all_removed=None if math.isnan(nothing) else nothing,
        deletion=tuple(curves[: len(SHARES)]),
        insertion=tuple(curves[len(SHARES) :]),
        of_images=tuple((len(image), *image[:, :2].sum(dim=0).tolist()) for image in images),
    )


def _curves(losses: Tensor, steps: Tensor, regions: int, nothing: Tensor) -> Tensor:
    """Return the losses of both kinds at SHARES, (..., 2 * len(SHARES)), on the lines between.

    losses: (..., K, 2) at each of (K,) steps.
    nothing: (...), without any region, or NaN.
    Beyond the outermost measured shares, a curve is level.
    """
    whole = torch.zeros_like(nothing)
    ends = torch.stack((torch.stack((whole, nothing), -1), torch.stack((nothing, whole), -1)), -1)
    points = torch.cat((ends[..., :1, :], losses, ends[..., 1:, :]), dim=-2)
    shares = torch.tensor([0, *steps.tolist(), regions], dtype=points.dtype) / regions
    curves = []
    for kind in range(2):
        is_defined = ~points[..., kind].flatten(0, -2).isnan().any(dim=0).cpu()
        weights = _interpolation(shares[is_defined]).to(points.device)
        curves.append(points[..., is_defined.to(points.device), kind] @ weights.to(points.dtype).T)
    return torch.cat(curves, dim=-1)


def _interpolation(shares: Tensor) -> Tensor:
    """Return the weights of values at (P,) ascending shares for those at SHARES, (.., P)."""
    clamped = torch.tensor(SHARES, dtype=shares.dtype).clamp(shares[0], shares[-1])
    high = torch.searchsorted(shares, clamped).clamp(1, len(shares) - 1)
    part = (clamped - shares[high - 1]) / (shares[high] - shares[high - 1])
    weights = torch.zeros(len(clamped), len(shares), dtype=shares.dtype)
    rows = torch.arange(len(clamped))
    weights[rows, high - 1], weights[rows, high] = 1 - part, part
    return weights


def erase_regions(
    meter: ErasureMeter,
    captioner: EncoderDecoder,
    batch: tuple[Tensor, Tensor, Tensor, Tensor],
    scores: Mapping[str, Tensor],
) -> None:
    """Measure the images of a batch of features, boxes, region_mask and captions.

    batch, scores: the arguments and the result of `FaithfulnessMeter.add_captions`.
    """
    features, boxes, region_mask, captions = batch
    is_token = captions != captioner.special.pad
    owners = is_token.nonzero()[:, 0]
    for number, exists in enumerate(region_mask):
        parts = {name: values[owners == number][:, exists] for name, values in scores.items()}
        log_probs_of = partial(
            kept_log_probs,
            captioner,
            features[number, exists],
            boxes[number, exists],
            caption=captions[number][is_token[number]],
            is_set=captioner.regions_are_a_set,
        )
        meter.measure(log_probs_of, parts)


def _distinct(subset_masks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct subsets (S, R) and the position of each wanted one, (..., R) -> (...).

    The last one is that of all regions. With few regions they are all `subsets`, which is faster
    than to find the distinct ones, and what Shapley values need.
    """
    regions = subset_masks.shape[-1]
    if regions <= EXACT_REGIONS:
        bits = 1 << torch.arange(regions, device=subset_masks.device)
        return subsets(regions).to(subset_masks.device), (subset_masks * bits).sum(dim=-1) - 1
    rows = torch.cat((subset_masks.flatten(0, -2), subset_masks.new_ones(1, regions)))
    kept, index = torch.unique(rows, dim=0, return_inverse=True)  # sorted, so that all True is last
    return kept, index[:-1].view(subset_masks.shape[:-1])
