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
    "Understand": [
        "from_the_captured_graph_to_the_kernel",
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
        "design",
        "api",
        "how_a_pass_runs",
        "write_a_pass",
        "write_a_pattern",
        "bring_your_own_backend",
    ],
}
STAGES = ("pre_grad", "joint", "post_grad")


def setup(app: Any) -> None:
    """The pages are plain Markdown, which other readers show as well: the site adds what comes below each."""
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
