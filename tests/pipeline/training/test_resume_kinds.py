"""Every kind of captioner resumes exactly, with dropout and a penalty where it has them."""

import signal
from dataclasses import replace

import pytest
import yaml

from a2cap.model.alignment_config import AlignmentConfig
from tests.model.kinds import KINDS, VARIANTS
from tests.pipeline.training.runs import assert_equal_results, events, metrics, outcome

OPTIONS = (
    *("train.ema=0.9", "train.label_smoothing=0.1", "train.schedule=cosine", "train.lr=0.01"),
    *("train.scheduled_sampling=0.5", "train.scheduled_sampling_epochs=1", "train.warmup=2"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [kind for kind in (*KINDS, *VARIANTS) if kind not in ("transformer", "spatial")]
)
def test_a_stopped_training_of_a_kind_ends_as_an_uninterrupted_one(train, tmp_path, signals, kind):
    settings = yaml.safe_load(train.config_file.read_text())
    make = {**KINDS, **VARIANTS}[kind]
    model = make(alignment=AlignmentConfig())
    rates = {"feature_dropout": 0.3, "dropout": 0.3, "attention_dropout": 0.2}
    if kind == "hard attention":
        del rates["attention_dropout"]
    fields = {name: rate for name, rate in rates.items() if name in type(model).model_fields}
    model = make(alignment=AlignmentConfig(), **fields)
    if kind == "hard attention":  # as its authors train
        settings["train"] |= {"grouping": "length", "optimiser": "rmsprop"}
        settings["train"] |= {"epochs": 2, "batch_size": 24}
    config_file = tmp_path / "kind.yaml"
    config_file.write_text(yaml.safe_dump({**settings, "model": model.model_dump(mode="json")}))
    train = replace(train, config_file=config_file)
    uninterrupted = train(tmp_path / "uninterrupted", *OPTIONS)
    found = tmp_path / "stopped"
    signals[0, 3] = [signal.SIGINT]
    assert outcome(lambda: train(found, *OPTIONS)) == signal.SIGINT
    signals.clear()
    train(found, *OPTIONS)
    assert [event["step"] for event in events(found, "resume")] == [3]
    assert_equal_results(found, uninterrupted)
    assert all(line["label_smoothing"] for line in metrics(found))
    penalties = {"show-attend-tell": "doubly_stochastic", "hard attention": "reinforce"}
    for name, penalty in penalties.items():
        assert all((penalty in line) == (kind == name) for line in metrics(found))
