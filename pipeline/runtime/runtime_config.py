"""Configuration of the section `runtime`."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from a2cap.data.data_config import Section

Precision = Literal["fp32", "tf32", "bf16", "auto"]


def _switch(value: object) -> object:
    """Return the word that YAML reads as a truth value."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class RuntimeConfig(Section):
    """Settings of the machine; none of them is part of a stage's key."""

    device: str = "auto"
    """auto (an NVIDIA GPU if there is one, else the CPU), cpu, cuda, cuda:N, or mps."""
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Threads that load the next batches, or in extraction (at least one) decode images."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads of torch; null keeps torch's default."""
    compile: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)] = "off"
    """Compile the updates of captioners with torch.compile: auto only on a GPU, which otherwise
    waits for the processor, and not in trainings with `deterministic`. Off until it has run on one.
    Needs a C++ compiler, on a GPU Triton; without them updates run uncompiled. Batches are padded
    to few shapes: results change by rounding, and dropout draws other masks."""
    ray: str | None = None
    """Address of the Ray cluster that runs the shards of an extraction as tasks, or `auto` for that
    of RAY_ADDRESS, or else a new one on this machine; null extracts in this process."""
    name: Annotated[str, Field(max_length=60)] | None = None
    """Name of the run in tables and titles; null takes that of the configuration file."""
