"""Generated scenes: images whose objects and captions are known."""
