"""What an encoder is trained to predict, against slow references."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from a2cap.data.captions.vocabulary import PAD, Vocabulary
from a2cap.data.errors import InputError
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.grid import grid_parameters, grid_width
from a2cap.pipeline.training.encoder.captioned_images import EncoderPart
from a2cap.pipeline.training.encoder.encoder_config import EncoderConfig
from a2cap.pipeline.training.encoder.objectives import (
    CaptionObjective,
    WordObjective,
    make_objective,
    mean_average_precision,
    trained_parameters,
    word_shares,
)
from a2cap.pipeline.training.encoder.train import EncoderUpdater
from a2cap.pipeline.training.encoder.validation import EncoderInTraining

# <eos> is 2; a row of padding is no caption
TOKENS = torch.tensor(
    [[[4, 5, 4, 2], [6, 2, 0, 0], [0, 0, 0, 0]], [[5, 2, 0, 0], [5, 6, 2, 0], [7, 5, 2, 0]]]
)


def test_the_decoder_of_captions_counts_among_the_trained_parameters():
    extract = ExtractConfig(boxes="grid", grid_backbone="efficientnet-lite2")
    state = torch.get_rng_state()
    words, captions = (
        trained_parameters(EncoderConfig(objective=objective), extract, vocabulary=30)
        for objective in ("words", "captions")
    )
    assert torch.equal(torch.get_rng_state(), state)  # equal bits with and without a count
    decoder = CaptionObjective(grid_width(extract), 30)
    assert words == grid_parameters(extract)
    assert captions - words == sum(parameter.numel() for parameter in decoder.parameters())


def test_shares_count_the_captions_with_a_word_once_each():
    ids = torch.tensor([4, 5, 6, 8])
    expected = torch.tensor([[0.5, 0.5, 0.5, 0.0], [0.0, 1.0, 1 / 3, 0.0]])
    torch.testing.assert_close(word_shares(TOKENS, ids), expected)


@pytest.mark.parametrize("pooling", ["mean", "noisy-or"])
def test_the_loss_is_that_of_float64(pooling):
    torch.manual_seed(0)
    config = EncoderConfig(pooling=pooling, dropout=0.0)
    ids, cells = torch.tensor([4, 5, 6]), torch.randn(2, 5, 7) * 3
    words = WordObjective(7, ids, torch.tensor([0.25, 0.7, 0.4]), config)
    torch.nn.init.normal_(words.layer.weight)
    weight, bias = (p.detach().double().numpy() for p in (words.layer.weight, words.layer.bias))
    shares = word_shares(TOKENS, ids).double().numpy()
    total = 0.0
    for image in range(2):
        states = cells[image].double().numpy()
        states = states.mean(axis=0, keepdims=True) if pooling == "mean" else states
        states = (states - states.mean(1, keepdims=True)) / np.sqrt(
            states.var(1, keepdims=True) + 1e-5
        )
        spoken = 1 / (1 + np.exp(-(states @ weight.T + bias)))  # (N, W)
        present = 1 - np.prod(1 - spoken, axis=0)  # Fang et al. 2015, Eq. 1
        total -= sum(
            s * math.log(p) + (1 - s) * math.log(1 - p)
            for s, p in zip(shares[image], present, strict=True)
        )
    assert words.loss(cells, TOKENS).item() == pytest.approx(total / 2, rel=1e-5)


def test_a_new_layer_predicts_the_mean_shares():
    shares = torch.tensor([0.25, 0.7])
    words = WordObjective(4, torch.tensor([4, 5]), shares, EncoderConfig())
    present, absent = words.eval()(torch.randn(3, 6, 4))
    torch.testing.assert_close(present.exp(), shares.expand(3, 2))
    torch.testing.assert_close(present.exp() + absent.exp(), torch.ones(3, 2))


def test_average_precision_is_that_of_its_definition():
    generator = np.random.default_rng(0)
    scores, truth = generator.random((30, 5)), generator.random((30, 5)) < 0.2
    truth[:, 2] = False  # a word that no image has
    expected = []
    for word in (0, 1, 3, 4):
        order = sorted(range(30), key=lambda row: -scores[row, word])
        hits, precisions = 0, []
        for rank, row in enumerate(order, start=1):
            if truth[row, word]:
                hits += 1
                precisions.append(hits / rank)
        expected.append(sum(precisions) / len(precisions))
    precision = mean_average_precision(torch.from_numpy(scores), torch.from_numpy(truth))
    assert precision == pytest.approx(sum(expected) / 4)
    assert mean_average_precision(torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.bool)) == 0


class File:
    """Captions in memory, as `CaptionFile` returns them."""

    def __init__(self, rows):
        self.rows = rows

    def captions(self, image_id):
        return np.array(self.rows[image_id], np.int32)


VOCABULARY = Vocabulary.from_counts(Counter(dict.fromkeys("abcdefgh", 9)), min_count=1)
CAPTIONS = File(
    {
        "1": [[4, 5, 2, 0], [4, 2, 0, 0]],
        "2": [[4, 6, 2, 0], [4, 5, 2, 0]],
        "3": [[4, 7, 2, 0], [4, 6, 2, 0]],
        "4": [[4, 8, 2, 0], [4, 3, 2, 0]],
    }
)


@pytest.mark.parametrize("objective", ["words", "captions"])
def test_a_loss_reads_nothing_from_the_device(objective):
    """On a GPU it would wait; the meta device has no values."""
    config = EncoderConfig(objective=objective, min_images=2)
    made = make_objective(config, CAPTIONS, list("1234"), VOCABULARY, width=3).to("meta")
    assert made.loss(torch.ones(2, 5, 3, device="meta"), TOKENS).is_meta


def test_words_are_frequent_and_not_everywhere():
    words = make_objective(EncoderConfig(min_images=2), CAPTIONS, list("1234"), VOCABULARY, width=3)
    # 4 is in every image, 7 and 8 in one, 3 is <unk>
    assert words.ids.tolist() == [5, 6]
    torch.testing.assert_close(words.layer.bias.sigmoid(), torch.tensor([0.25, 0.25]))


def test_no_frequent_word_is_refused():
    with pytest.raises(InputError) as raised:
        make_objective(EncoderConfig(min_images=3), CAPTIONS, list("1234"), VOCABULARY, width=3)
    assert str(raised.value) == (
        "no word is in the captions of at least 3, and at most half, of the 4 training images; "
        "lower encoder.min_images, or give images captions that differ"
    )


def test_a_caption_loss_is_the_same_at_any_scale_of_the_cells():
    torch.manual_seed(0)
    config = EncoderConfig(objective="captions")
    captions = make_objective(config, CAPTIONS, [], VOCABULARY, width=6).eval()
    cells = torch.randn(2, 4, 6) * 10
    torch.testing.assert_close(captions.loss(100 * cells, TOKENS), captions.loss(cells, TOKENS))


class Halving(nn.Conv2d):
    """An encoder that halves the sides of images."""

    mean = deviation = (127.5,) * 3

    def __init__(self):
        super().__init__(3, 6, kernel_size=2, stride=2)


@pytest.mark.parametrize(("objective", "rate"), [("words", 1), ("captions", 3)])
def test_a_decoder_that_starts_at_random_learns_faster_than_the_encoder(objective, rate):
    torch.manual_seed(0)
    config = EncoderConfig(objective=objective, min_images=2, weight_decay=0.0, dropout=0.0)
    made = make_objective(config, CAPTIONS, list("1234"), VOCABULARY, width=6)
    network = EncoderInTraining(Halving(), made)
    if objective == "words":
        nn.init.normal_(made.layer.weight)  # which starts at 0, so that the encoder would not move
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    updater = EncoderUpdater(network, config, steps=100)
    pixels = torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8)
    updater.step([EncoderPart(("1", "2"), pixels, TOKENS)], 1)
    steps = {"encoder": 0.0, "objective": 0.0}
    for name, tensor in network.state_dict().items():
        part = name.partition(".")[0]
        if part in steps and tensor.is_floating_point():
            steps[part] = max(steps[part], float((tensor - before[name]).abs().max()))
    # Adam's first step of a tensor is its rate
    assert steps["encoder"] == pytest.approx(updater.lr(1), rel=0.05)
    assert steps["objective"] == pytest.approx(rate * updater.lr(1), rel=0.05)


def test_a_caption_loss_reaches_the_cells_and_its_likelihood_is_that_of_a_token():
    torch.manual_seed(0)
    captions = make_objective(
        EncoderConfig(objective="captions"), CAPTIONS, [], VOCABULARY, width=6
    )
    assert isinstance(captions, CaptionObjective)
    cells = torch.randn(2, 4, 6, requires_grad=True)
    captions.loss(cells, TOKENS).backward()
    assert cells.grad.abs().sum() > 0
    captions.eval()
    with torch.inference_mode():
        parts = [captions.judge(cells[row : row + 1], TOKENS[row : row + 1]) for row in (0, 1)]
        whole = float(captions.loss(cells, TOKENS, label_smoothing=0.0))
    assert [int(count) for _, count in parts] == [int((row != PAD).sum()) for row in TOKENS]
    assert captions.figure(parts) == pytest.approx(math.exp(-whole), rel=1e-5)
