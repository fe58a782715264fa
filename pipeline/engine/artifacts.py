"""Names of the stages and of the files that each writes into its artifacts folder."""

CALIBRATE = "calibrate"
EXTRACT = "extract"
PREPROCESS = "preprocess"
TRAIN_XE = "train-xe"
TRAIN_SCST = "train-scst"
TRAIN_DETECTOR = "train-detector"
EVALUATE = "evaluate"

# calibrate, extract
WEIGHTS = "weights.safetensors"
FEATURES, EXTRACTOR = "features.lmdb", "extractor.json"

# preprocess
VOCABULARY, CAPTIONS = "vocabulary.json", "captions.h5"
REFERENCES, DOCUMENT_FREQUENCIES = "references.json", "document_frequencies.npz"

# train-xe, train-scst
CAPTIONER = ("model.safetensors", "model.json", VOCABULARY, EXTRACTOR)

# train-detector
DETECTOR, DETECTOR_FIGURES, DETECTOR_NAMES = "detector.safetensors", "figures.json", "names.json"

# evaluate
RESULTS, METRICS, REPORT = "captions.json", "metrics.json", "report.html"
ATTENTION = "attention.h5"
PER_IMAGE = "per_picture.json"
FURTHER_MODEL = "model."
"""Prefix of the inputs that are further captioners of an ensemble."""
