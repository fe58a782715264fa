"""The plan: which stages a changed setting reruns, and why."""


def test_every_stage_of_the_experiment_is_done(experiment):
    plan = experiment.plan()
    assert plan.names == ["calibrate", "extract", "preprocess", "train-xe", "evaluate"]
    assert [plan.status(name).state for name in plan.names] == ["done"] * 5
