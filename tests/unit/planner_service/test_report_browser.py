"""The report page in a browser: keys, light and dark, and no width of its own."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from infinipipe_planner.report_page.page import render_page
from support_views import job_view, step_view

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: the page is not seen by a browser"
)

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
DARK = "--blink-settings=preferredColorScheme=0"
PNG_SIZE = slice(16, 24)


def write_page(path: Path, script: str = "") -> Path:
    """Write a page of three steps; errors and what a script finds are left in the attributes of the root element."""
    source = render_page(job_view(step_view(0), step_view(1, slowdown=1.5), step_view(2, slowdown=None)))
    watch = "<script>window.onerror = (message) => { document.documentElement.dataset.error = message; };</script>"
    source = source.replace("<head>", f"<head>{watch}").replace("</body>", f"<script>{script}</script></body>")
    path.write_text(source)
    return path


def browse(page: Path, *flags: str, fragment: str = "") -> str:
    """Open a page in a browser with a profile of its own; return what it prints."""
    assert CHROMIUM is not None
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [CHROMIUM, *FLAGS, profile, *flags, page.as_uri() + fragment]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


def shown_steps(dom: str) -> list[str]:
    return re.findall(r'<article id="step-(\d+)" data-step="\d+">', dom)


def press(*keys: str) -> str:
    return "".join(
        f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{key}', bubbles: true }}));" for key in keys
    )


def test_the_newest_step_is_shown_alone_and_the_script_has_no_error(tmp_path: Path) -> None:
    dom = browse(write_page(tmp_path / "page.html"), "--dump-dom")

    assert shown_steps(dom) == ["2"]
    assert "data-error" not in dom


@pytest.mark.parametrize(
    ("keys", "step"),
    [(("ArrowLeft",), "1"), (("ArrowLeft", "ArrowLeft", "ArrowLeft"), "0"), (("ArrowLeft", "ArrowRight"), "2")],
)
def test_arrow_keys_turn_the_steps_and_stop_at_the_ends(tmp_path: Path, keys: tuple[str, ...], step: str) -> None:
    dom = browse(write_page(tmp_path / "page.html", press(*keys)), "--dump-dom")

    assert shown_steps(dom) == [step]
    assert re.search(rf'<g class="mark chosen" data-step="{step}">', dom)
    assert "data-error" not in dom


def test_a_link_to_a_step_shows_it(tmp_path: Path) -> None:
    assert shown_steps(browse(write_page(tmp_path / "page.html"), "--dump-dom", fragment="#step-1")) == ["1"]


def test_a_narrow_page_scrolls_its_drawings_and_not_itself(tmp_path: Path) -> None:
    script = "document.documentElement.dataset.wide = document.documentElement.scrollWidth > window.innerWidth;"

    dom = browse(write_page(tmp_path / "page.html", script), "--window-size=600,900", "--dump-dom")

    assert 'data-wide="false"' in dom


def test_light_and_dark_are_drawn(tmp_path: Path) -> None:
    page = write_page(tmp_path / "page.html")
    light, dark = tmp_path / "light.png", tmp_path / "dark.png"

    browse(page, "--window-size=1180,2100", f"--screenshot={light}")
    browse(page, "--window-size=1180,2100", DARK, f"--screenshot={dark}")

    for picture in (light, dark):
        content = picture.read_bytes()
        assert content[PNG_SIZE] == (1180).to_bytes(4) + (2100).to_bytes(4)
        assert len(content) > 50_000  # an empty page of this size has 10 kB
    assert light.read_bytes() != dark.read_bytes()
