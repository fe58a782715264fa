"""Grid features of timm's networks; skipped without timm (`a2cap[timm]`)."""

import socket
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from a2cap.data.errors import ConfigError
from a2cap.extract import timm_backbone
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.extractor import load_extractor
from a2cap.extract.grid import grid_width
from tests.data.messages import message_of
from tests.extract.tiny import refusal

needs_timm = pytest.mark.skipif(not find_spec("timm"), reason='needs pip install "a2cap[timm]"')


def config(name, **more):
    return ExtractConfig(boxes="grid", grid_backbone=f"timm/{name}", grid_size=7, **more)


@pytest.fixture
def network(tmp_path):
    """Return a function that writes random weights of a network; return both."""
    timm = pytest.importorskip("timm")

    def make(name):
        torch.manual_seed(0)
        made = timm.create_model(name, pretrained=False).eval()
        torch.save(made.state_dict(), tmp_path / f"{name}.pth")
        return made, tmp_path / f"{name}.pth"

    return make


def test_without_timm_the_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(timm_backbone, "import_module", missing)
    assert message_of(grid_width, config("resnet10t"), error=ConfigError) == (
        'extract.grid_backbone=timm/resnet10t needs timm; install it with pip install "a2cap[timm]"'
    )


def test_other_names_are_rejected():
    for name in ("timm/", "timm/a/b", "hub/resnet18", "resnet19"):
        with pytest.raises(ValidationError, match="grid_backbone"):
            ExtractConfig(grid_backbone=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "swin_s3_tiny_224"])
def test_cells_are_the_pooled_last_map(network, make_image, monkeypatch, name):
    monkeypatch.setattr(socket.socket, "connect", lambda *given: pytest.fail("a download"))
    made, weights = network(name)
    extractor = load_extractor(weights, config=config(name))
    facts = made.pretrained_cfg
    regions = extractor(make_image(0, 80, 120))
    assert regions.features.shape == (49, made.num_features)
    assert (regions.width, regions.height) == (120, 80)
    blob = torch.zeros(1, 3, *facts["input_size"][1:])
    with torch.inference_mode():
        tokens = extractor._map(blob)["map"]
        [expected] = made.forward_intermediates(
            blob, indices=1, intermediates_only=True, output_fmt="NCHW", norm=True
        )
    torch.testing.assert_close(tokens, expected)


@pytest.mark.slow
@needs_timm
def test_clip_and_dino_are_backbones():
    assert grid_width(config("vit_base_patch16_clip_224")) == 768
    assert grid_width(config("vit_small_patch14_dinov2")) == 384


@pytest.mark.slow
@needs_timm
def test_unknown_networks_are_refused():
    message = message_of(grid_width, config("no_such_net"), error=ConfigError)
    assert message.startswith("timm has no network 'no_such_net' (extract.grid_backbone): ")
    assert message.endswith("; see timm.list_models()")


@pytest.mark.slow
@needs_timm
def test_a_network_whose_map_is_not_its_last_tokens_is_refused():
    message = message_of(grid_width, config("volo_d1_224"), error=ConfigError)
    assert message.startswith("timm/volo_d1_224 takes no images of 224 pixels a side: shape ")
    assert message.endswith("; set extract.grid_backbone to another")


@pytest.mark.slow
def test_weights_of_another_network_are_refused(network):
    # of the deeper one every tensor of the other has a namesake
    for saved, named in (("resnet10t", "resnet14t"), ("resnet14t", "resnet10t")):
        _, weights = network(saved)
        message = refusal(load_extractor, weights, config=config(named))
        assert message.startswith(f"weights do not fit timm/{named}: ")
        assert message.endswith("; name its state dict, or correct extract.grid_backbone")


@pytest.mark.slow
def test_saved_weights_give_the_same_features(network, make_image, tmp_path):
    _, weights = network("resnet10t")
    first = load_extractor(weights, config=config("resnet10t"))
    first.save(tmp_path / "saved.safetensors")
    again = load_extractor(tmp_path / "saved.safetensors", config=config("resnet10t"))
    assert again.record(tmp_path / "saved.safetensors").summary == "7 x 7 grid of timm/resnet10t"
    image = make_image(0, 80, 120)
    assert np.array_equal(first(image).features, again(image).features)
