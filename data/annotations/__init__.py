"""Images and captions as annotation files list them."""
