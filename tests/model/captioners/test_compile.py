import pytest
import torch

from a2cap.model.captioners import compile as compilation
from a2cap.model.captioners.compile import compile_captioner
from a2cap.model.losses import two_losses
from tests.model.kinds import make
from tests.model.searching import search


def _losses(captioner, images):
    return two_losses(captioner, images.encoded(captioner), images.captions)


@pytest.fixture
def compiler(monkeypatch):
    """Replace torch.compile by a function that counts its calls or fails."""
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
def test_traced_layers_give_the_losses_and_gradients_of_untraced_ones(tiny, images):
    captioner = tiny(encoder_layers=1, decoder_layers=1).float()
    images.features, images.boxes = images.features.float(), images.boxes.float()
    found = []
    warnings: list[str] = []
    for compiled in (False, True):
        if compiled:
            compile_captioner(captioner, True, warn=warnings.append, backend="aot_eager")
        captioner.zero_grad()
        losses = _losses(captioner, images)
        losses.total().backward()
        gradients = [parameter.grad.clone() for parameter in captioner.parameters()]
        found.append([losses.caption.detach(), losses.mask.detach(), *gradients])
    assert warnings == []
    for eager, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, eager, rtol=1e-4, atol=1e-5)


def test_compilation_keeps_parameter_names_and_covers_every_layer(tiny, images, compiler):
    calls = compiler()
    captioner, warnings = tiny(), []
    names = list(captioner.state_dict())
    expected = _losses(captioner, images).total()
    compile_captioner(captioner, True, warn=warnings.append)
    assert list(captioner.state_dict()) == names
    assert torch.equal(_losses(captioner, images).total(), expected)
    encoder, aligned, perturbed = 2, 4, 4
    assert len(calls) == encoder + aligned + perturbed
    assert warnings == []


@pytest.mark.parametrize(("kind", "layers"), [("m2", 2 + 2), ("spatial", 1 + 2 * 2)])
def test_the_layers_of_m2_and_spatial_are_compiled(images, compiler, kind, layers):
    calls = compiler()
    captioner = make(kind, alignment={"fusion": "none"})
    expected = _losses(captioner, images).total()
    compile_captioner(captioner, True, warn=pytest.fail)
    assert torch.equal(_losses(captioner, images).total(), expected)
    assert len(calls) == layers


def test_a_kind_without_layers_warns(images, compiler):
    calls, warnings = compiler(), []
    captioner = make("gru")
    compile_captioner(captioner, True, warn=warnings.append)
    _losses(captioner, images)
    assert calls == []
    assert warnings == [
        "train.compile has no effect: this kind of captioner has no layers to compile"
    ]


def test_decoding_is_not_compiled(tiny, images, compiler):
    calls = compiler()
    captioner = tiny()
    compile_captioner(captioner, True, warn=pytest.fail)
    with torch.no_grad():
        search(captioner, images.encoded(captioner), max_length=3)
    assert calls == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no C++ compiler\nset CXX"), "no C++ compiler"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)
def test_a_failed_compilation_warns_once_and_runs_uncompiled(tiny, images, compiler, error, reason):
    calls = compiler(error)
    captioner, warnings = tiny(), []
    expected = _losses(captioner, images).total()
    compile_captioner(captioner, True, warn=warnings.append)
    for _ in range(2):
        assert torch.equal(_losses(captioner, images).total(), expected)
    assert warnings == [f"torch.compile failed, the model runs uncompiled: {reason}"]
    assert len(calls) == 1


def test_wrong_arguments_raise_their_own_error(tiny, images, compiler):
    compiler(RuntimeError("compiler error"))
    captioner, warnings = tiny(mask_network="linear", mask_slots=5), []
    compile_captioner(captioner, True, warn=warnings.append)
    memory = images.encoded(captioner)
    with pytest.raises(TypeError, match="missing"):
        captioner.decoder.layers[0].cross_attend(memory.states)
    assert len(warnings) == 1
