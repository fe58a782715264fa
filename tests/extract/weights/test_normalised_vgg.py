import numpy as np
import pytest
import torch
import torch.nn.functional as F

from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.extractor import load_extractor
from a2cap.extract.weights.normalised_vgg import is_normalised_vgg, torchvision_tensors
from tests.extract.tiny import refusal

POOLS = {2, 4, 8, 12}
"""Numbers of convolutions below a pooling."""
WIDTHS = (64,) * 2 + (128,) * 2 + (256,) * 4 + (512,) * 8
THEIRS = (2, 5, 9, 12, 16, 19, 22, 25, 29, 32, 35, 38, 42, 45, 48, 51)
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def network(widths: tuple[int, ...], bias: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return random tensors in the layout of the file; the first layer maps RGB to BGR * 255."""
    drawn = torch.Generator().manual_seed(0)
    tensors = {"0.weight": 255 * torch.eye(3).flip(0)[:, :, None, None], "0.bias": bias}
    for layer, inputs, outputs in zip(THEIRS, (3, *widths), widths, strict=False):
        scale = (9 * inputs / 2) ** -0.5 / (150 if layer == 2 else 1)
        tensors[f"{layer}.weight"] = scale * torch.randn(outputs, inputs, 3, 3, generator=drawn)
        tensors[f"{layer}.bias"] = 0.1 * torch.randn(outputs, generator=drawn)
    return tensors


def last_map(tensors: dict[str, torch.Tensor], rgb: torch.Tensor) -> torch.Tensor:
    """Return relu5_4 of the network as its file has it, padded with 0. rgb: (1, 3, H, W) 0 to 1."""
    x = F.conv2d(rgb, tensors["0.weight"], tensors["0.bias"])
    for number, layer in enumerate(THEIRS):
        if number in POOLS:
            x = F.max_pool2d(x, 2)
        x = F.conv2d(x, tensors[f"{layer}.weight"], tensors[f"{layer}.bias"], padding=1).relu()
    return x


def test_the_first_layer_is_folded_into_the_first_convolution():
    tensors = network((4,) * 16, torch.tensor([-103.939, -116.779, -123.68]))
    assert is_normalised_vgg(tensors)
    folded = torchvision_tensors(tensors, MEAN, DEVIATION)
    assert len(folded) == 32 and torch.equal(folded["features.34.bias"], tensors["51.bias"])
    rgb = torch.rand(1, 3, 9, 7)
    theirs = F.conv2d(rgb, tensors["0.weight"], tensors["0.bias"])
    theirs = F.conv2d(theirs, tensors["2.weight"], tensors["2.bias"])
    normalised = (rgb - MEAN[:, None, None]) / DEVIATION[:, None, None]
    ours = F.conv2d(normalised, folded["features.0.weight"], folded["features.0.bias"])
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_the_file_extracts_the_last_map_of_its_network(tmp_path, make_image):
    # with torchvision's mean both pad with the same colour
    tensors = network(WIDTHS, -255 * MEAN.flip(0))
    path = tmp_path / "vgg_normalized.pth"
    torch.save(tensors, path)
    config = ExtractConfig(
        boxes="grid", grid_backbone="vgg19", grid_layer="features.35", min_side=112, grid_size=7
    )
    image = make_image(0, 112, 112)
    regions = load_extractor(path, config=config)(image)
    rgb = torch.from_numpy(np.ascontiguousarray(image[:, :, ::-1].transpose(2, 0, 1))) / 255
    expected = last_map(tensors, rgb[None])[0].flatten(1).T.numpy()
    assert expected.std() > 0.01
    np.testing.assert_allclose(regions.features, expected, rtol=2e-3, atol=2e-3)
    message = refusal(
        load_extractor, path, config=config.model_copy(update={"grid_backbone": "vgg16"})
    )
    assert message == (
        "weights do not fit vgg16: 6 tensors are missing, unknown or of another shape, "
        "first features.17.bias; name its state dict, or correct extract.grid_backbone"
    )
