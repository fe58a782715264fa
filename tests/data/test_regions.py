from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from a2cap.data.regions import top_scoring
from tests.data.batches.items import make_regions


@given(count=st.integers(1, 20), most=st.integers(1, 25), levels=st.integers(1, 20))
def test_the_top_scoring_regions_keep_their_order(count, most, levels):
    regions = make_regions("3", count=count)
    # few score levels, so that there are ties
    regions = replace(regions, scores=np.round(regions.scores * levels).astype(np.float32))
    kept_regions = top_scoring(regions, most)
    ranked = sorted(range(count), key=lambda index: (-regions.scores[index], index))
    kept = sorted(ranked[:most])
    assert len(kept_regions) == min(count, most)
    for name in ("boxes", "features", "scores", "class_ids", "attribute_ids"):
        np.testing.assert_array_equal(getattr(kept_regions, name), getattr(regions, name)[kept])


def test_without_a_limit_all_regions_are_kept():
    regions = replace(make_regions("3", count=5), attribute_ids=None)
    assert top_scoring(regions, None) is regions
    assert top_scoring(regions, 2).attribute_ids is None
