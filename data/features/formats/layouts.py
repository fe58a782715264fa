"""The table of layouts: names of the arrays of an image in files of region features.

A layout applies to any container: the columns of a TSV, the members of an npz, the datasets of
HDF5, the keys of a pickled dictionary. To read another one, add a row and, for a TSV without a
header line, its columns.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Layout:
    """Names that a layout gives to what an image has; empty where it has no such array.

    features: (R, F); boxes: (R, 4), without them the regions are the cells of a square grid; count:
    number of regions that are not padding; size: width and height in one array; probabilities:
    (R, C), of which the largest is the score; columns: of a TSV without a header line.
    """

    name: str
    features: str = "features"
    boxes: str = "boxes"
    count: str = ""
    image_id: str = ""
    width: str = ""
    height: str = ""
    size: str = ""
    scores: str = ""
    class_ids: str = ""
    attribute_ids: str = ""
    attribute_scores: str = ""
    probabilities: str = ""
    columns: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """The names of all its arrays."""
        values = (getattr(self, one.name) for one in fields(self)[1:-1])
        return {value for value in values if value}

    def matches(self, names: Collection[str]) -> bool:
        """Return True if features, and boxes unless they are cells, are among the names."""
        return self.features in names and (not self.boxes or self.boxes in names)


CAFFE = Layout(
    "caffe",  # bottom-up-attention @514e561, tools/generate_tsv.py
    count="num_boxes",
    image_id="image_id",
    width="image_w",
    height="image_h",
    columns=("image_id", "image_w", "image_h", "num_boxes", "boxes", "features"),
)
_VL_BERT = ("image_id", "image_h", "image_w", "num_boxes", "boxes", "features", "cls_prob")
LXMERT = Layout(
    "lxmert",  # and airsplay/py-bottom-up-attention @85ec9b7
    count="num_boxes",
    image_id="img_id",
    width="img_w",
    height="img_h",
    scores="objects_conf",
    class_ids="objects_id",
    attribute_ids="attrs_id",
    attribute_scores="attrs_conf",
    columns=(
        *("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
        *("num_boxes", "boxes", "features"),
    ),
)
ATT_BOX = Layout("att-box", features="feat", boxes="box")  # ImageCaptioning.pytorch
MILVLG = Layout(
    "milvlg",  # MILVLG/bottom-up-attention.pytorch @4dbce86, whose `info` is a pickle
    features="x",
    boxes="bbox",
    count="num_bbox",
    width="image_w",
    height="image_h",
)
M2 = Layout("m2", probabilities="cls_prob", size="size")  # `size`: of DLCT
LAYOUTS = (
    CAFFE,
    replace(CAFFE, name="vilbert", columns=(*CAFFE.columns, "cls_prob")),
    replace(CAFFE, name="vl-bert", columns=(*_VL_BERT, "classes")),
    LXMERT,
    ATT_BOX,
    MILVLG,
    M2,
    Layout(
        "mmf", boxes="bbox", count="num_boxes", width="image_width", height="image_height"
    ),  # .npy and _info.npy, or LMDB
    Layout("sides", count="num_boxes", width="width", height="height", scores="scores"),
    Layout("ban", features="image_features", boxes="image_bb", count="num_boxes"),
    Layout("uniter", boxes="norm_bb", scores="conf"),
    Layout("grids", features="grids", boxes="", size="size"),  # DLCT, RSTNet
)
KNOWN_NAMES = frozenset().union(*(layout.names for layout in LAYOUTS))
FEATURE_NAMES = tuple(dict.fromkeys(layout.features for layout in LAYOUTS))


def layout_of(names: Collection[str]) -> Layout | None:
    """Return the layout that has most of the names, the first of equals; None without any."""
    matching = [layout for layout in LAYOUTS if layout.matches(names)]
    return max(matching, key=lambda layout: len(layout.names & {*names}), default=None)


def known_layouts() -> str:
    """List the layouts by their names of features and boxes, for a message."""
    pairs = dict.fromkeys(
        f"{one.features} and {one.boxes}" if one.boxes else one.features for one in LAYOUTS
    )
    return "; ".join(pairs)
