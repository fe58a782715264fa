"""Every kind of captioner resumes exactly, with dropout and a penalty where it has them."""

import signal
from dataclasses import replace

import pytest
import yaml

from tests.model.kinds import KINDS
from tests.pipeline.training.runs import assert_equal_results, events, metrics, outcome


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "transformer"])
def test_a_stopped_training_of_a_kind_ends_as_an_uninterrupted_one(train, tmp_path, signals, kind):
    settings = yaml.safe_load(train.config_file.read_text())
    model = KINDS[kind]()
    if "dropout" in type(model).model_fields:
        model = KINDS[kind](dropout=0.3)
    config_file = tmp_path / "kind.yaml"
    config_file.write_text(yaml.safe_dump({**settings, "model": model.model_dump(mode="json")}))
    train = replace(train, config_file=config_file)
    uninterrupted = train(tmp_path / "uninterrupted")
    found = tmp_path / "stopped"
    signals[0, 3] = [signal.SIGINT]
    assert outcome(lambda: train(found)) == signal.SIGINT
    signals.clear()
    train(found)
    assert [event["step"] for event in events(found, "resume")] == [3]
    assert_equal_results(found, uninterrupted)
    reported = [line.get("doubly_stochastic", 0.0) for line in metrics(found)]
    assert (min(reported) > 0) == (kind == "show-attend-tell")
