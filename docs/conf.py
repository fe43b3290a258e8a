"""The manual as a site, built by Sphinx with `make docs`: its navigation, in the order in which a newcomer reads."""

from __future__ import annotations

import re
from typing import Any

project = "Eductor"
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "Eductor"
html_show_copyright = html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "github-dark"

NAVIGATION = {
    "Use": [
        "getting_started",
        "options",
        "engines",
        "launches",
        "command_line",
        "cache",
        "limits",
        "figures",
    ],
    "Understand": [
        "how_a_model_is_compiled",
        "passes/index",
        "before_autograd",
        "attention",
        "memory",
    ],
    "See what happened": [
        "read_a_report",
        "find_a_wrong_rewrite",
        "explain_json",
    ],
    "Build on it": [
        "how_a_pass_runs",
        "write_a_pass",
        "write_a_pattern",
        "bring_your_own_backend",
        "api",
        "design",
    ],
}
STAGES = ("pre_grad", "joint", "partition", "post_grad", "lower")


def setup(app: Any) -> None:
    """Keep the pages plain Markdown, readable elsewhere: the site adds each page's table of contents here."""
    app.connect("source-read", _add_contents)


def _add_contents(app: Any, page: str, source: list[str]) -> None:
    if page == "index":
        source[0] += "".join(_contents(pages, caption) for caption, pages in NAVIGATION.items())
    elif page == "passes/index":
        source[0] += _contents([f"{stage}/index" for stage in STAGES])
    elif stage := re.fullmatch(r"passes/(\w+)/index", page):
        listed = re.findall(rf"\]\(\.\./{stage[1]}/(\w+)\.md\)", source[0])
        source[0] += _contents(list(dict.fromkeys(listed)))


def _contents(pages: list[str], caption: str = "") -> str:
    named = f":caption: {caption}\n" if caption else ""
    return "\n".join(["", "```{toctree}", f":hidden:\n{named}", *pages, "```", ""])
