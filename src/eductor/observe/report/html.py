"""The report as one HTML file: the explorer with the data inside, gzipped; it needs no server and no network."""

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
"""The element of the page that the data go into."""


def as_html(report: Mapping[str, Any]) -> str:
    """The page with this report in it."""
    page = files("eductor.observe.report").joinpath(PAGE)
    if not page.is_file():
        raise EductorError(
            f"the package lacks {PAGE}, which an installed Eductor has: in a clone of the repository, `make explorer` builds it."
        )
    before, tag, after = page.read_text(encoding="utf-8").partition(TAG)
    if not tag:
        raise EductorError(f"{PAGE} has no place for the data: build it anew with `make explorer`.")
    return f"{before}{tag}{packed(report)}{after}"


def packed(report: Mapping[str, Any]) -> str:
    """The data as the page unpacks them: JSON, gzipped, in base64."""
    text = json.dumps(report, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
