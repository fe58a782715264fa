"""What the model refuses is an error of the user's; what it stumbles over is a fault of ours."""

import pytest

from a2cap.data.errors import A2Error
from a2cap.model.decoding.beam_search import beam_search
from a2cap.pipeline.runtime.model_errors import model_errors


def test_a_refusal_of_the_model_keeps_its_text():
    with pytest.raises(A2Error) as raised, model_errors():
        beam_search(None, None, beam_size=0, max_length=5)
    assert str(raised.value) == "beam size is too small: 0; choose 1 (greedy) or more"
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_fault_stays_what_it_is():
    with pytest.raises(ValueError, match="invalid literal"), model_errors():
        int("seven")


def test_errors_of_this_project_pass():
    with pytest.raises(A2Error, match="as it was"), model_errors():
        raise A2Error("as it was")
