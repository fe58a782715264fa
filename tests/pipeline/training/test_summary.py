"""Tests of the summary of a training."""

from a2cap.pipeline.training.summary import TrainingSummary

SUMMARY = TrainingSummary(
    epochs=12,
    most_epochs=30,
    updates=1200,
    patience=5,
    best_epoch=7,
    selected_by="CIDEr",
    score=0.8125,
    first_lr=1.4e-7,
    last_lr=3.6e-4,
    warmup_updates=300,
    data={"images": 60, "captions": 300},
)


def test_the_sentence_states_the_end_the_best_epoch_the_rates_and_the_warm_up():
    assert SUMMARY.sentence() == (
        "ended after epoch 12 of 30 (no better CIDEr in 5); best epoch 7, CIDEr 0.812; "
        "learning rate 1.4e-07 to 0.00036, 25% of 1,200 updates in the warm-up"
    )


def test_a_summary_is_read_as_it_was_written_and_not_where_it_is_damaged(tmp_path):
    assert TrainingSummary.read(tmp_path) is None
    SUMMARY.write(tmp_path)
    assert TrainingSummary.read(tmp_path) == SUMMARY
    (tmp_path / "training.json").write_text("[1]")
    assert TrainingSummary.read(tmp_path) is None
