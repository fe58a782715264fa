"""Images of several sizes in one pass of the backbone, each with the map that it has alone.

Images are padded at the right and at the bottom. A convolution computes values there, where the
next one must find zeros, as beyond the edge of a single image; so they are set to 0 again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.input import Blob, ScaledSize


def padded_batch(blobs: Sequence[Blob]) -> Tensor:
    """Return inputs of the detector, (3, H, W) each, as (B, 3, H, W) with zeros as padding."""
    height, width = (max(blob.shape[side] for blob in blobs) for side in (1, 2))
    batch = torch.zeros(len(blobs), 3, height, width)
    for own, blob in zip(batch, blobs, strict=True):
        own[:, : blob.shape[1], : blob.shape[2]] = torch.from_numpy(blob)
    return batch


def maps_of_each(network: Detector, batch: Tensor, sizes: Sequence[ScaledSize]) -> list[Tensor]:
    """Return the feature map of each image, (1, C, h, w), as of the image alone.

    batch: (B, 3, H, W) float32, padded; sizes: of the images without padding.
    """
    rows, columns = (
        [_map_sides(side, network) for side in sides]
        for sides in ([s.height for s in sizes], [s.width for s in sizes])
    )
    if len({(size.height, size.width) for size in sizes}) == 1:
        maps = network(batch)
    else:
        inside = {}
        height, width = batch.shape[2:]
        whole = zip(_map_sides(height, network), _map_sides(width, network), strict=True)
        for level, shape in enumerate(whole):
            inside[shape] = mask = batch.new_zeros(len(batch), 1, *shape)
            for index, (down, across) in enumerate(zip(rows, columns, strict=True)):
                mask[index, :, : down[level], : across[level]] = 1
        maps = _with_clear_padding(network, batch, inside)
    return [
        maps[index : index + 1, :, : down[-1], : across[-1]]
        for index, (down, across) in enumerate(zip(rows, columns, strict=True))
    ]


def _with_clear_padding(
    network: Detector, batch: Tensor, inside: dict[tuple[int, int], Tensor]
) -> Tensor:
    """Run the backbone; inside: by the size of a map, (B, 1, h, w), 1 in the images, else 0."""

    def clear(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        return output.mul_(inside[output.shape[2], output.shape[3]])

    # of a bottleneck, only the second convolution has a window of several cells
    seen = ".conv1" if network.architecture.has_bottlenecks else ""
    hooks = [
        module.register_forward_hook(clear)
        for name, module in network.backbone.named_modules()
        if (isinstance(module, nn.Conv2d) or name == "stem") and name.endswith(seen)
    ]
    try:
        maps: Tensor = network(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return maps


def _map_sides(side: int, network: Detector) -> list[int]:
    """Return a side of the stem's convolution, and of stages res2, res3 and res4, in cells."""
    halved = (side + 1) // 2
    pooled = (halved + 1) // 2 if network.meta.stem_pool == "padding 1" else halved // 2
    return [halved, pooled, (pooled + 1) // 2, (pooled + 3) // 4]
