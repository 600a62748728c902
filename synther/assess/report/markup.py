"""Functions that make HTML and format numbers. Every string is escaped, except strings of the type `Markup`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

Attribute = str | float | bool | None

MISSING = "\u2013"
"""Text in place of a figure that does not exist."""

_VOID = {"img", "input", "link", "meta"}
_SUPERSCRIPTS = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")


class Markup(str):
    """A string that is already HTML, and is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """Return an HTML element with children and attributes.

    `class_` becomes the attribute class, and `data_sort` becomes data-sort. Attributes that are None or False are left
    out.
    """
    start = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{start}>")
    return Markup(f"<{start}>{together(children)}</{name}>")


def together(parts: Iterable[str]) -> Markup:
    """Join strings, and escape those that are not `Markup`."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(value if isinstance(value, str) else short(value))}"'


def short(value: float) -> str:
    """Format a number for attributes, with up to six significant digits."""
    return f"{value:.6g}"


def place(value: float) -> str:
    """Format a coordinate of a drawing, rounded to a tenth of a unit."""
    text = f"{value:.1f}"
    return "0" if text == "-0.0" else text.removesuffix(".0")


def share(value: float) -> str:
    """Format a share from 0 to 1 in percent. "0 %" and "100 %" are only used if they are exact."""
    if not math.isfinite(value):
        return number(value)
    percent = 100 * value
    if 0 < percent < 0.01:
        return "< 0.01\u2009%"
    rounded = round(percent, 2 if percent < 1 else 1)
    if rounded == 100 and percent < 100:
        return "> 99.9\u2009%"
    return f"{rounded:g}\u2009%"


def number(value: float | None, *, decimals: int | None = None, digits: int = 4) -> str:
    """Format a figure for readers, with a number of decimals or of significant digits.

    Very large and very small figures are written with a power of ten.
    """
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "\u221e" if value > 0 else "\u2212\u221e"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e5 or (decimals is not None and 10**-decimals <= abs(value) < 1e5):
        text = f"{value:.{digits}g}" if decimals is None else f"{value:.{decimals}f}"
        text = f"{value:.0f}" if "e" in text else text
    else:
        text = power(value)
    return text.replace("-", "\u2212")


def power(value: float) -> str:
    """Format a number as a power of ten, such as 2.5\u00d710\u207b\u2076, or 10\u207b\u2076 if the factor is 1."""
    lead, _, exponent = f"{value:.1e}".partition("e")
    if int(exponent) == 0:
        return lead.removesuffix(".0")
    factor = "" if lead == "1.0" else f"{lead.removesuffix('.0')}\u00d7"
    return f"{factor}10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
