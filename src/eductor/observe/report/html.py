"""Writes the report as one HTML file: the explorer with the data inside, gzipped; needs no server or network."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from eductor.errors import EductorError

PAGE = "explorer.html"
TAG = '<script id="report" type="application/octet-stream;base64">'
"""The element of the page that holds the data."""


def as_html(report: Mapping[str, Any]) -> str:
    """The page with this report."""
    before, tag, after = explorer().partition(TAG)
    return f"{before}{tag}{packed(report)}{after}"


def explorer() -> str:
    """The page without data; raises an error with instructions if the package lacks it."""
    page = files("eductor.observe.report").joinpath(PAGE)
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    if text.count(TAG) != 1:
        what = "has no place for the data" if text else "is missing"
        raise EductorError(f"{PAGE}, the page of the report, {what}: `make explorer` builds it in a clone of Eductor.")
    return text


def packed(report: Mapping[str, Any]) -> str:
    """The data as the page reads them: JSON, gzipped, in base64."""
    text = json.dumps(report, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
