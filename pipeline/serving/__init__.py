"""The page on which an image is dropped and captioned, `a2 serve`."""
