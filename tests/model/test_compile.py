import pytest
import torch

from a2cap.model import compile as compilation
from a2cap.model.compile import compile_layers
from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.losses import two_losses


def _losses(captioner, images):
    return two_losses(captioner, images.encoded(captioner), images.captions)


@pytest.fixture
def compiler(monkeypatch):
    """Puts a stand-in in the place of torch.compile: it breaks, or counts the calls."""
    calls = []

    def install(error=None):
        def compile_(forward, *, dynamic, backend):
            def compiled(*arguments, **named):
                calls.append(forward)
                if error is not None:
                    raise error
                return forward(*arguments, **named)

            return compiled

        monkeypatch.setattr(compilation.torch, "compile", compile_)
        return calls

    return install


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # raised inside torch
def test_traced_layers_have_the_losses_and_gradients_of_untraced_ones(tiny, images):
    captioner = tiny(encoder_layers=1, decoder_layers=1).float()
    images.features, images.boxes = images.features.float(), images.boxes.float()
    found = []
    said: list[str] = []
    for compiled in (False, True):
        if compiled:
            compile_layers(captioner, say=said.append, backend="aot_eager")
        captioner.zero_grad()
        losses = _losses(captioner, images)
        losses.total().backward()
        gradients = [parameter.grad.clone() for parameter in captioner.parameters()]
        found.append([losses.caption.detach(), losses.mask.detach(), *gradients])
    assert said == []
    for eager, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, eager, rtol=1e-4, atol=1e-5)


def test_compiling_changes_no_name_and_runs_every_layer_that_takes_gradients(
    tiny, images, compiler
):
    calls = compiler()
    captioner, said = tiny(), []
    names = list(captioner.state_dict())
    expected = _losses(captioner, images).total()
    compile_layers(captioner, say=said.append)
    assert list(captioner.state_dict()) == names
    assert torch.equal(_losses(captioner, images).total(), expected)
    encoder, shared, aligned, perturbed = 2, 1, 3, 3
    assert len(calls) == encoder + shared + aligned + perturbed
    assert said == []


def test_decoding_is_not_compiled(tiny, images, compiler):
    calls = compiler()
    captioner = tiny()
    compile_layers(captioner, say=pytest.fail)
    with torch.no_grad():
        beam_search(captioner, images.encoded(captioner), max_length=3)
    assert calls == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no C++ compiler\nset CXX"), "no C++ compiler"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)
def test_where_compiling_fails_the_model_runs_on_and_says_so_once(
    tiny, images, compiler, error, reason
):
    calls = compiler(error)
    captioner, said = tiny(), []
    expected = _losses(captioner, images).total()
    compile_layers(captioner, say=said.append)
    for _ in range(2):
        assert torch.equal(_losses(captioner, images).total(), expected)
    assert said == [f"torch.compile failed, the model runs uncompiled: {reason}"]
    assert len(calls) == 1


def test_what_is_wrong_uncompiled_too_is_raised_as_it_is(tiny, images, compiler):
    compiler(RuntimeError("of the compiler"))
    captioner, said = tiny(mask_network="linear", mask_slots=5), []
    compile_layers(captioner, say=said.append)
    memory = images.encoded(captioner)
    with pytest.raises(TypeError, match="missing"):
        captioner.decoder.layers[0].look(memory.states)
    assert len(said) == 1
