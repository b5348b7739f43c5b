"""The live page in a real browser, against the real server: a table with categories and gaps, and pictures."""

from __future__ import annotations

import io
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser import page_models as models
from tests.browser.driving import CLOSE, Opened, Served, field_of, open_page, serve

import cortx

pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install playwright")
pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")

TOKEN = "correct-horse-battery"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium; on Debian: apt install chromium"),
]


# A row --------------------------------------------------------------------------------------------------------


def test_a_slider_moves_the_prediction_and_the_sum_still_holds(opened: Opened) -> None:
    page = opened.go()
    before = opened.check_sum()
    chip = field_of(page, "flavanoids").locator(".chip").text_content()
    reasons = page.locator(".reasons").text_content()
    slider = page.get_by_label("flavanoids, slider")
    box = slider.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    for share in np.linspace(0.6, 0.08, 30):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    page.mouse.up()
    after = opened.check_sum()
    assert after["values"] != before["values"]
    assert after["values"]["flavanoids"] != before["values"]["flavanoids"]
    assert field_of(page, "flavanoids").locator(".chip").text_content() != chip
    assert page.locator(".reasons").text_content() != reasons
    assert page.get_by_label("flavanoids", exact=True).input_value() == slider.input_value()


def test_what_is_shown_is_the_answer_to_the_newest_row(opened: Opened) -> None:
    page = opened.go()
    opened.settled()
    page.get_by_label("proline, slider").focus()
    for _ in range(60):
        page.keyboard.press("ArrowLeft")
    page.get_by_label("hue", exact=True).select_option("low")
    shown = opened.check_sum()
    record = opened.served.ask("models/wine")["examples"][0]["record"]
    record |= {"proline": float(page.get_by_label("proline", exact=True).input_value()), "hue": "low"}
    [own] = opened.served.ask("explain", {"model": "wine", "records": [record], "confidence": 0.9})["explanations"]
    highest = max(own["prediction"], key=own["prediction"].get)
    assert page.locator("#prediction-title").text_content() == f"Probability: {highest}"
    assert shown["prediction"] == pytest.approx(own["prediction"][highest], abs=CLOSE)
    assert shown["values"] == pytest.approx(own["attributions"][highest], abs=CLOSE)
    for player, ends in shown["bands"].items():
        assert ends == pytest.approx(own["bounds"][highest][player], abs=CLOSE)
        assert ends[0] - CLOSE <= shown["values"][player] <= ends[1] + CLOSE


def test_categories_and_missing_values(opened: Opened) -> None:
    page = opened.go()
    before = opened.check_sum()
    offered = page.get_by_label("hue", exact=True).locator("option").all_text_contents()
    assert sorted(offered) == ["high", "low", "middle"]
    page.get_by_label("hue", exact=True).select_option(next(name for name in offered if name != "middle"))
    changed = opened.check_sum()
    assert changed["values"]["hue"] != before["values"]["hue"]
    assert page.locator(".field label.missing").count() == 1  # only one column was ever missing
    missing = page.get_by_label("missing malic_acid")
    missing.check()
    gone = opened.check_sum()
    assert gone["values"]["malic_acid"] != changed["values"]["malic_acid"]
    assert page.locator(".numbers tr[data-player=malic_acid] td").first.text_content() == "missing"
    missing.uncheck()
    opened.check_sum()
    assert float(page.get_by_label("malic_acid", exact=True).input_value()) > 0


def test_what_is_wrong_is_said_beside_the_field(opened: Opened) -> None:
    page = opened.go()
    opened.settled()
    alcohol = page.get_by_label("alcohol", exact=True)
    alcohol.fill("")
    problem = field_of(page, "alcohol").locator(".error")
    assert problem.text_content() == "Enter a number."
    assert alcohol.get_attribute("aria-invalid") == "true"
    assert page.locator("#panel-explain.stale").count() == 1
    alcohol.fill("90")
    opened.check_sum()
    assert not problem.is_visible()
    assert "where the explainer learned" in (field_of(page, "alcohol").locator(".field-note").text_content() or "")
    page.get_by_label("magnesium", exact=True).fill("100.5")
    assert field_of(page, "magnesium").locator(".error").text_content() == "Enter a whole number."
    page.get_by_role("button", name="Undo changes").click()
    opened.check_sum()
    assert not page.locator(".field .error").filter(visible=True).count()


def test_a_refusal_of_the_server_stands_beside_its_field(opened: Opened) -> None:
    page = opened.go()
    opened.settled()
    page.get_by_label("magnesium", exact=True).fill("1e300")
    error = field_of(page, "magnesium").locator(".error")
    error.wait_for()
    assert "magnesium" in (error.text_content() or "")
    opened.complaints.clear()  # the browser notes every answer that is an error
    page.get_by_label("magnesium", exact=True).fill("100")
    opened.check_sum()
    assert not error.is_visible()


def test_a_lost_connection_is_said_and_mended(opened: Opened) -> None:
    page = opened.go()
    opened.settled()
    page.context.set_offline(True)
    page.get_by_label("hue", exact=True).select_option("low")
    page.get_by_text("The server cannot be reached").wait_for()
    page.context.set_offline(False)
    page.get_by_label("hue", exact=True).select_option("high")
    opened.check_sum()
    assert not page.locator("#trouble").is_visible()
    opened.complaints.clear()  # the browser notes what it could not fetch


def test_every_output_can_be_chosen(opened: Opened) -> None:
    page = opened.go()
    total = 0.0
    for name in ("barolo", "grignolino", "barbera"):
        page.get_by_label("Which output").select_option(name)
        shown = opened.check_sum()
        assert page.locator("#prediction-title").text_content() == f"Probability: {name}"
        assert name in (page.locator(".reasons").text_content() or "")
        total += shown["prediction"]
    assert total == pytest.approx(1.0, abs=CLOSE)


def test_a_kept_row_is_compared(opened: Opened) -> None:
    page = opened.go()
    kept = opened.check_sum()
    page.get_by_label("Which output").select_option(
        page.locator("#prediction-title").text_content().removeprefix("Probability: ")
    )
    opened.settled()
    opened.keep_picture("row")
    page.get_by_role("button", name="Keep this row").click()
    page.get_by_label("alcohol, slider").press("Home")
    page.get_by_label("hue", exact=True).select_option("low")
    now = opened.check_sum()
    assert page.locator(".waterfall .ghost").count() == len(now["values"])
    assert page.locator(".waterfall .total-ghost").count() == 1
    row = page.get_by_role("region", name="What differs").locator("tr", has_text="alcohol")
    was, new, change = (number(text) for text in row.locator("td").all_text_contents()[1:])
    assert was == pytest.approx(kept["values"]["alcohol"], abs=6e-4)  # as many digits as are shown
    assert new == pytest.approx(now["values"]["alcohol"], abs=6e-4)
    assert change == pytest.approx(now["values"]["alcohol"] - kept["values"]["alcohol"], abs=6e-4)
    opened.keep_picture("kept", full_page=True)
    page.get_by_role("button", name="Go back to the kept row").click()
    assert opened.check_sum()["values"] == pytest.approx(kept["values"], abs=CLOSE)
    assert page.get_by_text("Nothing differs yet").is_visible()
    page.get_by_role("button", name="Forget it").click()
    assert page.locator(".waterfall .ghost").count() == 0


def number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def test_the_reference_row_moves_nothing(opened: Opened) -> None:
    page = opened.go()
    opened.settled()
    page.get_by_label("Start from").select_option("the reference row")
    shown = opened.check_sum()
    assert shown["prediction"] == pytest.approx(shown["base"], abs=CLOSE)
    assert set(shown["values"].values()) == {0.0}
    assert page.get_by_text("This is the reference row itself").is_visible()


# Keyboard, screens, colours -----------------------------------------------------------------------------------

FOCUSED = """() => {
  const element = document.activeElement;
  const shown = element.matches(".segments input") ? element.nextElementSibling : element;
  const style = getComputedStyle(shown), box = shown.getBoundingClientRect();
  const name = element.labels?.[0]?.textContent || element.getAttribute("aria-label") || element.textContent;
  return { tag: element.tagName, id: element.id, name: name.trim(), visible: box.width > 1 && box.height > 1,
           outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
}"""


def test_everything_works_by_keyboard_alone(opened: Opened) -> None:
    page = opened.go()
    before = opened.check_sum()
    seen: list[str] = []

    def tab_to(wanted: str, most: int = 60) -> None:
        for _ in range(most):
            page.keyboard.press("Tab")
            focused = page.evaluate(FOCUSED)
            if focused["tag"] == "BODY":
                continue
            seen.append(focused["name"])
            assert focused["visible"], focused
            assert focused["outline"], focused
            if focused["name"].startswith(wanted):
                return
        raise AssertionError(f"{wanted!r} cannot be reached with Tab; reached were {seen}")

    tab_to("Skip to the explanation")
    tab_to("Model")
    tab_to("Explain")
    tab_to("Start from")
    page.keyboard.press("ArrowDown")
    example = opened.check_sum()
    assert example["values"] != before["values"]
    tab_to("Keep this row")
    page.keyboard.press("Enter")
    tab_to("alcohol, slider")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    moved = opened.check_sum()
    assert moved["values"]["alcohol"] != example["values"]["alcohol"]
    tab_to("malic_acid")
    tab_to("missing")
    page.keyboard.press("Space")
    assert opened.check_sum()["values"] != moved["values"]
    tab_to("hue")
    page.keyboard.press("ArrowUp")
    opened.check_sum()
    tab_to("Strongest first")
    page.keyboard.press("ArrowRight")
    order = page.locator(".waterfall .step .name").all_text_contents()
    assert len(order) == len(moved["values"])
    tab_to("All numbers")
    page.keyboard.press("Enter")
    assert page.locator("table.numbers").is_visible()
    tab_to("Go back to the kept row")
    page.keyboard.press("Enter")
    assert opened.check_sum()["values"] == pytest.approx(example["values"], abs=CLOSE)
    tab_to("The programming interface")
    tab_to("Explain")  # around once more: focus is trapped nowhere
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Quality").get_attribute("aria-selected") == "true"
    assert page.locator("#panel-quality").is_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "panel-quality"


def test_the_prediction_is_spoken_once_the_slider_rests(opened: Opened) -> None:
    page = opened.go()
    page.get_by_label("proline, slider").focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    shown = opened.check_sum()
    spoken = f"{shown['prediction']:.3f}"
    page.wait_for_function("text => document.getElementById('spoken').textContent.includes(text)", arg=spoken)
    assert page.locator("#spoken").get_attribute("role") == "status"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(browser: Any, served: Served, scheme: str) -> None:
    phone = {"width": 360, "height": 740}
    for opened in open_page(
        browser, served, viewport=phone, color_scheme=scheme, device_scale_factor=2, has_touch=True
    ):
        page = opened.go()
        opened.check_sum()
        assert width(page) == phone["width"]
        if scheme == "dark":
            opened.keep_picture("phone")
        page.get_by_role("button", name="Keep this row").click()
        page.get_by_label("hue", exact=True).select_option("low")
        opened.check_sum()
        page.get_by_label("hue", exact=True).scroll_into_view_if_needed()
        shown = page.locator(".prediction").bounding_box()
        assert page.locator(".field").last.bounding_box()["y"] < phone["height"]  # what was changed is on the screen,
        assert 0 <= shown["y"] < shown["y"] + shown["height"] < phone["height"]  # and so is what it did
        page.locator("summary").first.click()
        assert width(page) == phone["width"]
        if scheme == "dark":
            page.locator(".waterfall").scroll_into_view_if_needed()
            page.evaluate("document.querySelector('.waterfall').scrollIntoView({ block: 'center' })")
            opened.keep_picture("phone-waterfall")
        page.get_by_role("tab", name="Quality").click()
        assert width(page) == phone["width"]
        page.get_by_label("Model").select_option("digits")
        page.get_by_role("tab", name="Explain").click()
        page.locator(".drop input").set_input_files([digit_png(3)])
        page.locator(".classes button").first.wait_for()
        opened.check_sum()
        assert width(page) == phone["width"]
        page.get_by_role("button", name="Keep this picture").click()
        page.locator(".classes button").nth(1).click()
        opened.check_sum()
        page.locator(".heat-title").last.scroll_into_view_if_needed()
        assert width(page) == phone["width"]


def width(page: Any) -> int:
    return int(page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"))


CONTRASTS = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const channel = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, box = element.getBoundingClientRect();
    if (!walker.currentNode.textContent.trim() || box.width < 2 || box.height < 2) continue;
    if (!element.checkVisibility() || element.closest("noscript, .hidden, .skip, .is-missing, title")) continue;
    const style = getComputedStyle(element);
    const ink = parse(element.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(element))].sort((x, y) => y - x);
    found.push([walker.currentNode.textContent.trim().slice(0, 40), (a + 0.05) / (b + 0.05)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_in_dark(browser: Any, served: Served, scheme: str) -> None:
    for opened in open_page(browser, served, color_scheme=scheme):
        page = opened.go()
        opened.check_sum()
        page.get_by_role("button", name="Keep this row").click()
        page.get_by_label("alcohol", exact=True).fill("99")
        opened.check_sum()
        for tab in ("Explain", "Quality"):
            page.get_by_role("tab", name=tab).click()
            contrasts = page.evaluate(CONTRASTS)
            assert len(contrasts) > 20
            assert [pair for pair in contrasts if pair[1] < 4.5] == []
        page.get_by_role("tab", name="Explain").click()
        page.get_by_label("Model").select_option("digits")
        page.locator(".drop").wait_for()
        upload(opened, 12)
        page.get_by_role("button", name="Keep this picture").click()
        page.get_by_text("All numbers of both").click()
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 80
        assert [pair for pair in contrasts if pair[1] < 4.5] == []


def test_the_switch_of_colours_stays(browser: Any, served: Served) -> None:
    def bright(page: Any) -> bool:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) > 3 * 128

    for opened in open_page(browser, served, color_scheme="dark"):
        page = opened.go()
        assert not bright(page)
        opened.settled()
        opened.keep_picture("dark")
        page.get_by_label("Light").check(force=True)
        assert bright(page)
        page.reload()
        page.locator(".waterfall .step").first.wait_for()
        assert bright(page)
        page.get_by_label("Auto").check(force=True)
        assert not bright(page)


def test_less_motion_is_respected(browser: Any, served: Served) -> None:
    for opened in open_page(browser, served, reduced_motion="reduce"):
        page = opened.go()
        style = "getComputedStyle(document.querySelector('.step')).transitionDuration"
        assert float(page.evaluate(style).removesuffix("s")) == 0


# Pictures -----------------------------------------------------------------------------------------------------


def digit_png(position: int, size: int = 160) -> dict[str, Any]:
    """One of scikit-learn's digits as a file that somebody has on their disk."""
    from PIL import Image
    from sklearn.datasets import load_digits

    pixels = (load_digits().images[position] * 255 / 16).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((size, size), Image.Resampling.NEAREST).save(file, "PNG")
    return {"name": f"digit-{position}.png", "mimeType": "image/png", "buffer": file.getvalue()}


GREY = 40  # how far the channels of a pixel lie apart, at most, where it has no colour


def test_a_picture_is_uploaded_and_explained(opened: Opened, artifacts: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    page = opened.go("digits")
    position = 12
    page.locator(".drop input").set_input_files([digit_png(position)])
    page.locator(".classes button").first.wait_for()
    shown = opened.check_sum()
    pixels = (load_digits().images[position] * 255 / 16).astype(np.uint8)
    [own] = opened.served.ask("explain", {"model": "digits", "images": [pixels.tolist()]})["explanations"]
    best = max(own["prediction"], key=own["prediction"].get)
    # Shrinking the picture is not the same to the last bit as never having enlarged it.
    assert page.locator(".classes button[aria-pressed=true] .class-name").text_content() == best
    assert shown["prediction"] == pytest.approx(own["prediction"][best], abs=0.02)
    assert list(shown["values"].values()) == pytest.approx(own["attributions"][best], abs=0.02)

    def heat() -> np.ndarray:
        picture = Image.open(io.BytesIO(page.locator(".heat").first.screenshot())).convert("RGB")
        return np.array(picture).reshape(-1, 3)

    assert page.get_by_label("Raw").is_checked()  # the parts are few and large
    raw = heat()
    assert (np.ptp(raw, axis=1) > GREY).any()
    page.get_by_label("Smoothed").check(force=True)
    smooth = heat()
    assert (raw != smooth).any()
    page.get_by_label("Opacity").fill("0")
    bare = heat()
    assert (np.ptp(bare, axis=1) < GREY).all()
    page.get_by_label("Opacity").fill("0.85")
    page.get_by_label("Raw").check(force=True)
    assert (heat() == raw).all()
    opened.keep_picture("picture", full_page=True)

    other = page.locator(".classes button").nth(1)
    name = other.locator(".class-name").text_content()
    other.click()
    assert opened.check_sum()["values"] != shown["values"]
    assert page.locator("#prediction-title").text_content() == f"Probability: {name}"


def upload(opened: Opened, position: int) -> dict[str, Any]:
    """Gives the page a digit; what it then shows."""
    page = opened.page
    page.locator(".drop input").set_input_files([digit_png(position)])
    page.get_by_label(f"The picture, 8 by 8 pixels: digit-{position}.png").wait_for()
    page.locator(".classes button").first.wait_for()
    return opened.check_sum()


def parts_drawn(canvas: Any) -> np.ndarray:
    """The pixels of each of the 4 x 4 parts that a heat map shows, (parts, pixels, channels)."""
    size, data = canvas.evaluate(
        """canvas => {
             const { width, height } = canvas;
             const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
             copy.drawImage(canvas, 0, 0);
             return [width, [...copy.getImageData(0, 0, width, height).data]];
           }"""
    )
    side = size // 4
    drawn = np.reshape(data, (4, side, 4, side, 4))[..., :3]
    return drawn.transpose(0, 2, 1, 3, 4).reshape(16, -1, 3)


def coloured(parts: np.ndarray) -> np.ndarray:
    """Which parts are red (1), blue (-1), or have no colour (0)."""
    red_over_blue = (parts[..., 0] - parts[..., 2]).mean(axis=1)
    return np.sign(red_over_blue) * (np.abs(red_over_blue) > 4)


def test_bounds_of_a_picture_are_a_second_panel(opened: Opened) -> None:
    page = opened.go("digits")
    page.get_by_label("Bounds").select_option("80%")
    shown = upload(opened, 12)
    best = page.locator(".classes button[aria-pressed=true] .class-name").text_content()
    panel = page.locator(".heat-panels").first.locator("figure")
    assert panel.first.locator(".heat-title").text_content() == f"For {best}: {shown['headline']:.3f}"
    key = page.locator(".heat-key").first
    assert f"the probability (0 to 1) of {best}" in key.inner_text()
    assert "may raise or lower it: bounds at 80% hold zero" in key.inner_text()
    bands = np.array(list(shown["bands"].values()))
    certain = np.where(bands[:, 0] > 0, 1, np.where(bands[:, 1] < 0, -1, 0))
    assert panel.nth(1).locator(".heat-title").text_content() == f"Sign certain: {abs(certain).sum()} of 16 parts"
    page.get_by_label("Opacity").fill("1")
    opened.keep_picture("picture-bounds", full_page=True)
    drawn = parts_drawn(panel.nth(1).locator(".heat"))
    assert (coloured(drawn)[certain == 0] == 0).all()
    values = np.array(list(shown["values"].values()))
    clear = np.abs(values) > 0.2 * np.abs(values).max()  # the others are pale
    assert (coloured(drawn)[clear] == certain[clear]).all()
    open_parts = (certain == 0) & (bands[:, 0] < bands[:, 1])
    assert open_parts.any()
    assert (drawn[open_parts].std(axis=(1, 2)) > 25).all()  # hatched
    nothing = (bands == 0).all(axis=1)
    assert (drawn[nothing].std(axis=(1, 2)) < 25).all()
    assert (coloured(parts_drawn(panel.first.locator(".heat")))[clear] == np.sign(values[clear])).all()
    page.get_by_label("Bounds").select_option("none")
    opened.settled()
    assert not panel.nth(1).is_visible()
    assert "hold zero" not in key.inner_text()


def test_a_kept_picture_is_compared(opened: Opened) -> None:
    page = opened.go("digits")
    region = page.get_by_role("region", name="What differs").first
    assert region.get_by_text("Keep a picture to compare").is_visible()
    assert page.get_by_role("button", name="Keep this picture").is_disabled()
    kept = upload(opened, 12)
    first = page.locator("#prediction-title").text_content().removeprefix("Probability: ")
    page.get_by_role("button", name="Keep this picture").click()
    assert page.evaluate("document.activeElement.textContent") == "Keep this picture"
    panels = region.locator("figure")
    same = [parts_drawn(panels.nth(i).locator(".heat")) for i in range(2)]
    assert (same[0] == same[1]).all()
    now = upload(opened, 7)
    second = page.locator("#prediction-title").text_content().removeprefix("Probability: ")
    assert second != first
    titles = region.locator(".heat-title").all_text_contents()
    assert titles == [
        f"Kept: digit-12.png. For {first}: {kept['headline']:.3f}",
        f"Now: digit-7.png. For {second}: {now['headline']:.3f}",
    ]
    assert (parts_drawn(panels.first.locator(".heat")) != same[0]).any() == (largest(now) > largest(kept))
    assert region.locator(".heat-key").get_by_text("of the class above each heat map").is_visible()
    end = re.search(r"raises \(\+([\d.]+)\)", region.locator(".heat-bar").inner_text())
    assert float(end[1]) == pytest.approx(max(largest(kept), largest(now)), abs=6e-4)  # one scale for both
    compared(opened, kept, now)

    box = panels.first.locator(".heat").bounding_box()
    place = {"x": 0.6 * box["width"], "y": 0.4 * box["height"]}
    panels.first.locator(".heat").hover(position=place)
    said = re.fullmatch(r"patch 1,2: kept (\S+), now (\S+)", region.locator(".reading").text_content())
    assert [number(text) for text in said.groups()] == pytest.approx(
        [kept["values"]["patch 1,2"], now["values"]["patch 1,2"]], abs=6e-4
    )
    opened.keep_picture("picture-kept", full_page=True)
    whole = parts_drawn(panels.first.locator(".heat"))
    region.get_by_label("Certain sign only").check(force=True)
    assert (parts_drawn(panels.first.locator(".heat")) != whole).any()
    assert region.get_by_text("hold zero").is_visible()
    region.get_by_label("All parts").check(force=True)

    page.get_by_role("button", name="Go back to the kept picture").click()
    page.get_by_label("The picture, 8 by 8 pixels: digit-12.png").wait_for()
    assert opened.check_sum()["values"] == pytest.approx(kept["values"], abs=CLOSE)
    other = page.locator(".classes button").nth(1)  # the same picture for two classes
    name = other.locator(".class-name").text_content()
    other.click()
    now = opened.check_sum()
    assert region.locator(".heat-title").first.text_content().startswith(f"Kept: digit-12.png. For {first}: ")
    assert region.locator(".heat-title").last.text_content().startswith(f"Now: digit-12.png. For {name}: ")
    compared(opened, kept, now)
    region.get_by_label("The kept picture is explained for").select_option(name)
    compared(opened, now, now)
    assert region.locator(".heat-key").get_by_text(f"the probability (0 to 1) of {name}").is_visible()
    page.get_by_role("button", name="Forget it").click()
    assert not region.locator(".heat").first.is_visible()
    assert page.evaluate("document.activeElement.textContent") == "Keep this picture"


def largest(shown: dict[str, Any]) -> float:
    return max(map(abs, shown["values"].values()))


def compared(opened: Opened, kept: dict[str, Any], now: dict[str, Any]) -> None:
    """That the table of a comparison has the numbers of both pictures."""
    region = opened.page.get_by_role("region", name="What differs").first
    rows = [row.locator("th, td").all_text_contents() for row in region.locator("tbody tr").all()]
    assert len(rows) == len(now["values"])
    changes = []
    for part, *texts in rows:
        was, new, change = map(number, texts)
        assert [was, new] == pytest.approx([kept["values"][part], now["values"][part]], abs=6e-4)
        assert change == pytest.approx(now["values"][part] - kept["values"][part], abs=6e-4)
        changes.append(abs(change))
    assert changes == sorted(changes, reverse=True)


def test_a_kept_picture_works_by_keyboard(opened: Opened) -> None:
    page = opened.go("digits")
    upload(opened, 5)
    page.locator(".drop input").focus()
    for wanted, key in (
        ("Keep this picture", "Enter"), ("Raw", "ArrowLeft"), ("All parts", "ArrowRight"),
        ("The kept picture is explained for", "ArrowDown"), ("All numbers of both", "Enter"),
        ("Go back to the kept picture", "Enter"), ("Forget it", "Enter"),
    ):  # fmt: skip
        for _ in range(40):
            page.keyboard.press("Tab")
            focused = page.evaluate(FOCUSED)
            assert focused["tag"] == "BODY" or focused["outline"], focused
            if focused["name"].startswith(wanted):
                break
        else:
            raise AssertionError(f"{wanted!r} cannot be reached with Tab")
        page.keyboard.press(key)
        opened.settled()
    assert page.get_by_label("Smoothed").is_checked()
    assert page.get_by_text("Keep a picture to compare").is_visible()


def test_a_picture_is_dropped_and_what_is_none_is_refused(opened: Opened) -> None:
    page = opened.go("digits")
    file = page.locator(".drop input")
    file.set_input_files([{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no picture"}])
    page.get_by_text("“notes.txt” could not be read as a picture").wait_for()
    png = digit_png(7, size=301)
    page.evaluate(
        """([name, bytes]) => {
             const transfer = new DataTransfer();
             transfer.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
             const dropped = new DragEvent("drop", { dataTransfer: transfer, bubbles: true });
             document.querySelector(".drop").dispatchEvent(dropped);
           }""",
        [png["name"], list(png["buffer"])],
    )
    page.locator(".classes button").first.wait_for()
    first = opened.check_sum()
    assert not page.locator(".picture-input .error").is_visible()
    page.get_by_label("swap black and white").check()
    assert opened.check_sum()["values"] != first["values"]


# Quality, tokens ----------------------------------------------------------------------------------------------


def test_the_quality_tab_says_what_was_measured(opened: Opened) -> None:
    page = opened.go()
    quality = opened.served.ask("models/wine")["quality"]
    page.get_by_role("tab", name="Quality").click()
    text = page.locator("#panel-quality").inner_text()
    assert f"{100 * quality['l2'] / quality['label_norm']:.1f}%" in text
    assert f"{quality['calibration_rows']:,}" in text
    assert f"{quality['evaluations']:,}" in text
    assert "The server does not audit this model" in text


def test_a_server_with_tokens_asks_for_one(browser: Any, artifacts: Path) -> None:
    (artifacts / "tokens").write_text(TOKEN + "\n", encoding="utf-8")
    (artifacts / "tokens").chmod(0o600)
    for served in serve(artifacts, "--token-file", "tokens"):
        for opened in open_page(browser, served):
            page = opened.page
            page.goto(served.url)
            page.get_by_label("Token").fill("wrong")
            page.keyboard.press("Enter")
            page.get_by_text("This token was not accepted").wait_for()
            opened.complaints.clear()  # the browser notes every 401
            page.get_by_label("Token").fill(TOKEN)
            page.keyboard.press("Enter")
            page.locator(".waterfall .step").first.wait_for()
            opened.check_sum()
            assert not page.locator("#token-form").is_visible()
            assert page.evaluate("Object.values(sessionStorage)") == [TOKEN]
            assert TOKEN not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
            assert TOKEN not in page.locator("body").inner_html()
            page.reload()
            page.locator(".waterfall .step").first.wait_for()


def test_a_new_version_takes_over_and_the_row_stays(browser: Any, artifacts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    shutil.copytree(artifacts, folder)
    for served in serve(folder):
        for opened in open_page(browser, served):
            page = opened.go()
            page.get_by_label("alcohol", exact=True).fill("12.5")
            before = opened.check_sum()
            version = page.locator("#version").text_content()
            listed = served.ask("models")["models"]
            explainer = cortx.load(folder / "wine.cortx", model=models.wine)
            explainer.calibrate(models.wine_rows()[:60]).save(folder / "wine.cortx")
            while served.ask("models")["models"] == listed:  # the server looks at its folders every second
                time.sleep(0.1)
            page.get_by_label("hue", exact=True).select_option("low")
            page.wait_for_function("old => document.getElementById('version').textContent !== old", arg=version)
            assert opened.check_sum()["bands"] != before["bands"]
            assert page.get_by_label("alcohol", exact=True).input_value() == "12.5"
            assert page.locator("#trouble").is_hidden()


def test_the_audit_is_watched_and_its_alarm_seen_on_every_tab(browser: Any, artifacts: Path) -> None:
    """The model becomes another one while it is served: what was learned of it no longer holds."""
    records = models.wine_rows().astype(object).where(lambda rows: rows.notna(), None).to_dict("records")
    drift = artifacts / models.DRIFT
    for served in serve(artifacts, "--audit", "1.0", "--audit-cpu", "1.0"):
        for opened in open_page(browser, served):
            page = opened.go()
            opened.settled()
            alarm = page.locator("#alarm")
            assert alarm.get_attribute("role") == "alert"
            page.get_by_role("tab", name="Quality").click()
            send_until(served, records, lambda audit: audit["audited"] >= 50)
            page.locator(".facts > div", has_text="Audited").get_by_text(
                re.compile(r"^(5\d|[6-9]\d|\d{3,})$")
            ).wait_for()
            assert not alarm.is_visible()
            opened.keep_picture("quality")
            drift.touch()
            try:
                send_until(served, records, lambda audit: audit["state"] == "alarm")
                alarm.wait_for()
            finally:
                drift.unlink()
            assert (alarm.text_content() or "").startswith("Audit alarm: ")
            assert page.locator("#panel-quality .state-alarm").is_visible()
            opened.keep_picture("alarm")
            page.get_by_role("tab", name="Explain").click()
            assert alarm.is_visible()
            page.get_by_label("Model").select_option("digits")
            page.locator(".drop").wait_for()
            assert not alarm.is_visible()  # it is about the other model


def send_until(served: Served, records: list[dict[str, Any]], done: Callable[[dict[str, Any]], bool]) -> None:
    """Asks for rows, a few at a time because the audit takes its time, until the audit says so."""
    for start in range(0, 4 * len(records), 8):
        some = [records[i % len(records)] for i in range(start, start + 8)]
        served.ask("explain", {"model": "wine", "records": some})
        audit = served.ask("models/wine/audit")
        if done(audit):
            return
        time.sleep(0.3)
    raise AssertionError(f"the audit never said so: {audit}")
