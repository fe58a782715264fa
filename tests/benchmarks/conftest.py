"""The finished experiment of the pipeline's tests."""

from tests.pipeline.conftest import experiment

__all__ = ["experiment"]
