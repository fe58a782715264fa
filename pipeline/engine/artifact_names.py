"""Names of the stages and of the files that they write into the artifacts folder."""

EXTRACT = "extract"
PREPROCESS = "preprocess"
TRAIN_XE = "train-xe"
TRAIN_SCST = "train-scst"
TRAIN_DETECTOR = "train-detector"
TRAIN_ENCODER = "train-encoder"
EVALUATE = "evaluate"

# every stage
EVENTS = "events.jsonl"
RESOLVED_CONFIG = "config.yaml"
"""The whole configuration of the run. The key covers only the fields that the stage reads."""

# extract
WEIGHTS = "weights.safetensors"
FEATURES, EXTRACTOR = "features.lmdb", "extractor.json"

# preprocess
VOCABULARY, CAPTIONS = "vocabulary.json", "captions.h5"
REFERENCES, DOCUMENT_FREQUENCIES = "references.json", "document_frequencies.npz"

# trainings
EPOCHS, CHECKPOINTS, TENSORBOARD = "metrics.jsonl", "checkpoints", "tensorboard"
TRAINING = "training.json"

# train-encoder
ENCODER = "encoder.safetensors"

# train-xe, train-scst
CAPTIONER = ("model.safetensors", "model.json", VOCABULARY, EXTRACTOR)

# train-detector
DETECTOR, DETECTOR_FIGURES, DETECTOR_NAMES = "detector.safetensors", "figures.json", "names.json"

# evaluate
RESULTS, METRICS, REPORT = "captions.json", "metrics.json", "report.html"
ATTENTION = "attention.h5"
PER_IMAGE = "per_image.json"
FURTHER_MODEL = "model."
"""Prefix of the input names of an ensemble's second and later captioners."""


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of a step's checkpoint."""
    return f"step-{step:08d}"
