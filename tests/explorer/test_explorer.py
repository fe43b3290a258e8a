"""The explorer in a browser: what a reader of a report does, and that it is fast on a large one."""

from __future__ import annotations

import os
import re
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from records import page_of, record

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: `make test-browser`")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("there is no Chromium: `make test-browser` installs it", allow_module_level=True)
expect = sync_api.expect
MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("report"), record(layers=2, graphs=2, idle=8))


def written(folder: Path, data: dict[str, Any]) -> Path:
    page = folder / "report.html"
    page.write_text(page_of(data))
    return page


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Any]:
    """Opens the report at an address; an error in the page fails the test, and so does a call of the network."""
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800})

    def opened(address: str = "", **media: Any) -> Any:
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(("file:", "blob:", "data:")) else errors.append(r.url))
        page.emulate_media(**media)
        page.goto(f"{report.as_uri()}{address}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        return page

    yield opened
    context.close()
    assert errors == []


def passes(page: Any) -> list[str]:
    return page.locator("nav .pass .name").all_inner_texts()


def address(page: Any) -> str:
    return page.evaluate("decodeURIComponent(location.hash)")


def heading(page: Any) -> Any:
    return page.get_by_role("heading", level=1)


def test_the_overview_answers_the_first_questions(visit):
    page = visit()
    expect(page.locator(".card", has_text="Longest pass").locator(".figure")).to_contain_text("pass_patterns")
    expect(page.locator(".card", has_text="Saved for backward").locator(".figure")).to_contain_text("27 MiB")
    row = page.get_by_role("row", name=re.compile(r"h\.\*\.attn\.qkv"))
    expect(row).to_contain_text(f"{TIMES}2, all alike")
    expect(row.locator("td").nth(1)).to_have_text("linear")
    expect(row.locator("td").nth(2)).to_have_text("addmm")
    expect(row.locator("td").nth(3)).to_have_text(f"mm {TIMES}2, sum")
    expect(row.locator("td").nth(4)).to_contain_text("pass_patterns")


def test_modules_of_one_kind_alone(visit):
    page = visit()
    page.get_by_role("button", name="LayerNorm").click()
    assert page.locator(".fates tr.kind").all_inner_texts() == ["LayerNorm 4 modules"]


def test_changed_only_hides_the_passes_that_did_nothing(visit):
    page = visit()
    assert set(passes(page)) == {
        "normalize_node_kwargs_pass",
        "remove_noop_ops",
        "pass_patterns",
        "reorder_for_locality",
    }
    page.get_by_role("switch", name="Changed only").uncheck()
    assert "fuse_conv_bn" in passes(page)
    expect(page.locator(".pass", has_text="fuse_conv_bn").first).to_contain_text("skipped")
    assert len(passes(page)) == 24


def test_another_graph(visit):
    page = visit("#joint/pass_patterns")
    page.get_by_role("link", name="Graph 2").click()
    expect(heading(page)).to_have_text("Graph 2: Model.forward")
    page.locator("nav .pass", has_text="pass_patterns").click()
    expect(page.locator(".crumbs").first).to_have_text("Graph 2 · Joint")
    assert address(page) == "#joint/pass_patterns?graph=2"


def test_a_pass_says_what_it_did(visit):
    page = visit("#joint/pass_patterns")
    expect(heading(page)).to_contain_text("changed")
    facts = page.locator(".page-head .facts")
    expect(facts).to_contain_text("10 matches")
    expect(facts).to_contain_text(f"136 → 126 nodes ({MINUS}10)")
    expect(facts).to_contain_text("✓ verified")
    entry = page.locator("nav .pass[aria-current=page]")
    expect(entry).to_contain_text(f"{MINUS}10")
    expect(entry).to_contain_text("14 ms")


def test_search_finds_passes_nodes_and_lines(visit):
    page = visit()
    box = page.get_by_role("searchbox")
    box.fill("unfuse")
    found = page.get_by_role("region", name="Found")
    found.get_by_role("link", name="unfuse_bias_add").first.click()
    expect(heading(page)).to_contain_text("unfuse_bias_add")
    box.fill("gelu(self.up")
    found.get_by_role("link", name=re.compile("F.gelu")).click()
    details = page.get_by_role("complementary", name="Details")
    expect(details).to_contain_text("train.py:14")
    expect(details).to_contain_text("gelu_1")
    box.fill("reshape_3")
    box.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(details.get_by_role("heading", level=2)).to_have_text("reshape_3")
    box.fill("no such thing")
    expect(found).to_contain_text("Nothing has this name")


def test_the_diff_shows_what_changed_and_folds_the_rest(visit):
    page = visit("#joint/remove_noop_ops")
    listing = page.get_by_role("listbox", name="The graph before and after")
    assert len(listing.locator(".line.removed").all()) == 4
    assert listing.locator(".line.removed .marked").all_inner_texts() == ["detach", "detach_1"]
    assert listing.locator(".line.added .marked").all_inner_texts() == ["getitem_2", "getitem_6"]
    lines = listing.locator(".line").count()
    listing.locator(".fold").first.click()
    assert listing.locator(".line").count() > lines


def test_renamed_and_moved_nodes_are_no_noise(visit):
    page = visit("#post_grad/reorder_for_locality")
    expect(page.locator(".diff")).to_contain_text("only renamed or moved")
    assert page.locator(".line.added, .line.removed").count() == 0
    assert page.get_by_title("moved").count() == 1


def test_a_wide_window_shows_both_sides(visit):
    page = visit("#joint/pass_patterns")
    assert page.locator(".pair").count() == 0
    page.set_viewport_size({"width": 1920, "height": 1080})
    pair = page.locator(".pair", has=page.locator(".marked")).first
    expect(pair.locator(".removed")).to_contain_text("addmm = torch.ops.aten.addmm.default(view_1)")
    expect(pair.locator(".added")).to_contain_text("addmm = torch.ops.aten.addmm.default(reshape)")


def test_stepping_through_matches(visit):
    page = visit("#joint/pass_patterns")
    page.get_by_role("button", name="Next match").click()
    assert address(page) == "#joint/pass_patterns:one_reshape@0"
    expect(page.locator(".line.added")).to_have_count(2)
    expect(page.locator(".match")).to_contain_text("one_reshape at view: the sizes in between do not matter")
    page.get_by_text("Source of the rule").click()
    expect(page.locator(".match .source-view")).to_contain_text("return view(view(x))")
    page.keyboard.press("n")
    expect(page.locator(".stepper .where")).to_have_text("2 of 10")
    expect(page.locator(".line.added").first).to_contain_text("reshape_1")
    page.keyboard.press("p")
    page.keyboard.press("p")
    assert address(page) == "#joint/pass_patterns"


def test_before_and_after_are_python(visit, report):
    page = visit("#joint/pass_patterns?view=before")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    page.get_by_role("button", name="Copy as Python").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    text = page.evaluate("window.copied")
    compile(text, "before", "exec")
    assert "    view_1 = torch.ops.aten.view.default(view)  # f32[8, 128, 768]" in text
    page.get_by_role("tab", name="After").click()
    expect(page.get_by_role("listbox")).to_contain_text("reshape = torch.ops.aten.reshape.default(t)")


def test_a_node_tells_what_it_is_and_where_it_came_from(visit):
    page = visit("#joint/pass_patterns")
    page.get_by_role("option", name=re.compile(r"^\+ +reshape = ")).click()
    details = page.get_by_role("complementary", name="Details")
    for fact in ["[8, 128, 768]", "float32", "[98304, 768, 1]", "3.0 MiB", "train.py:11", "h.0.attn.qkv"]:
        expect(details).to_contain_text(fact)
    came = details.locator("section", has_text="Where it came from")
    expect(came.get_by_role("link", name="view_1", exact=True)).to_be_visible()
    became = details.locator("section", has_text="What became of it")
    expect(became).to_contain_text("Forward")
    expect(became).to_contain_text("extern_reshape_addmm")
    came.get_by_role("link", name="joint/pass_patterns:one_reshape@0").click()
    expect(page.locator(".stepper .where")).to_have_text("1 of 10")
    expect(details).to_be_visible()


def test_a_removed_node_leads_forward_to_what_replaced_it(visit):
    page = visit("#joint/pass_patterns")
    page.get_by_role("option", name=re.compile(rf"^{MINUS} +view = ")).click()
    became = page.get_by_role("complementary", name="Details").locator("section", has_text="What became of it")
    expect(became).to_contain_text("Removed by joint/pass_patterns:one_reshape@0")
    became.get_by_role("link", name="reshape", exact=True).click()
    expect(page.get_by_role("complementary", name="Details")).to_contain_text("It is unchanged")


def test_a_source_line_leads_to_all_that_runs_for_it(visit):
    page = visit("#joint/pass_patterns?source=2")
    details = page.get_by_role("complementary", name="Details")
    expect(details).to_contain_text("scaled_dot_product_attention")
    expect(details).to_contain_text("flash_attention_backward")


def test_deep_links(visit):
    page = visit("#joint/pass_patterns:one_reshape@4?node=70&view=after")
    expect(page.locator(".stepper .where")).to_have_text("5 of 10")
    expect(page.get_by_role("tab", name="After")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".line[aria-selected=true]")).to_be_in_viewport()
    page = visit("#post_grad/unfuse_bias_add?role=backward&graph=2")
    expect(page.locator(".crumbs").first).to_have_text("Graph 2 · Post-grad, backward")
    page = visit("#joint/gone")
    expect(page.get_by_role("alert")).to_have_text("This report has nothing at joint/gone.")


def test_a_node_far_from_the_changes_is_shown_among_them(visit):
    page = visit("#joint/remove_noop_ops?node=100")
    chosen = page.locator(".line[aria-selected=true]")
    expect(chosen).to_be_in_viewport()
    page.locator(".fold").first.click()
    expect(chosen).to_be_visible()


def test_back_goes_back(visit):
    page = visit("#joint/pass_patterns")
    page.keyboard.press("j")
    expect(heading(page)).to_contain_text("reorder_for_locality")
    page.go_back()
    expect(heading(page)).to_contain_text("pass_patterns")


def test_keyboard(visit):
    page = visit()
    page.keyboard.press("j")
    expect(heading(page)).to_contain_text("normalize_node_kwargs_pass")
    page.keyboard.press("j")
    expect(heading(page)).to_contain_text("remove_noop_ops")
    page.keyboard.press("k")
    expect(heading(page)).to_contain_text("normalize_node_kwargs_pass")
    page.keyboard.press("c")
    page.keyboard.press("k")
    expect(heading(page)).to_contain_text("numpy_compat_normalization")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("jk")
    expect(heading(page)).to_contain_text("numpy_compat_normalization")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("o")
    expect(heading(page)).to_contain_text("Graph 1")


def test_arrows_walk_through_a_listing(visit):
    page = visit("#joint/remove_noop_ops?view=before")
    page.get_by_role("listbox").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".line[aria-selected=true]")).to_contain_text("tokens")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".line[aria-selected=true]")).to_contain_text("embedding = ")
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary", name="Details")).to_have_count(0)


def test_light_and_dark(visit):
    def is_lit(page: Any, light: bool) -> None:
        expect(page.locator("body")).to_have_css(
            "background-color", "rgb(255, 255, 255)" if light else "rgb(20, 24, 28)"
        )

    is_lit(visit(color_scheme="light"), True)
    page = visit(color_scheme="dark")
    is_lit(page, False)
    page.get_by_role("button", name="Use light colours").click()
    is_lit(page, True)
    page.keyboard.press("d")
    is_lit(page, False)


def test_the_partition(visit):
    page = visit("#partition")
    expect(page.locator(".purpose")).to_contain_text("saves 9 values of 27 MiB")
    saved = page.get_by_role("row", name=re.compile("^addmm ")).first
    expect(saved).to_contain_text("computing it again costs a product")
    assert page.locator(".chart path.curve").count() == 2
    chart = page.get_by_role("slider", name=re.compile("Memory held"))
    chart.hover(position={"x": 200, "y": 100})
    expect(page.locator(".chart figcaption").first).to_contain_text("Here")
    chart.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuetext", re.compile("in the forward"))
    chart.click(position={"x": 200, "y": 100})
    expect(page.get_by_role("complementary", name="Details")).to_be_visible()


def test_kernels_lead_to_their_nodes(visit):
    page = visit("#kernels?kernel=0")
    view = page.get_by_role("region", name="triton_embedding_native_layer_norm_0")
    expect(view.locator(".source-view")).to_contain_text("tl.program_id(0)")
    view.get_by_role("link", name="native_layer_norm", exact=True).click()
    expect(page.get_by_role("complementary", name="Details")).to_contain_text("triton_embedding_native_layer_norm_0")


def test_nearest_misses_have_reasons(visit):
    page = visit("#joint/pad_mm")
    expect(page.locator(".misses")).to_contain_text("no other call has the same form and is independent of it")
    page.locator(".misses").get_by_role("link", name="addmm_1").click()
    expect(page.get_by_role("complementary", name="Details")).to_contain_text("addmm_1")


def test_the_picture_shows_the_changed_region(visit):
    page = visit("#joint/pass_patterns:one_reshape@0?view=picture")
    picture = page.get_by_role("group", name="Picture of the graph")
    expect(picture).to_be_visible(timeout=20_000)
    assert page.locator(".box.removed .box-title").all_text_contents() == ["view", "view_1"]
    assert page.locator(".box.added .box-title").all_text_contents() == ["reshape"]
    assert page.locator(".box").count() < 8
    picture.get_by_role("button", name=re.compile("^addmm, ")).click()
    expect(page.get_by_role("complementary", name="Details")).to_contain_text("addmm")


def test_modules_open_in_the_picture(visit):
    page = visit("#joint")
    page.get_by_role("tab", name="Modules").click()
    picture = page.get_by_role("group", name="Picture of the graph")
    expect(picture.get_by_role("button", name=re.compile(r"h\.0\.attn\.qkv"))).to_be_visible(timeout=20_000)


def test_what_is_not_known_is_left_out(browser, tmp_path):
    data = record()
    graph = data["graphs"][0]
    graph |= {"partition": None, "kernels": [], "stages": [s for s in graph["stages"] if s["role"] != "backward"]}
    graph["stages"][-1]["failure"] = "RuntimeError: no code can be made of it"
    failed = {
        "status": "failed",
        "reason": "other strides",
        "verified": {"ok": False, "text": "strides (3, 1) and (1, 3)"},
    }
    graph["stages"][0]["passes"][0] |= failed
    for match in graph["stages"][2]["passes"][1]["matches"]:
        match |= {"delta": None, "note": None, "source": None}
    page = browser.new_page()
    page.goto(written(tmp_path, data).as_uri())
    expect(page.locator(".card", has_text="Saved for backward")).to_contain_text("No gradients")
    expect(page.locator(".card", has_text="In short")).to_contain_text("1 of 5 checked passes broke their contract")
    expect(page.locator(".flow")).to_contain_text("failed")
    expect(page.get_by_role("columnheader", name="Backward runs")).to_have_count(0)
    expect(page.locator("nav .pass.failed")).to_contain_text("failed")
    page.goto(f"{page.url}#joint/pass_patterns:one_reshape@0")
    expect(page.locator(".match")).to_contain_text("below is what the whole pass did")
    assert page.locator(".line.added").count() > 4
    page.close()


def test_a_page_without_a_report_says_so(browser, tmp_path):
    empty = tmp_path / "empty.html"
    empty.write_text(page_of({"schema": "eductor.report/9", "graphs": []}))
    page = browser.new_page()
    page.goto(empty.as_uri())
    expect(page.get_by_role("alert")).to_contain_text("eductor.report/9")
    page.close()


SWITCH = """async (key) => {
  const [before, start] = [document.querySelector("h1").textContent, performance.now()];
  dispatchEvent(new KeyboardEvent("keydown", { key }));
  const frame = () => new Promise(requestAnimationFrame);
  while (document.querySelector("h1").textContent === before || !document.querySelector(".line, .misses, .quiet")) await frame();
  await frame();
  return performance.now() - start;
}"""


def test_a_large_report_is_small_and_fast(browser, tmp_path):
    data = record(layers=80, idle=44)
    graph = data["graphs"][0]
    assert max(len(stage["start"]) for stage in graph["stages"]) >= 4900
    assert sum(len(stage["passes"]) for stage in graph["stages"]) == 60
    path = written(tmp_path, data)
    assert path.stat().st_size < 10e6
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(path.as_uri())
    expect(page.get_by_role("heading", name="What happened to each module")).to_be_visible()
    assert page.evaluate("performance.now()") < 2000
    page.keyboard.press("c")
    page.keyboard.press("j")
    times = [page.evaluate(SWITCH, key) for key in "j" * 30 + "k" * 10]
    assert statistics.median(times) < 200
    assert page.locator(".line").count() < 150
    page.close()
