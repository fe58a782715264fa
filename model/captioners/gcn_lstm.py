"""GCN-LSTM (Yao et al. 2018, "Exploring Visual Relationship", arXiv:1809.07041).

A graph convolution over the regions, whose edges are the spatial relations of their boxes or
predicted relations (the semantic graph), and the decoder of Up-Down. With N(i) the regions related
to region i, rho a ReLU and W by direction:

    v_i' = rho(sum_j g_ij (W_dir(i,j) v_j + b_lab(i,j)))     (Eq. 3; j in N(i) and i itself)
    g_ij = sigmoid(w_dir(i,j) v_j + c_lab(i,j))              (Eq. 4)

The numbers of the equations are those of the paper as others quote it; its text was not at hand.
Directions are from i to j, from j to i, and i to itself. The authors' code (github.com/YehLi/
xmodaler) shares the biases of both directions and adds v_i before the ReLU (`residual`).

Boxes are shares of the image's sides, so angles and distances are those of the image scaled to a
square; the paper measures pixels. The paper trains a captioner on each graph and fuses them at
inference, p = a p_spatial + (1 - a) p_semantic (Eq. 11), an ensemble with weights here.
"""

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from a2cap.model.captioners.encoder_decoder import BOX_VALUES, EncoderDecoder, Sizes, is_readable
from a2cap.model.captioners.gcn_lstm_config import GcnLstmConfig
from a2cap.model.captioners.recurrent.recurrent_decoder import RegionFeatures
from a2cap.model.captioners.recurrent.up_down import UpDownDecoder
from a2cap.model.errors import ModelError

INSIDE, COVER, OVERLAP, DIRECTIONS = 1, 2, 3, 8
RELATIONS = OVERLAP + DIRECTIONS
"""Labels 1 to 11: inside, cover, overlap, and eight directions of 45 degrees; 0 is no edge."""


def spatial_relations(boxes: Tensor, region_mask: Tensor) -> Tensor:
    """Return the label of each ordered pair of regions, (B, R, R) int64; 0 for no edge.

    boxes: (B, R, 5) x1 y1 x2 y2 in shares of the image, and the area.
    region_mask: (B, R) bool. Label [b, i, j] is that of region i to region j.
    """
    low, high = boxes[..., :2], boxes[..., 2:4]
    # pairs: first axis i, second axis j
    low_i, high_i, low_j, high_j = low[:, :, None], high[:, :, None], low[:, None], high[:, None]
    inside = ((low_i >= low_j) & (high_i <= high_j)).all(dim=-1)  # -> (B, R, R)
    shared = (torch.minimum(high_i, high_j) - torch.maximum(low_i, low_j)).clamp(min=0).prod(dim=-1)
    areas = (high - low).prod(dim=-1)
    union = areas[:, :, None] + areas[:, None] - shared
    centre = (low + high) / 2
    x, y = (centre[:, None] - centre[:, :, None]).unbind(dim=-1)  # from i to j
    # angles in (0, 360]: the direction of 0 degrees is the last one
    turn = torch.atan2(-y, x).remainder(2 * math.pi) / (math.pi / 4)
    direction = torch.where(turn == 0, float(DIRECTIONS), turn.ceil()).clamp(1, DIRECTIONS)
    # half the diagonal of the unit square
    is_near = x.square() + y.square() <= 0.5
    labels = torch.where(is_near, OVERLAP + direction.long(), 0)
    labels = torch.where(shared >= 0.5 * union, OVERLAP, labels)
    labels = torch.where(inside.transpose(1, 2), COVER, labels)
    labels = torch.where(inside, INSIDE, labels)
    exist = region_mask[:, :, None] & region_mask[:, None]
    itself = torch.eye(boxes.shape[1], dtype=torch.bool, device=boxes.device)
    return labels.masked_fill(~exist | itself, 0)


def semantic_relations(boxes: Tensor, region_mask: Tensor, count: int) -> Tensor:
    """Return the predicted labels of each ordered pair of regions, (B, R, R) int64; 0 for no edge.

    boxes: (B, R, 6 + N): after box and area a region's number, and the label of its relation to
    each of N regions by number. region_mask: (B, R) bool; count: of the labels. Raises ModelError
    without relations and, on a CPU, for a label above count.
    """
    if boxes.shape[-1] <= BOX_VALUES:
        raise ModelError(
            "the regions have no relations, which model.graph=semantic needs; add them to the "
            "features with a2 convert --relations FILE, or set model.graph=spatial"
        )
    related = boxes[..., BOX_VALUES:].masked_fill(~region_mask[..., None], 0).long()
    numbers, by_number = related[..., 0], related[..., 1:]
    if is_readable(by_number) and (most := int(by_number.max())) > count:
        raise ModelError(
            f"a relation has the label {most}, model.relations is {count}; set model.relations to "
            f"at least {most}"
        )
    columns = numbers[:, None].expand(-1, boxes.shape[1], -1)
    exist = region_mask[:, :, None] & region_mask[:, None]
    return by_number.gather(2, columns).masked_fill(~exist, 0)


class GraphConvolution(nn.Module):
    """Graph convolution with a gate for each edge; (B, R, F) -> (B, R, F), 0 on padding."""

    def __init__(self, config: GcnLstmConfig, *, feature_width: int):
        super().__init__()
        self.features = RegionFeatures(blind=config.blind)
        self.residual, self.graph = config.residual, config.graph
        self.averages = config.neighbours == "mean"
        labels = config.relations if config.graph == "semantic" else RELATIONS
        self.itself = nn.Linear(feature_width, feature_width)
        self.to_object = nn.Linear(feature_width, feature_width, bias=False)
        self.to_subject = nn.Linear(feature_width, feature_width, bias=False)
        self.gate = nn.Linear(feature_width, 1)
        # of the regions that a region is related to, and of those that are related to it
        self.edge_gates = nn.Linear(feature_width, 2, bias=False)
        self.bias = nn.Parameter(torch.zeros(labels, feature_width))
        self.gate_bias = nn.Parameter(torch.zeros(labels))
        self.dropout = nn.Dropout(config.region_dropout(config.dropout))

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Convolve (B, R, F) features over the graph of their boxes or relations."""
        states = self.features(features, boxes, region_mask)
        if self.graph == "semantic":
            labels = semantic_relations(boxes, region_mask, len(self.bias))
        else:
            labels = spatial_relations(boxes, region_mask)
        convolved = self.gate(states).sigmoid() * self.itself(states)
        outer, inner = self.edge_gates(states).unbind(dim=-1)  # -> (B, R) each
        edge = (labels > 0).to(states.dtype)
        bias = self.gate_bias[(labels - 1).clamp(min=0)]  # -> (B, R, R), of no edge unused
        # edge i to j read by i, and the same edge read by j
        outgoing = (outer[:, None] + bias).sigmoid() * edge
        incoming = ((inner[:, :, None] + bias).sigmoid() * edge).transpose(1, 2)
        convolved = convolved + self._gather(outgoing, self.to_object(states), labels)
        reverse = labels.transpose(1, 2)
        convolved = convolved + self._gather(incoming, self.to_subject(states), reverse)
        convolved = convolved + states if self.residual else convolved
        kept: Tensor = self.dropout(convolved.relu()).masked_fill(~region_mask[..., None], 0)
        return kept

    def _gather(self, gates: Tensor, values: Tensor, labels: Tensor) -> Tensor:
        """Sum or average g_ij (values_j + b_lab), (B, R, F), without a tensor of (B, R, R, F)."""
        of_label = gates.new_zeros(*gates.shape[:2], len(self.bias) + 1)
        of_label = of_label.scatter_add(2, labels, gates)  # -> (B, R, labels)
        gathered: Tensor = gates @ values + of_label[..., 1:] @ self.bias
        if self.averages:
            gathered = gathered / (labels > 0).sum(dim=2, keepdim=True).clamp(min=1)
        return gathered


class GcnLstmCaptioner(EncoderDecoder):
    """Graph convolution and the Up-Down decoder."""

    decoder: UpDownDecoder
    encoder: GraphConvolution

    def __init__(self, config: GcnLstmConfig, **sizes: Unpack[Sizes]):
        width = sizes["feature_width"]
        encoder = GraphConvolution(config, feature_width=width)
        decoder = UpDownDecoder(
            config, feature_width=width, vocabulary_size=sizes["vocabulary_size"]
        )
        super().__init__(config, encoder, decoder, **sizes)

    @property
    def reads_relations(self) -> bool:
        """Report whether its graph is the semantic one."""
        return self.encoder.graph == "semantic"

    @property
    def state_width(self) -> int:
        """Width of the features, which the convolution keeps."""
        return self.feature_width
