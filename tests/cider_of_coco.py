"""CIDEr-D of pycocoevalcap 1.2 with the document frequencies of another corpus."""

from collections.abc import Iterable, Sequence


class Corpus(list[object]):
    """References of a few images with the number of images of a corpus."""

    documents = 0

    def __len__(self) -> int:
        return self.documents


def cider_of_coco(
    images: Iterable[tuple[str, Sequence[str]]], corpus: Sequence[Sequence[str]]
) -> Sequence[float]:
    """Score (caption, references) of each image; corpus: captions of its images, to be counted."""
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    counted, scored = CiderScorer(), CiderScorer()
    for group in corpus:
        counted.cook_append(None, group)
    counted.compute_doc_freq()
    for candidate, references in images:
        scored.cook_append(candidate, references)
    scored.document_frequency = counted.document_frequency
    scored.crefs = Corpus(scored.crefs)
    scored.crefs.documents = len(corpus)
    values: Sequence[float] = scored.compute_cider()
    return values
