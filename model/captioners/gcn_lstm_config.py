"""Settings of GCN-LSTM."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from a2cap.model.captioners.captioner_settings import ADAM, Rate, Recipe
from a2cap.model.captioners.recurrent.up_down_config import UpDownConfig


class GcnLstmConfig(UpDownConfig):
    """Options of GCN-LSTM (Yao et al. 2018); its decoder has the sizes of Up-Down."""

    # their code of 2021 (X-modaler at gcn.yaml); the paper has 30,000 updates of 1,024 captions
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "authors": {
            "model": {"dropout": 0.5},
            "train": {
                **ADAM,
                "lr": 5e-4,
                "epochs": 55,
                "batch_size": 1024,
                "captions_per_image": 1,
            },
        },
        "modern": UpDownConfig.recipes["modern"],
    }

    kind: Literal["gcn-lstm"] = "gcn-lstm"  # type: ignore[assignment]
    """Kind of captioner; the other fields of this section depend on it."""

    graph: Literal["spatial", "semantic"] = "spatial"
    """Edges of the graph: spatial relations of the boxes, or relations that were predicted for the
    stored regions, which "a2 convert --relations" adds. The paper fuses a captioner of each by
    `evaluate.ensemble`."""

    relations: Annotated[int, Field(gt=0, le=10**5)] = 20
    """Number of labels of the semantic graph; the paper has the 20 most frequent predicates."""

    residual: bool = True
    """Add each region to its convolution before the ReLU, as the authors' code does; the equations
    of the paper do not."""

    neighbours: Literal["sum", "mean"] = "sum"
    """Sum over the regions that a region is related to, and over those related to it, as in the
    equations, or the mean of each. Of many regions the sum saturates the decoder's LSTM."""

    dropout: Rate = 0.5
    """Dropout rate of the regions after the convolution, of embedded tokens and of the state before
    the output layer; the authors' code drops no embedded tokens."""

    initial: Literal["authors", "uniform"] = "uniform"
    """Initial values of the decoder, by default as in the authors' code. uniform: torch's, layers
    within 1 / sqrt(inputs) of 0 and embeddings N(0, 1); authors: those of Up-Down's."""

    @property
    def needs(self) -> Mapping[str, tuple[str, str]]:
        """Return the need of the semantic graph."""
        if self.graph == "spatial":
            return {}
        return {"relations": ("graph=semantic", "graph=spatial")}
