"""Gradients of tokens with respect to the image, against finite differences in float64."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs a2cap[transformers]")

from a2cap.model.adapting import gradients  # noqa: E402
from a2cap.model.adapting.generation import force_tokens  # noqa: E402
from a2cap.model.adapting.gradients import token_gradients  # noqa: E402
from a2cap.model.adapting.image_columns import image_columns  # noqa: E402
from a2cap.model.alignment_config import AlignmentConfig  # noqa: E402
from tests.model.adapting import captioners, vision_language  # noqa: E402
from tests.model.adapting.test_removal import NONE, QUICK, TOKENS, language_model, prepared  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
GATE = AlignmentConfig(fusion="gate")


def double(name, config=NONE):
    model, layers, given = prepared(name, config)
    inputs = {n: v.double() if v.is_floating_point() else v for n, v in given.items()}
    return model.double(), layers, inputs


def normalise(self, states):
    """Compute Llama's RMSNorm without its rounding to float32, which would drown differences."""
    scale = (states.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
    return self.weight * states * scale


@pytest.mark.parametrize("name", QUICK)
def test_importance_is_the_norm_of_finite_differences_of_the_language_model_alone(
    name, monkeypatch
):
    llama = transformers.models.llama.modeling_llama.LlamaRMSNorm
    monkeypatch.setattr(llama, "forward", normalise)
    model, layers, given = double(name)
    measured = token_gradients(model, layers, given, TOKENS)
    with torch.no_grad():
        states, columns, answer = language_model(name, model, given)
        whole = torch.ones(states.shape[1], dtype=torch.bool)
        assert measured.importance.shape == (1, len(TOKENS), len(columns))
        units = torch.arange(states.shape[-1])
        for token in (0, len(columns) // 2, len(columns) - 1):
            changes = torch.zeros(len(units), *states.shape[1:], dtype=torch.float64)
            changes[units, columns[token], units] = 1e-5
            up, down = (answer(states + sign * changes, whole).exp() for sign in (1, -1))
            slopes = (up - down) / 2e-5  # (D, L)
            own = measured.importance[0, :, token], measured.product[0, :, token]
            torch.testing.assert_close(own[0], slopes.norm(dim=0), rtol=1e-4, atol=1e-8)
            scaled = states[0, columns[token]] @ slopes
            torch.testing.assert_close(own[1], scaled, rtol=1e-3, atol=1e-7)


class Scaled:
    """States of the image, of which one is scaled."""

    def __init__(self, columns, token, factor):
        self.columns, self.token, self.factor, self.is_read = columns, token, factor, False

    def of_prompt(self, hidden):
        if self.is_read:
            return hidden
        self.is_read = True
        return self.of_encoder(hidden, self.columns[self.token])

    def of_encoder(self, states, at=None):
        states = states.clone()
        states[:, self.token if at is None else at] *= self.factor
        return states


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llava", GATE),
        *(
            pytest.param(name, config, marks=pytest.mark.slow)
            for name, config in (
                *((name, NONE) for name in (*vision_language.BUILDERS, *captioners.BUILDERS)),
                *(("blip", GATE), ("gpt2", GATE), ("git", GATE), ("blip2_opt", GATE)),
            )
        ),
    ],
)
def test_gradient_times_input_is_the_effect_of_scaling_a_token_of_the_image(name, config):
    model, layers, given = double(name, config)
    kept = {parameter: parameter.requires_grad for parameter in model.parameters()}
    [product] = token_gradients(model, layers, given, TOKENS).product
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {parameter: parameter.requires_grad for parameter in model.parameters()} == kept
    assert not force_tokens(model, given, TOKENS).requires_grad
    columns = None if layers.words else image_columns(model, given)
    is_prompt = columns is not None and not model.config.is_encoder_decoder
    differences = []
    tokens = [0, product.shape[1] // 2, product.shape[1] - 1]
    for token in tokens:
        at = token if columns is None or is_prompt else int(columns[0][token])
        ends = []
        for factor in (1.01, 0.99):
            leaf = Scaled(columns[0] if is_prompt else None, at, factor)
            with gradients._reading(model, layers, leaf):
                ends.append(force_tokens(model, given, TOKENS)[0].exp())
        differences.append((ends[0] - ends[1]).double() / 0.02)
    assert product.abs().max() > 1e-5
    torch.testing.assert_close(
        product[:, tokens].double(), torch.stack(differences, dim=1), rtol=0.02, atol=1e-5
    )
