"""One file or folder for each published captioner."""
