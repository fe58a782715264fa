"""What an encoder is trained to predict from the cells of its map: words, or captions."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from a2cap.data.batches.collate import EXACT, token_positions
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import PAD, SPECIALS, Vocabulary
from a2cap.data.errors import InputError
from a2cap.data.files.tensors import skip_init
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.grid import grid_parameters, grid_width
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioner import Teaching
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.losses import two_losses
from a2cap.pipeline.training.encoder.encoder_config import EncoderConfig

_EVERYWHERE = 0.5
"""Share of the images above which a word names nothing that an image shows, such as "a"."""
_SMOOTHING = 0.1
DECODER = TransformerConfig(
    width=256,
    heads=8,
    feed_forward=1024,
    encoder_layers=1,
    decoder_layers=2,
    norm="pre",
    dropout=0.0,  # between the layers, where it costs captions (docs/flickr8k.md)
    feature_dropout=0.1,
    attention_dropout=0.1,
    alignment=AlignmentConfig(fusion="none"),
)


class WordObjective(nn.Module):
    """A layer on the mean of the cells, or on each of them, that predicts the words of captions.

    Its target is the share of an image's captions that have a word (Fang et al. 2015,
    arXiv:1411.4952, section 3, with shares in place of 0 and 1).

    width: C, of the cells. ids: (W,) int64, tokens that are predicted. shares: (W,) float32, mean
    targets over the training images.
    """

    unit = "images"
    rate = 1.0

    def __init__(self, width: int, ids: Tensor, shares: Tensor, config: EncoderConfig) -> None:
        super().__init__()
        self.register_buffer("ids", ids)
        self.ids: Tensor
        self._ids = ids  # stays on the CPU
        self._pools_first = config.pooling == "mean"
        self._dropout = config.dropout
        self.layer = nn.Linear(width, len(ids))
        nn.init.zeros_(self.layer.weight)
        with torch.no_grad():
            self.layer.bias.copy_(torch.logit(shares.clamp(1e-4, 1 - 1e-4)))

    def forward(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Return log probabilities that each word is there and that it is not, (B, W) each.

        cells: (B, N, C). Noisy-or: it is not there if no cell has it (Fang et al. 2015, Eq. 1).
        """
        if self._pools_first:
            cells = cells.mean(dim=1, keepdim=True)
        states = F.layer_norm(cells, cells.shape[-1:])  # networks differ in scale
        logits = self.layer(F.dropout(states, self._dropout, self.training)).float()
        absent = F.logsigmoid(-logits).sum(dim=1)  # (B, N, W) -> (B, W)
        return torch.log(-torch.expm1(absent.clamp(max=-1e-7))), absent

    def loss(self, cells: Tensor, tokens: Tensor) -> Tensor:
        """Return the cross-entropy summed over words, mean over images. tokens: (B, K, L) int64."""
        present, absent = self(cells)
        shares = word_shares(tokens, self._ids).to(cells.device, non_blocking=True)
        losses: Tensor = -(shares * present + (1 - shares) * absent).sum(dim=1)
        return losses.mean()

    def count(self, tokens: Tensor) -> int:
        """Return the units of a part, images, over which the loss is a mean."""
        return len(tokens)

    def judge(self, cells: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log probability of each word, and where a caption has it, (B, W) each."""
        return self(cells)[0], word_shares(tokens, self._ids) > 0

    def figure(self, judged: Sequence[tuple[Tensor, Tensor]]) -> float:
        """Return the mean average precision over the words of what `judge` returned."""
        scores, truth = (torch.cat(column) for column in zip(*judged, strict=True))
        return mean_average_precision(scores, truth)


class CaptionObjective(nn.Module):
    """A Transformer of two decoder layers that reads the cells; it is thrown away."""

    unit = "tokens"
    rate = 3.0
    """Of its tensors, which start at random, as a multiple of the encoder's rate."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.captioner = make_captioner(DECODER, feature_width=width, vocabulary_size=vocabulary)

    def loss(self, cells: Tensor, tokens: Tensor, *, label_smoothing: float = _SMOOTHING) -> Tensor:
        """Return the caption loss, mean over tokens. cells: (B, N, C); tokens: (B, K, L) int64."""
        positions = token_positions(tokens, EXACT).to(cells.device, non_blocking=True)
        tokens = tokens.to(cells.device, non_blocking=True)
        boxes = cells.new_zeros(*cells.shape[:2], 5)  # its geometry is "none"
        exists = torch.ones(cells.shape[:2], dtype=torch.bool, device=cells.device)
        states = F.layer_norm(cells, cells.shape[-1:])  # networks differ in scale
        memory = self.captioner.encode(states, boxes, exists)
        teaching = Teaching(label_smoothing=label_smoothing, positions=positions)
        losses = two_losses(self.captioner, memory, tokens, teaching=teaching)
        return losses.total() if label_smoothing else losses.caption

    def count(self, tokens: Tensor) -> int:
        """Return the units of a part, tokens, over which the loss is a mean."""
        return int((tokens != PAD).sum())

    def judge(self, cells: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss of a part's captions and the number of their tokens, () each."""
        count = torch.tensor(self.count(tokens))
        return self.loss(cells, tokens, label_smoothing=0.0).cpu() * count, count

    def figure(self, judged: Sequence[tuple[Tensor, Tensor]]) -> float:
        """Return the geometric mean probability of a token."""
        losses, counts = (torch.stack(column).sum() for column in zip(*judged, strict=True))
        return float(torch.exp(-losses / counts))


def trained_parameters(config: EncoderConfig, extract: ExtractConfig, *, vocabulary: int) -> int:
    """Count the parameters of the encoder and of a decoder, without the one layer of words."""
    count = grid_parameters(extract)
    if config.objective == "captions":
        with skip_init():  # draws no random number
            decoder = CaptionObjective(grid_width(extract), vocabulary)
        count += sum(parameter.numel() for parameter in decoder.parameters())
    return count


Objective = WordObjective | CaptionObjective
"""Their tokens are on the CPU: to ask a GPU for numbers would wait for it."""


def make_objective(
    config: EncoderConfig,
    captions: CaptionFile,
    image_ids: Sequence[str],
    vocabulary: Vocabulary,
    *,
    width: int,
) -> Objective:
    """Return the objective for the captions of these training images.

    width: C, of the cells. Raises InputError where no word is frequent enough.
    """
    if config.objective == "captions":
        return CaptionObjective(width, len(vocabulary))
    images, shares = torch.zeros(len(vocabulary), dtype=torch.int64), torch.zeros(len(vocabulary))
    for image_id in image_ids:
        tokens = torch.from_numpy(captions.captions(image_id)).long()
        word_counts = word_shares(tokens[None], torch.arange(len(vocabulary)))[0]
        images += word_counts > 0
        shares += word_counts
    images[: len(SPECIALS)] = 0
    ids = ((images >= config.min_images) & (images <= _EVERYWHERE * len(image_ids))).nonzero()[:, 0]
    if not len(ids):
        raise InputError(
            f"no word is in the captions of at least {config.min_images:,}, and at most half, of "
            f"the {len(image_ids):,} training images; lower encoder.min_images, or give images "
            "captions that differ"
        )
    return WordObjective(width, ids, shares[ids] / len(image_ids), config)


def word_shares(tokens: Tensor, ids: Tensor) -> Tensor:
    """Return the share of each image's captions that have each of W tokens, (B, W) float32.

    tokens: (B, K, L) int64, rows of PAD alone are no captions; ids: (W,) int64.
    """
    spoken = (tokens != PAD).any(dim=2)  # (B, K)
    size = max(int(ids.max()), int(tokens.max())) + 1
    present = torch.zeros(*tokens.shape[:2], size, device=tokens.device)
    present.scatter_(2, tokens, 1.0)  # (B, K, L) -> (B, K, V)
    counts = (present[:, :, ids] * spoken[:, :, None]).sum(dim=1)
    return counts / spoken.sum(dim=1, keepdim=True).clamp(min=1)


def mean_average_precision(scores: Tensor, truth: Tensor) -> float:
    """Return the mean over words of the average precision of a ranking of images; 0 without any.

    scores: (n, W); truth: (n, W) bool. A word that no image has does not count.
    """
    hits = truth.gather(0, scores.argsort(dim=0, descending=True, stable=True)).double()
    ranks = torch.arange(1, len(hits) + 1, dtype=torch.float64)[:, None]
    precision = hits.cumsum(dim=0) / ranks
    counts = hits.sum(dim=0)
    of_words = (precision * hits).sum(dim=0)[counts > 0] / counts[counts > 0]
    return float(of_words.mean()) if len(of_words) else 0.0
