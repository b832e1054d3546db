"""The colours of series stay distinguishable for people with colour vision deficiency, in both themes."""

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

TOKENS = (Path(__file__).resolve().parents[2] / "static/css/tokens.css").read_text()
SERIES = re.findall(r"--series-\d: light-dark\((#\w{6}), (#\w{6})\)", TOKENS)
PANEL = re.findall(r"--panel: light-dark\((#\w{6}), (#\w{6})\)", TOKENS)[0]
THEMES = ("light", "dark")
LEAST = 7.0  # 100 times the distance in OKLab; about 2 is just noticeable side by side
Matrix = Sequence[Sequence[float]]
# Machado, Oliveira and Fernandes 2009, severity 1, of linear RGB.
VISION: dict[str, Matrix] = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
# Ottosson 2020: linear RGB to cone responses, whose cube roots give OKLab.
CONES = ((0.4122215, 0.5363325, 0.0514460), (0.2119035, 0.6806995, 0.1073970), (0.0883025, 0.2817188, 0.6299787))
LAB = ((0.2104543, 0.7936178, -0.0040720), (1.9779985, -2.4285922, 0.4505937), (0.0259040, 0.7827718, -0.8086758))


def times(matrix: Matrix, vector: Sequence[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def seen(colour: str, vision: str) -> list[float]:
    light = [min(1.0, max(0.0, part)) for part in times(VISION[vision], linear(colour))]
    return times(LAB, [math.cbrt(part) for part in times(CONES, light)])


def luminance(colour: str) -> float:
    return sum(part * weight for part, weight in zip(linear(colour), (0.2126, 0.7152, 0.0722), strict=True))


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES)
def test_no_two_series_look_alike(theme: str, vision: str) -> None:
    colours = [pair[THEMES.index(theme)] for pair in SERIES]
    assert len(colours) == 6
    distances = {
        (one, other): 100 * math.dist(seen(one, vision), seen(other, vision))
        for one, other in itertools.combinations(colours, 2)
    }
    assert {pair: distance for pair, distance in distances.items() if distance < LEAST} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_a_series_is_legible_on_a_panel(theme: str) -> None:
    at = THEMES.index(theme)
    for colour in (pair[at] for pair in SERIES):
        dark, bright = sorted((luminance(colour), luminance(PANEL[at])))
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, colour
