"""Pictures of curves."""

from matplotlib.figure import Figure

from a2cap.pipeline.analysis import figures
from a2cap.pipeline.analysis.figures import Curve, write_curves


def test_a_curve_has_its_colour_in_every_panel(tmp_path, monkeypatch):
    drawn = []

    class Recorded(Figure):
        def __init__(self, **settings):
            super().__init__(**settings)
            drawn.append(self)

    monkeypatch.setattr(figures, "Figure", Recorded)
    points = [(1.0, 0.5), (2.0, 0.25)]
    both, last = [Curve("max", points), Curve("gate", points)], [Curve("gate", points)]
    write_curves(tmp_path / "a.png", {"both": both, "last": last}, x_label="x", y_label="y")
    colours = []
    for axis in drawn[0].axes:
        bars, names = axis.get_legend_handles_labels()
        colours.append({name: bar[0].get_color() for bar, name in zip(bars, names, strict=True)})
    assert colours[1] == {"gate": colours[0]["gate"]}
    assert colours[0]["gate"] != colours[0]["max"]
