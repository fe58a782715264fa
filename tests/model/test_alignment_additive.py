"""Alignment of an attention other than the Transformer's: additive, one head, in a GRU.

`Alignment` needs only weights over regions, a query and a state of an attention
(Bahdanau et al. 2015, arXiv:1409.0473; Lu et al. aligned translation, A2 the Transformer).
"""

import math

import pytest
import torch
from torch import nn

from a2cap.model.alignment import Alignment, DecoderPass, evidence, perturb, uniform_average
from a2cap.model.config import AlignmentConfig
from a2cap.model.losses import caption_loss, mask_loss, mask_penalty

B, R, F, D, V, L = 4, 5, 6, 8, 9, 4
FUSIONS = ["max", "moving", "decay", "gate"]
REGION_MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] * 4 + [False], [True] * 5])


class AdditiveCaptioner(nn.Module):
    """A GRU that attends to the regions by v'tanh(W s + U a) before each token."""

    def __init__(self, **alignment):
        super().__init__()
        self.words = nn.Embedding(V, D)
        self.query, self.key = nn.Linear(D, D), nn.Linear(F, D)
        self.score = nn.Linear(D, 1)
        self.cell = nn.GRUCell(D + F, D)
        self.output = nn.Linear(D, V)
        self.alignment = Alignment(
            AlignmentConfig(**alignment), hidden_width=D, region_width=F, heads=1, head_width=D
        )

    def masks(self):
        return list(self.alignment.mask_network.parameters())

    def others(self):
        masks = {id(parameter) for parameter in self.masks()}
        return [parameter for parameter in self.parameters() if id(parameter) not in masks]

    def forward(self, regions, region_mask, tokens, *, perturbed=False):
        """Log-probabilities (B, 1, L) of the tokens, and the attention of each step."""
        mask_keys = self.alignment.mask_network.project(regions)
        decoder_pass = DecoderPass(torch.tensor(50_000), perturbed)
        state, previous = regions.new_zeros(len(regions), D), torch.ones_like(tokens[:, 0])
        log_probs, attention = [], []
        for target in tokens.unbind(dim=1):
            query = self.query(state)
            scores = self.score(torch.tanh(query[:, None] + self.key(regions)))[..., 0]
            weights = scores.masked_fill(~region_mask, -math.inf).softmax(-1)
            aligned = self.alignment(
                weights[:, None, None],
                queries=query[:, None, None],
                hidden=state[:, None],
                mask_keys=mask_keys,
                region_mask=region_mask,
                decoder_pass=decoder_pass,
            )
            context = (aligned.used[:, 0, 0, :, None] * regions).sum(1)
            state = self.cell(torch.cat((self.words(previous), context), dim=1), state)
            log_probs.append(self.output(state).log_softmax(-1).gather(1, target[:, None])[:, 0])
            attention.append(aligned)
            previous = target
        return torch.stack(log_probs, dim=1)[:, None], attention


def captioner(**alignment):
    torch.manual_seed(0)
    made = AdditiveCaptioner(**alignment).double()
    with torch.no_grad():
        made.score.weight.mul_(4)
    return made


@pytest.fixture
def regions():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, R, F, generator=generator, dtype=torch.float64)


@pytest.fixture
def tokens():
    return torch.randint(2, V, (B, L), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_additive_attention_is_aligned_by_the_same_equations(regions, tokens, fusion):
    _, steps = captioner(fusion=fusion)(regions, REGION_MASK, tokens)
    share = {"max": 0.0, "moving": None, "decay": math.exp(-0.5), "gate": None}[fusion]
    for step in steps:
        gathered = evidence(step.original, step.keep)
        if fusion == "moving":
            expected = step.original + 0.1 * gathered
        else:
            weight = step.gate if fusion == "gate" else share
            expected = weight * step.original + (1 - weight) * gathered
        torch.testing.assert_close(step.used, expected, rtol=0, atol=1e-12)
        assert step.used.shape == (B, 1, 1, R)
        assert not step.used[~REGION_MASK[:, None, None]].any()


def test_additive_attention_is_perturbed_by_the_same_equation(regions, tokens):
    _, steps = captioner()(regions, REGION_MASK, tokens, perturbed=True)
    average = uniform_average(REGION_MASK, dtype=torch.float64)
    for step in steps:
        torch.testing.assert_close(step.used, perturb(step.original, step.keep, average))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_order_and_padding_of_regions_do_not_change_the_log_probabilities(regions, tokens, fusion):
    model, order = captioner(fusion=fusion), torch.tensor([2, 0, 4, 1, 3])
    for perturbed in (False, True):
        expected, _ = model(regions, REGION_MASK, tokens, perturbed=perturbed)
        moved, _ = model(regions[:, order], REGION_MASK[:, order], tokens, perturbed=perturbed)
        torch.testing.assert_close(moved, expected, rtol=0, atol=1e-12)
        alone, _ = model(regions[1:2, :3], REGION_MASK[1:2, :3], tokens[1:2], perturbed=perturbed)
        torch.testing.assert_close(alone, expected[1:2], rtol=0, atol=1e-12)


def test_masks_learn_to_harm_a_frozen_captioner(regions, tokens):
    model, is_token = captioner(), torch.ones(B, 1, L, dtype=torch.bool)
    words = torch.optim.Adam(model.others(), lr=0.06)
    for _ in range(25):
        words.zero_grad()
        caption_loss(model(regions, REGION_MASK, tokens)[0], is_token).backward()
        words.step()
    masks, before = torch.optim.Adam(model.masks(), lr=0.06), _harm(model, regions, tokens)
    still = [parameter.clone() for parameter in model.others()]
    for _ in range(25):
        log_probs, steps = model(regions, REGION_MASK, tokens, perturbed=True)
        keep = torch.cat([step.keep for step in steps], dim=2)
        loss = mask_loss(
            caption_loss(log_probs, is_token), mask_penalty([keep], is_token), penalty_weight=0.03
        )
        for parameter, gradient in zip(
            model.masks(), torch.autograd.grad(loss, model.masks()), strict=True
        ):
            parameter.grad = gradient
        masks.step()
    assert _harm(model, regions, tokens) > before + 0.05
    assert all(torch.equal(a, b) for a, b in zip(still, model.others(), strict=True))


@torch.no_grad()
def _harm(model, regions, tokens):
    """Return the cost of the perturbed pass in nats per token."""
    return (
        (
            model(regions, REGION_MASK, tokens)[0]
            - model(regions, REGION_MASK, tokens, perturbed=True)[0]
        )
        .mean()
        .item()
    )
