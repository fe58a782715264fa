"""Hard attention: its estimator against exact enumeration of all locations, in float64."""

import math
from itertools import product

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from a2cap.model.alignment import AlignedAttention, caption_parameters
from a2cap.model.attention.hard import LocationLosses, Locations
from a2cap.model.attention.hard_config import HardAttentionConfig
from a2cap.model.captioner import trace_attention
from a2cap.model.captioners.recurrent.show_attend_tell_config import ShowAttendTellConfig
from a2cap.model.losses import two_losses
from tests.model.kinds import make

CAPTIONS = torch.tensor([[[4, 2]]])
PATHS = list(product(range(3), repeat=2))


class Scripted(nn.Module):
    """Given locations, one per token, in place of sampled ones."""

    def __init__(self, path):
        super().__init__()
        self.path = iter(path)

    def forward(self, weights):
        return torch.eye(weights.shape[-1], dtype=weights.dtype)[next(self.path)].expand_as(weights)


def hard(*, fusion="none", **fields):
    """Return a captioner in training without dropout, and one encoded image of three regions."""
    alignment = {"fusion": fusion}
    captioner = make("hard attention", alignment=alignment, hard={"lambda_e": 0, **fields}).train()
    features = torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(3)).double()
    arguments = features, torch.zeros(1, 3, 5).double(), torch.ones(1, 3, dtype=torch.bool)
    return captioner, lambda: captioner.encode(*arguments)


def of_path(captioner, encoded, path):
    """Return log p(y | s, a) and log p(s | a) of one sequence of locations."""
    captioner.decoder.attention.choose = Scripted(path)
    scored = captioner.score(encoded(), CAPTIONS)
    [attention] = scored.attention
    locations = (attention.used * attention.locations).sum(-1).log()
    return scored.log_probs.sum(), locations.sum()


def gradient(value, captioner):
    gradients = torch.autograd.grad(value, list(caption_parameters(captioner)), allow_unused=True)
    return torch.cat([part.flatten() for part in gradients if part is not None])


def estimate(*, moving=0.0, **fields):
    """Return relative bias and variance of the gradient over all paths, times the tokens."""
    captioner, encoded = hard(**fields)
    both = [of_path(captioner, encoded, path) for path in PATHS]
    exact = gradient(sum(locations.exp() * words for words, locations in both), captioner)
    estimates = []
    for path in PATHS:
        if captioner.moving_averages:
            captioner.hard.moving.fill_(moving)
        # the soft pass reads no location: the script is read once
        captioner.decoder.attention.choose = Scripted(path)
        losses = two_losses(captioner, encoded(), CAPTIONS)
        total = losses.caption + losses.penalties["reinforce"]
        estimates.append(-2 * gradient(total, captioner))
    shares = torch.stack([locations.exp().detach() for _, locations in both])
    assert shares.sum().item() == pytest.approx(1, abs=1e-12)
    mean = (shares[:, None] * torch.stack(estimates)).sum(0)
    variance = (shares * (torch.stack(estimates) - mean).square().sum(1)).sum().item()
    return ((mean - exact).norm() / exact.norm()).item(), variance


@pytest.mark.parametrize("fusion", ["none", pytest.param("gate", marks=pytest.mark.slow)])
def test_the_estimator_has_the_exact_gradient_as_mean_for_every_baseline(fusion):
    """Sum over all 9 sequences of 3 regions for 2 tokens; measured relative bias and variance:

    baseline               fusion none      gate, renormalised
    0                      3e-16   362.8    3e-16   165.1
    moving, at E[log p]    3e-16    14.7    3e-16    31.4
    soft                   3e-16    14.9    3e-16    32.0
    moving, lambda_r 0.1   0.14     12.0    0.12     29.5
    """
    captioner, encoded = hard(fusion=fusion)
    both = [of_path(captioner, encoded, path) for path in PATHS]
    mean = sum(locations.exp() * words for words, locations in both).item() / 2
    estimates = {
        "0": estimate(fusion=fusion),
        "moving": estimate(fusion=fusion, moving=mean),
        "soft": estimate(fusion=fusion, baseline="soft"),
    }
    assert max(bias for bias, _ in estimates.values()) < 1e-12
    assert estimates["0"][1] > 5 * max(estimates["moving"][1], estimates["soft"][1])
    biased, variance = estimate(fusion=fusion, moving=mean, lambda_r=0.1)
    assert biased > 0.1
    assert variance < estimates["moving"][1]
    # the objective is a lower bound of the log-likelihood
    likelihood = torch.stack([words + locations for words, locations in both]).logsumexp(0)
    assert 2 * mean < likelihood.item()


def test_the_moving_baseline_follows_the_mean_per_token_of_earlier_batches():
    captioner, encoded = hard()
    moving, expected = captioner.hard.moving, 0.0
    for path in ((0, 1), (2, 2)):
        captioner.decoder.attention.choose = Scripted(path)
        scored = captioner.score(encoded(), CAPTIONS)
        [attention] = scored.attention
        log_location = (attention.used * attention.locations).sum(-1).log().sum()
        reward = scored.log_probs.sum()
        by_hand = -(reward - 2 * expected) * log_location / 2
        torch.testing.assert_close(scored.penalties["reinforce"], by_hand)
        expected = 0.9 * expected + 0.1 * reward.item() / 2
        assert moving.item() == pytest.approx(expected)
    assert "hard.moving" in captioner.state_dict()


def test_the_entropy_loss_is_minus_lambda_e_times_the_entropy_per_token():
    captioner, encoded = hard(lambda_r=0, lambda_e=2)
    scored = captioner.score(encoded(), CAPTIONS)
    used = scored.attention[0].used
    entropy = -(used * used.log()).sum() / 2
    torch.testing.assert_close(scored.penalties["entropy"], -2 * entropy)
    assert not scored.penalties["reinforce"]


def test_losses_of_captions_of_two_lengths_are_those_of_their_tokens():
    losses = LocationLosses(HardAttentionConfig(lambda_r=1, lambda_e=1))
    losses.moving.fill_(-2.0)
    log_probs = torch.tensor([[[-1.0, -3.0, -2.0], [-4.0, 0.0, 0.0]]])
    is_token = torch.tensor([[[True, True, True], [True, False, False]]])
    used = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5], [0.7, 0.3]])
    chosen = torch.eye(2)[[0, 0, 1, 1, 0, 1]]
    attention = AlignedAttention(used[None, None], used[None, None], locations=chosen[None, None])
    values = losses(log_probs, attention, is_token, None)
    logs = [math.log(weight) for weight in (0.5, 0.9, 0.8, 0.4)]
    # the baseline of a caption is the moving average times its tokens: -6 and -2
    score = (-6 + 6) * sum(logs[:3]) + (-4 + 2) * logs[3]
    entropy = -sum(p * math.log(p) for row in used[:4].tolist() for p in row)
    assert values["reinforce"].item() == pytest.approx(-score / 4)
    assert values["entropy"].item() == pytest.approx(-entropy / 4)
    assert losses.moving.item() == pytest.approx(0.9 * -2 + 0.1 * -10 / 4)


def test_locations_are_drawn_in_proportion_to_the_weights_and_never_on_padding():
    torch.manual_seed(0)
    weights = torch.tensor([0.5, 0.3, 0.2, 0.0]).expand(1, 1, 20_000, 4)
    drawn = Locations(HardAttentionConfig()).train()(weights)
    assert drawn.sum(-1).eq(1).all()
    torch.testing.assert_close(drawn.mean((0, 1, 2)), weights[0, 0, 0], atol=0.015, rtol=0)
    assert not drawn[..., 3].any()


def test_one_region_makes_hard_attention_equal_to_soft_attention(images):
    arguments = images.features[:, :1], images.boxes[:, :1], images.region_mask[:, :1]
    scores = []
    for name, fields in (("show-attend-tell", {}), ("hard attention", {"hard": {}})):
        captioner = make(name, alignment={"fusion": "none"}, **fields).train()
        scores.append(captioner.score(captioner.encode(*arguments), images.captions).log_probs)
    assert torch.equal(*scores)


def test_decoding_reads_the_expected_context_or_the_most_attended_region(images):
    scored = {}
    for decode in ("expectation", "argmax"):
        captioner = make("hard attention", alignment={"fusion": "none"}, hard={"decode": decode})
        memory = images.encoded(captioner)
        scored[decode] = captioner.score(memory, images.captions)
        if decode == "argmax":
            [attention] = scored[decode].attention
            assert torch.equal(attention.locations.argmax(-1), attention.used.argmax(-1))
        assert not any(scored[decode].penalties.values())
    # what a report shows is the attention, not the location
    steps = trace_attention(captioner, memory, images.captions[:, 0])
    assert ((steps[0].aligned > 0).sum(1) == images.region_mask.sum(1)).all()
    assert not torch.allclose(scored["argmax"].log_probs, scored["expectation"].log_probs)


def test_a_fusion_that_is_no_distribution_is_rejected():
    message = (
        "hard attention samples from a distribution, and the weights of alignment.fusion do not "
        "sum to 1: 'gate'; set alignment.renormalise_aligned to true, or alignment.fusion to none"
    )
    with pytest.raises(ValidationError) as error:
        ShowAttendTellConfig(attention="hard")
    assert message in str(error.value)
    for alignment in ({"fusion": "none"}, {"renormalise_aligned": True}):
        ShowAttendTellConfig(attention="hard", alignment=alignment)
