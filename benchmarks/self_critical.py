"""A self-critical step with its reward, and CIDEr-D alone, compared with plain versions.

The plain step samples with a graph and back-propagates through every sampling step, as M2 does. Its
reward is pycocoevalcap's Python code with the same document frequencies. The captioner is
untrained, so nearly every caption has maximum length, the slowest case.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import click
import torch
from pycocoevalcap.cider.cider_scorer import CiderScorer
from torch import Tensor

from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.self_critical.document_frequencies import InverseDocumentFrequencies
from a2cap.model.self_critical.reward import CaptionReward, ReferenceTokens
from a2cap.model.self_critical.rollouts import Reward, generate_rollouts, self_critical_loss
from benchmarks.measure import Timing, floating_operations, interleaved, print_timings

A2, PLAIN = "a2", "plain"
PAD, BOS, EOS = 0, 1, 2
FIRST_WORD = 4
Sentence = list[int]


@dataclass(frozen=True)
class Sizes:
    """B images of R regions with K samples of at most L tokens from V words.

    corpus: images for document frequencies; hypotheses: captions of the second table, five per
    image.
    """

    images: int = 10
    samples: int = 5
    tokens: int = 20
    regions: int = 50
    feature_width: int = 2048
    vocabulary: int = 10_000
    corpus: int = 1000
    hypotheses: int = 250


QUICK = Sizes(2, 3, 5, regions=6, feature_width=16, vocabulary=30, corpus=8, hypotheses=40)

SMALL = TransformerConfig(encoder_layers=1, decoder_layers=2, width=32, feed_forward=64, heads=2)


@dataclass(frozen=True)
class Corpus:
    """Five references per image, and both versions of the reward."""

    references: list[list[Sentence]]
    a2: CaptionReward
    plain: CiderScorer

    def plain_reward(self, images: Tensor, captions: Tensor) -> Tensor:
        """Return pycocoevalcap's CIDEr-D, (B, K) float64."""
        scorer = CiderScorer()
        scorer.document_frequency = self.plain.document_frequency
        for image, group in zip(images.tolist(), captions.tolist(), strict=True):
            references = [_text(sentence) for sentence in self.references[image]]
            for caption in group:
                scorer.cook_append(_text(_words(caption)), references)
        scorer.crefs = _CorpusSized(scorer.crefs, len(self.references))
        return torch.tensor(scorer.compute_cider()).reshape(captions.shape[:2])


class _CorpusSized(list[object]):
    """Captions whose reported number is that of the corpus, which the idf depends on."""

    def __init__(self, items: Sequence[object], size: int) -> None:
        super().__init__(items)
        self._size = size

    def __len__(self) -> int:
        return self._size


def make_corpus(sizes: Sizes) -> Corpus:
    """Return sentences of 6 to 14 words; few words are frequent, most are rare."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.arange(1, sizes.vocabulary - FIRST_WORD + 1, dtype=torch.float64)

    def sentence() -> Sentence:
        length = int(torch.randint(6, 15, (1,), generator=generator))
        words = torch.multinomial(1 / ranks, length, replacement=True, generator=generator)
        return [FIRST_WORD + word for word in words.tolist()]

    references = [[sentence() for _ in range(5)] for _ in range(sizes.corpus)]
    plain = CiderScorer()
    for group in references:
        plain.cook_append(None, [_text(words) for words in group])
    plain.compute_doc_freq()
    counts = plain.document_frequency
    rows = [[*map(int, ngram), *[-1] * (4 - len(ngram))] for ngram in counts]
    frequencies = InverseDocumentFrequencies(
        torch.tensor(rows), torch.tensor(list(counts.values())), documents=sizes.corpus
    )
    return Corpus(
        references,
        CaptionReward(frequencies, ReferenceTokens.from_sentences(references), eos=False),
        plain,
    )


def a2_gradients(
    captioner: TransformerCaptioner, regions: Sequence[Tensor], reward: Reward, sizes: Sizes
) -> Tensor:
    """Sample without a graph, then run one pass with gradients; return samples, (B, K, L)."""
    memory = captioner.encode(*regions)
    generator = torch.Generator().manual_seed(0)
    rollouts = generate_rollouts(
        captioner,
        memory,
        reward,
        samples=sizes.samples,
        max_length=sizes.tokens,
        generator=generator,
    )
    scored = captioner.score(memory, rollouts.captions)
    tokens = (rollouts.captions != PAD).sum()
    torch.autograd.backward(self_critical_loss(scored.log_probs, rollouts.advantages) / tokens)
    return rollouts.captions


def plain_gradients(
    captioner: TransformerCaptioner,
    regions: Sequence[Tensor],
    reward: Reward,
    sizes: Sizes,
    *,
    followed: Tensor | None = None,
) -> None:
    """Sample with a graph that is kept; followed: captions to follow instead, (B, K, L)."""
    state = captioner.start(captioner.encode(*regions), sizes.samples)
    last = torch.full((sizes.images * sizes.samples,), BOS)
    ended = torch.zeros_like(last, dtype=torch.bool)
    drawn, log_probs = [], []
    for step in range(sizes.tokens if followed is None else followed.shape[-1]):
        output = captioner.step(last, state)
        if followed is None:
            last = _draw(output.log_probs.detach()).masked_fill(ended, PAD)
        else:
            last = followed.flatten(0, 1)[:, step]
        picked = output.log_probs.gather(1, last[:, None]).squeeze(1)
        log_probs.append(picked.masked_fill(ended, 0))
        drawn.append(last)
        state, ended = output.state, ended | (last == EOS)
    captions = torch.stack(drawn, dim=1).reshape(sizes.images, sizes.samples, -1)
    rewards = reward(captions)
    baseline = (rewards.sum(dim=1, keepdim=True) - rewards) / (sizes.samples - 1)
    loss = -(torch.stack(log_probs).sum(dim=0) * (rewards - baseline).flatten().float()).sum()
    torch.autograd.backward(loss / (captions != PAD).sum())


def _draw(log_probs: Tensor) -> Tensor:
    probabilities = log_probs.exp()
    probabilities[:, [PAD, BOS]] = 0
    return torch.multinomial(probabilities, 1).squeeze(1)


def compare_steps(
    sizes: Sizes, config: TransformerConfig, corpus: Corpus, *, rounds: int
) -> tuple[dict[str, Timing], int]:
    """Print the time of a step in both versions, and the difference of their gradients.

    Returns the timings and the floating operations of a2's version.
    """
    torch.manual_seed(0)
    captioner = TransformerCaptioner(
        config, feature_width=sizes.feature_width, vocabulary_size=sizes.vocabulary
    ).eval()
    shape = (sizes.images, sizes.regions)
    regions = (
        torch.rand(*shape, sizes.feature_width),
        torch.rand(*shape, 5),
        torch.ones(shape, dtype=torch.bool),
    )
    images = torch.arange(sizes.images)
    ours = partial(a2_gradients, captioner, regions, partial(corpus.a2, images), sizes)
    reward = partial(corpus.plain_reward, images)
    plain = partial(plain_gradients, captioner, regions, reward, sizes)
    captions = ours()
    ours_gradient = _gradient(captioner)
    captioner.zero_grad()
    plain(followed=captions)
    difference = (ours_gradient - _gradient(captioner)).norm() / ours_gradient.norm()
    timings = interleaved({A2: ours, PLAIN: plain}, rounds=rounds, before=captioner.zero_grad)
    layers = f"{config.encoder_layers}+{config.decoder_layers} layers of {config.width}"
    title = (
        f"self-critical step with reward, {layers}: {sizes.images} images x {sizes.samples} "
        f"samples of {captions.shape[-1]} tokens, {sizes.regions} regions, V {sizes.vocabulary:,}"
    )
    print_timings(title, timings, reference=PLAIN, count=sizes.images)
    click.echo(f"gradients of the same samples differ by {difference:.1e} of their norm")
    return timings, floating_operations(ours)


def compare_rewards(sizes: Sizes, corpus: Corpus, *, rounds: int) -> dict[str, Timing]:
    """Print and return the time of CIDEr-D in both versions; print how their values differ."""
    images = torch.arange(sizes.hypotheses // 5) % sizes.corpus
    captions = torch.full((len(images), 5, sizes.tokens), PAD)
    for row, image in enumerate(images.tolist()):
        for number in range(5):
            # halves of two references, so that some n-grams match
            start = corpus.references[image][number][: sizes.tokens // 2]
            rest = corpus.references[(image + number) % sizes.corpus][0]
            words = [*start, *rest][: sizes.tokens - 1]
            captions[row, number, : len(words) + 1] = torch.tensor([*words, EOS])
    forms = {
        A2: partial(corpus.a2, images, captions),
        PLAIN: partial(corpus.plain_reward, images, captions),
    }
    difference = (forms[A2]() - forms[PLAIN]()).abs().max()
    timings = interleaved(forms, rounds=rounds)
    count = captions.shape[0] * 5
    title = f"CIDEr-D of {count} captions, 5 references each"
    print_timings(title, timings, reference=PLAIN, count=count, unit="captions")
    click.echo(f"values differ by {difference:.1e}")
    return timings


def _gradient(captioner: TransformerCaptioner) -> Tensor:
    """Return all gradients, concatenated."""
    return torch.cat([p.grad.flatten() for p in captioner.parameters() if p.grad is not None])


def _words(caption: Sentence) -> Sentence:
    return [word for word in caption if word not in (PAD, EOS)]


def _text(words: Sentence) -> str:
    return " ".join(map(str, words))
