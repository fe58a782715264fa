import pytest
from pydantic import ValidationError

from a2cap.extract.extract_config import ExtractConfig


def test_defaults_are_the_published_extractor():
    config = ExtractConfig()
    assert config.weights is None
    assert (config.min_side, config.max_side) == (600, 1000)
    assert (config.proposals, config.roi_size, config.confidence) == (300, 14, 0.2)
    assert (config.min_regions, config.max_regions) == (10, 100)


def test_all_contradictions_are_reported_at_once():
    with pytest.raises(ValidationError) as error:
        ExtractConfig(min_regions=50, max_regions=36, proposals=40, min_side=2000)
    for problem in (
        "min_regions is 50, above max_regions, 36; lower min_regions or raise max_regions",
        "min_regions is 50, above proposals, 40; lower min_regions or raise proposals",
        "min_side is 2000, above max_side, 1000; lower min_side or raise max_side",
    ):
        assert problem in str(error.value)


@pytest.mark.parametrize(
    "field", ["min_regions", "max_regions", "proposals", "min_side", "roi_size"]
)
def test_counts_are_positive(field):
    with pytest.raises(ValidationError, match=field):
        ExtractConfig(**{field: 0})


def test_detectron2_computes_in_float32_only():
    message = "backend detectron2 computes in float32 only; set precision=exact or backend=native"
    with pytest.raises(ValidationError, match=message):
        ExtractConfig(backend="detectron2", precision="mixed")
