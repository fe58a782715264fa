import pytest
import torch
from torch import nn

from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.layers import packed_linear
from a2cap.model.layers.packed_linear import PackedLinear, UnchangedWeights, packed

pytestmark = pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="torch is built without MKL"
)
ROWS = 12


@pytest.fixture
def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(48, 80)


@pytest.fixture
def in_single(tiny, images):
    """Makes a tiny captioner in float32; the images become so too."""
    images.features, images.boxes = images.features.float(), images.boxes.float()
    return lambda **fields: tiny(**fields).float()


@pytest.mark.parametrize("shape", [(ROWS,), (3, 4), (2, 3, 2)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_products_are_those_of_float64(linear, shape, has_bias, context):
    if not has_bias:
        linear.bias = None
    states = torch.randn(*shape, 48)
    with context():
        found = PackedLinear(linear, ROWS)(states)
        again = PackedLinear(linear, ROWS)(states)
        exact = linear.double()(states.double())
    assert found.shape == (*shape, 80)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(found, again)


def test_columns_of_a_wider_tensor_are_read_as_they_lie(linear):
    wide = torch.randn(ROWS, 96)
    with torch.no_grad():
        found = PackedLinear(linear, ROWS)(wide[:, ::2])
        torch.testing.assert_close(found, linear(wide[:, ::2]))


@torch.no_grad()
def test_a_weight_is_packed_once_and_nothing_else_is_asked_of_the_layer(linear, monkeypatch):
    layer = PackedLinear(linear, ROWS)
    expected = layer(torch.ones(ROWS, 48))
    monkeypatch.setattr(linear, "forward", pytest.fail)
    linear.weight.zero_()  # which nobody may do; it shows what is multiplied
    assert torch.equal(layer(torch.ones(ROWS, 48)), expected)


def test_other_rows_gradients_and_other_precisions_go_through_the_layer_itself(linear):
    layer = PackedLinear(linear, ROWS)
    few, many = torch.randn(5, 48), torch.randn(ROWS, 48)
    with torch.no_grad():
        assert torch.equal(layer(few), linear(few))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(many).dtype == torch.bfloat16
            assert torch.equal(layer(many), linear(many))
    layer(many).sum().backward()
    torch.testing.assert_close(linear.weight.grad, many.sum(dim=0).expand(80, 48))
    with torch.no_grad():
        linear.double()
        assert torch.equal(layer(many.double()), linear(many.double()))


@torch.no_grad()
def test_a_packed_module_shares_everything_but_its_linear_layers(in_single):
    decoder = in_single().decoder
    twin = packed(decoder, ROWS)
    parameters = dict(decoder.named_parameters())
    assert {id(shared) for shared in twin.parameters()} == {id(p) for p in parameters.values()}
    linears = [module for module in decoder.modules() if type(module) is nn.Linear]
    layers = [module for module in twin.modules() if isinstance(module, PackedLinear)]
    assert [layer.linear for layer in layers] == linears
    assert dict(decoder.named_parameters()).keys() == parameters.keys()
    assert twin.layers[0].self_attention_norm is decoder.layers[0].self_attention_norm


def test_what_gains_nothing_is_left_as_it_is(in_single, tiny, monkeypatch):
    decoder = in_single().decoder
    assert packed(decoder, ROWS) is decoder  # gradients
    with torch.no_grad():
        assert packed(decoder, ROWS) is not decoder
        assert packed(decoder, packed_linear.FEWEST_ROWS - 1) is decoder
        assert packed(decoder.layers[0].self_attention_norm, ROWS).weight.shape == (16,)
        assert packed(tiny().decoder, ROWS).__class__ is type(decoder)
        exact = tiny().decoder  # float64
        assert packed(exact, ROWS) is exact
        with monkeypatch.context() as patch:
            patch.setattr(torch.backends.mkl, "is_available", lambda: False)
            assert packed(decoder, ROWS) is decoder
        monkeypatch.setattr(packed_linear, "_OPERATORS", ("_mkl_linear", "no_longer_there"))
        assert packed(decoder, ROWS) is decoder


@pytest.mark.parametrize("fusion", ["gate", "decay"])
@torch.no_grad()
def test_steps_with_packed_weights_equal_teacher_forcing(in_single, images, fusion):
    captioner = in_single(fusion=fusion)
    memory = images.encoded(captioner)
    tokens = torch.randint(4, 11, (3, 4, 5))
    expected = captioner(memory, tokens)
    state = captioner.start(memory, rows_per_image=4)
    assert isinstance(state.decoder.output, PackedLinear)
    for place in range(5):
        output = captioner.step(tokens[:, :, place].flatten(), state)
        state = output.state
        torch.testing.assert_close(
            output.log_probs, expected[:, :, place].flatten(0, 1), rtol=1e-4, atol=1e-5
        )


def test_a_search_finds_what_one_without_packed_weights_finds(in_single, images, monkeypatch):
    captioner = in_single()
    memory = images.encoded(captioner)
    found = beam_search(captioner, memory, beam_size=5, max_length=6)
    monkeypatch.setattr(packed_linear, "FEWEST_ROWS", 1000)
    plain = beam_search(captioner, memory, beam_size=5, max_length=6)
    assert [[beam.tokens for beam in beams] for beams in found] == [
        [beam.tokens for beam in beams] for beams in plain
    ]


def test_captions_that_are_begun_later_use_the_weights_of_then(in_single, images):
    captioner = in_single()
    memory = images.encoded(captioner)
    first = beam_search(captioner, memory, beam_size=5, max_length=3)
    with torch.no_grad():
        captioner.decoder.output.bias[7] += 100
        captioner.decoder.output.weight[7] = 0
    later = beam_search(captioner, memory, beam_size=5, max_length=3)
    assert first[0][0].tokens != (7, 7, 7)
    assert later[0][0].tokens == (7, 7, 7)


@torch.no_grad()
def test_weights_that_stay_are_packed_once_for_each_number_of_rows(in_single):
    decoder, unchanged = in_single().decoder, UnchangedWeights()
    with unchanged:
        first = packed(decoder, ROWS)
    with unchanged:
        assert packed(decoder, ROWS) is first
        other = packed(decoder, 2 * ROWS)
        assert other is not first
        assert packed(decoder, 2 * ROWS) is other
        assert packed(decoder, 1) is decoder
    assert packed(decoder, 2 * ROWS) is not other
    with UnchangedWeights():
        assert packed(decoder, 2 * ROWS) is not other


@torch.no_grad()
def test_nothing_is_kept_after_an_error(in_single):
    decoder = in_single().decoder
    with pytest.raises(KeyError), UnchangedWeights():
        first = packed(decoder, ROWS)
        raise KeyError
    assert packed(decoder, ROWS) is not first


def test_a_kept_search_finds_the_same_again(in_single, images):
    captioner = in_single()
    memory = images.encoded(captioner)
    alone = beam_search(captioner, memory, beam_size=5, max_length=6)
    unchanged = UnchangedWeights()
    for _ in range(2):
        with unchanged:
            assert beam_search(captioner, memory, beam_size=5, max_length=6) == alone
