"""The feature store: region features of each image in LMDB."""
