import pytest
import torch

from a2cap.model.captioner import SpecialTokens, decoder_input, trace_attention
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.decoding.ensemble import Ensemble
from tests.model.kinds import KINDS, make, refusal
from tests.model.searching import search
from tests.quick import crossed

AVERAGES = ["probabilities", "log_probabilities"]


@pytest.fixture
def three(tiny):
    """Make captioners of different predictions, sizes and fusions."""
    made = [
        tiny(),
        tiny(width=32, heads=4, decoder_layers=1, fusion="max"),
        tiny(fusion="none", encoder_layers=1),
    ]
    for number, captioner in enumerate(made):
        captioner.decoder.output.bias.data[4 + number] += 1
    return made


def _forward(captioner, images):
    return captioner.forward(images.encoded(captioner), decoder_input(images.captions, bos=1))


@pytest.mark.slow
@pytest.mark.parametrize("average", AVERAGES)
def test_an_ensemble_of_one_equals_its_captioner_bit_for_bit(tiny, images, average):
    captioner = tiny()
    ensemble = Ensemble([captioner], average=average)
    assert torch.equal(_forward(ensemble, images), _forward(captioner, images))
    assert search(ensemble, images.encoded(ensemble)) == search(
        captioner, images.encoded(captioner)
    )


def test_probabilities_are_averaged(three, images):
    expected = torch.stack([_forward(c, images).exp() for c in three]).mean(0)
    averaged = _forward(Ensemble(three), images)
    torch.testing.assert_close(averaged.exp(), expected)


@pytest.mark.parametrize("average", AVERAGES)
def test_weights_of_an_ensemble_need_no_sum_of_1(three, images, average):
    members = three[:2]
    # of a graph each (Yao et al. 2018): 0.7 p_spatial + 0.3 p_semantic
    first, second = (_forward(c, images).double() for c in members)
    if average == "probabilities":
        expected = (0.7 * first.exp() + 0.3 * second.exp()).log()
    else:
        expected = (0.7 * first + 0.3 * second).log_softmax(-1)
    averaged = _forward(Ensemble(members, average=average, weights=(7, 3)), images)
    torch.testing.assert_close(averaged.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 0.0), (1.0, float("nan"))])
def test_weights_that_do_not_fit_the_captioners_are_rejected(three, weights):
    assert refusal(Ensemble, three[:2], weights=weights) == (
        f"ensemble_weights are {list(weights)} for 2 captioners; give a positive number for each, "
        "in their order, or none"
    )


def test_averaged_log_probabilities_are_normalised(three, images):
    mean = torch.stack([_forward(c, images) for c in three]).mean(0)
    averaged = _forward(Ensemble(three, average="log_probabilities"), images)
    torch.testing.assert_close(averaged.exp().sum(-1), torch.ones_like(averaged[..., 0]))
    difference = averaged - mean
    torch.testing.assert_close(difference, difference[..., :1].expand_as(difference))


@pytest.mark.parametrize(("members", "average"), crossed(("every kind", "three"), AVERAGES))
def test_cached_steps_of_an_ensemble_equal_teacher_forcing(three, images, average, members):
    captioners = three if members == "three" else [make(kind) for kind in KINDS]
    ensemble = Ensemble(captioners, average=average)
    memory = images.encoded(ensemble)
    expected = _forward(ensemble, images).flatten(0, 1)
    state = ensemble.start(memory, rows_per_image=2)
    tokens = decoder_input(images.captions, bos=1).flatten(0, 1)
    for position in range(tokens.shape[1]):
        output = ensemble.step(tokens[:, position], state)
        assert output.attention is None
        torch.testing.assert_close(output.log_probs, expected[:, position])
        kept = torch.tensor([0, 1, 4, 5])  # rows of the images 0 and 2
        some = ensemble.step(tokens[kept, position], state.select(torch.tensor([0, 2])))
        torch.testing.assert_close(some.log_probs, expected[kept, position])
        state = output.state


def test_attention_is_averaged_and_layers_are_concatenated(three, images):
    ensemble, captions = Ensemble(three), images.captions[:, 0]
    averaged = trace_attention(ensemble, images.encoded(ensemble), captions)[2]
    alone = [trace_attention(c, images.encoded(c), captions)[2] for c in three]
    for name, count in (("original", 3), ("aligned", 3), ("keep", 2), ("gate", 1)):
        values = [value for value in (getattr(a, name) for a in alone) if value is not None]
        assert len(values) == count
        torch.testing.assert_close(getattr(averaged, name), torch.stack(values).mean(0))
    assert [layer.original.shape[1] for layer in averaged.layers] == [2, 2, 4, 2, 2]
    plain = Ensemble(three[2:])
    assert trace_attention(plain, images.encoded(plain), captions)[0].keep is None


@pytest.mark.parametrize("change", [{"vocabulary_size": 12}, {"special": SpecialTokens(unk=4)}])
def test_no_captioners_and_those_of_different_vocabularies_are_rejected(tiny, change):
    assert refusal(Ensemble, []) == "an ensemble has no captioner; give it one or more"
    other = TransformerCaptioner(
        tiny().config, feature_width=6, **{"vocabulary_size": 11, **change}
    )
    assert refusal(Ensemble, [tiny(), other]) == (
        f"captioners of an ensemble have 11 and {other.vocabulary_size} tokens, or other special "
        "tokens; give it captioners of one vocabulary"
    )
