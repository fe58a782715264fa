"""Files that the captions of many images are written to."""
