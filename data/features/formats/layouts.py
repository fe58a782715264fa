"""The table of layouts: names of the arrays of an image in files of region features.

A layout applies to any container: the columns of a TSV, the members of an npz, the datasets of
HDF5, the keys of a pickled dictionary. To read another one, add a line.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class FeatureLayout:
    """Names of the arrays by field; columns: of a TSV without a header line.

    Fields: features (R, F); boxes (R, 4), without which the regions are the cells of a square grid;
    count, of regions that are not padding; image_id; width and height in pixels, or size with both;
    scores, class_ids, attribute_ids, attribute_scores (R,); probabilities (R, C), of which the
    largest is the score.
    """

    name: str
    fields: Mapping[str, str]
    columns: tuple[str, ...] = ()

    def matches(self, names: Collection[str]) -> bool:
        """Return True if features, and boxes unless they are cells, are among the names."""
        return all(self.fields.get(f, "") in {*names, ""} for f in ("features", "boxes"))

    def by_field(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Return the arrays of the layout by field."""
        return {field: arrays[name] for field, name in self.fields.items() if name in arrays}


def _layout(name: str, arrays: str, *, is_line: bool = False) -> FeatureLayout:
    """Return a layout from names that are those of a field, or NAME=FIELD; "_" is not read."""
    pairs = [word.split("=") for word in arrays.split()]
    fields = {pair[-1]: pair[0] for pair in pairs if pair[-1] != "_"}
    return FeatureLayout(name, fields, tuple(pair[0] for pair in pairs) if is_line else ())


_CAFFE = "image_id image_w=width image_h=height num_boxes=count boxes features"
_VL_BERT = "image_id image_h=height image_w=width num_boxes=count boxes features"
_LXMERT = (
    "img_id=image_id img_h=height img_w=width objects_id=class_ids objects_conf=scores "
    "attrs_id=attribute_ids attrs_conf=attribute_scores num_boxes=count boxes features"
)
_MMF = "features bbox=boxes num_boxes=count image_width=width image_height=height"

# bottom-up-attention @514e561, tools/generate_tsv.py
CAFFE = _layout("caffe", _CAFFE, is_line=True)
# LXMERT, and airsplay/py-bottom-up-attention @85ec9b7
LXMERT = _layout("lxmert", _LXMERT, is_line=True)
# ImageCaptioning.pytorch
ATT_BOX = _layout("att-box", "feat=features box=boxes")
# MILVLG/bottom-up-attention.pytorch @4dbce86, whose `info` is a pickle
MILVLG = _layout("milvlg", "x=features bbox=boxes num_bbox=count image_w=width image_h=height")
M2 = _layout("m2", "features boxes cls_prob=probabilities size")  # `size`: of DLCT
LAYOUTS = (
    CAFFE,
    _layout("vilbert", f"{_CAFFE} cls_prob=_", is_line=True),
    _layout("vl-bert", f"{_VL_BERT} cls_prob=_ classes=_", is_line=True),
    LXMERT,
    ATT_BOX,
    MILVLG,
    M2,
    _layout("mmf", _MMF),  # .npy and _info.npy, or LMDB
    _layout("sides", "features boxes num_boxes=count width height scores"),
    _layout("ban", "image_features=features image_bb=boxes num_boxes=count"),
    _layout("uniter", "features norm_bb=boxes conf=scores"),
    _layout("grids", "grids=features size"),  # DLCT, RSTNet
)
ID_NAMES = ("image_id", "img_id")
KNOWN_NAMES = frozenset(name for layout in LAYOUTS for name in layout.fields.values())
FEATURE_NAMES = tuple(dict.fromkeys(layout.fields["features"] for layout in LAYOUTS))


def layout_of(names: Collection[str]) -> FeatureLayout | None:
    """Return the layout that has most of the names, the first of equals; None without any."""
    matching = [layout for layout in LAYOUTS if layout.matches(names)]
    return max(matching, key=lambda x: len({*x.fields.values()} & {*names}), default=None)


def known_layouts() -> str:
    """List the layouts by their names of features and boxes, for a message."""
    field_names = ([x.fields[f] for f in ("features", "boxes") if f in x.fields] for x in LAYOUTS)
    return "; ".join(dict.fromkeys(map(" and ".join, field_names)))
