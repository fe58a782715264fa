"""Settings that all trainings share."""

from typing import Annotated

from pydantic import Field

from a2cap.data.data_config import Section
from a2cap.pipeline.runtime.runtime_config import Precision

NO_EFFECT = "checkpoint_every"
"""Field that cannot change a result: it is in no key."""

Count = Annotated[int, Field(ge=1, le=10**9)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what every generator of random numbers accepts


class TrainingConfig(Section):
    """Base of the sections `train`, `scst`, `detector` and `encoder`."""

    seed: Seed = 0
    """Seed of everything random in the training."""
    epochs: Annotated[int, Field(ge=0, le=10**9)]
    """Most epochs; training ends earlier when `patience` runs out."""
    patience: Count = 5
    """Epochs without a better validation score after which training ends. Those of the warm-up and
    those before the first score above 0 do not count."""
    batch_size: Count = 10
    """Images per update, over all ranks."""
    accumulate: Annotated[int, Field(ge=1, le=1000)] = 1
    """Parts into which a batch is split to save memory. The gradient is that of the whole batch,
    except for rounding and random draws."""
    precision: Precision = "fp32"
    """fp32. tf32: float32 matrix products are rounded to 10 bits on a GPU; same as fp32 on a CPU.
    bf16: matrix products in bfloat16; parameters, masks and losses stay in float32, and validation
    computes in float32. auto: bf16 on a GPU of CUDA 8.0 or later and on a CPU with AVX512_BF16 (all
    with AMX have it), otherwise fp32; stages, keys and results contain the choice."""
    deterministic: bool = False
    """Use only operations of torch that give equal bits each time, which resuming bit for bit on a
    GPU needs; slower there. An operation without such a form is an error. A CPU needs no switch."""
    lr: Annotated[float, Field(gt=0)]
    """Learning rate."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest gradient norm; null does not clip."""
    checkpoint_every: Count = 1000
    """Steps between checkpoints; one is also written at the end of each epoch. Not in the key."""
    max_validation_images: Count | None = None
    """Validation images used each epoch, the first of the annotations; null uses all."""

    @property
    def warmup_updates(self) -> int:
        """Updates over which the learning rate rises, 0 without a warm-up."""
        return 0
