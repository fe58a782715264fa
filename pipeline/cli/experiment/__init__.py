"""Commands that run the stages of an experiment."""
