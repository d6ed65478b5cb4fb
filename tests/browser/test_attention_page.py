"""The attention page in a browser: every switch and click, against the model's float32 numbers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mha_jax.page import badges, constructed, html, runs, tabs
from mha_jax.page.demo import SENTENCE
from mha_jax.run import LoadedRun
from tests.browser import devtools
from tests.page import HOSTILE, fixed, invented
from tests.saved import saved
from tests.synthetic import static

pytestmark = pytest.mark.skipif(devtools.CHROMIUM is None, reason="chromium is not installed")

TEXT = "the cat sat ."
SEEN = TEXT.replace(" ", "␣")  # how its tokens are written
GQA = static(
    "text", 4, 2, n_layers=2, length=16, model={"positions": "rope", "norm": "rms", "bias": True}
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return saved(tmp_path_factory.mktemp("browser"), GQA, steps=(10, 20))


@pytest.fixture(scope="module")
def page(run: LoadedRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[devtools.Page]:
    """Opened on a page with the constructed tab, a run with two checkpoints, and hostile names."""
    place = tmp_path_factory.mktemp("chromium")
    looked = invented(static("text", 1, length=16), len(HOSTILE))._replace(tokens=list(HOSTILE))
    names = [[[badges.badge(HOSTILE[0], {f"role/{HOSTILE[0]}": {"corrected": 0.5}})]], {}]
    hostile = tabs.model(HOSTILE[0], [looked], lambda step: (names[0], {HOSTILE[1]: 0.5}))
    told = [
        constructed.tab(SENTENCE),
        runs.tab("Runs", [run], text=TEXT)[0],
        tabs.tab(HOSTILE[0], [hostile, hostile], text=HOSTILE, numbers_of=HOSTILE[1]),
    ]
    path = place / "page.html"
    path.write_text(html.page(HOSTILE[0], told))
    browser = devtools.Page(place / "profile")
    browser.open(path)
    yield browser
    browser.close()
    assert browser.console == []
    assert [url for url in browser.requests if url != path.resolve().as_uri()] == []


def tab(page: devtools.Page, i: int) -> None:
    page.run(f"document.getElementById('tab-{i}').click()")


def click(page: devtools.Page, id: str) -> None:
    page.run(f"document.getElementById('{id}').click()")


def text(page: devtools.Page, id: str) -> str:
    return page.run(f"document.getElementById('{id}').textContent")


def rows(page: devtools.Page) -> list[list[str]]:
    """The table of the row that is looked at: its cells without the key's name."""
    return page.run(
        "[...document.querySelectorAll('#row-keys tbody tr')]"
        ".map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))"
    )


def numbers(page: devtools.Page, id: str) -> list[str]:
    return page.run(f"[...document.querySelectorAll('#{id} .number')].map((x) => x.textContent)")


def click_cell(page: devtools.Page, canvas: str, t: int, s: int) -> None:
    """Clicks a cell of a canvas that shows a whole map."""
    left, top, scale, margin, cell = page.run(
        f"(() => {{ const c = {canvas}; c.scrollIntoView({{block: 'center'}});"
        " const b = c.getBoundingClientRect(); const scale = b.width / parseFloat(c.style.width);"
        " return [b.left, b.top, scale, c.drawn.margin, c.drawn.cell]; })()"
    )
    x, y = (start + scale * (margin + (i + 0.5) * cell) for start, i in ((left, s), (top, t)))
    page.mouse(x, y, ("mouseMoved", "mousePressed", "mouseReleased"))


def shown(found: dict[str, Any], head: int, t: int) -> list[list[str]]:
    """What the score, mask and weight of each key of a row are shown as."""
    scores, weights = found["scores"][1][0, head, t], found["weights"][1][0, head, t]
    return [
        [fixed(score), "sees", fixed(weight)] if s <= t else ["−∞", "hidden", fixed(0)]
        for s, (score, weight) in enumerate(zip(scores, weights, strict=True))
    ]


def test_a_click_shows_the_models_numbers(page: devtools.Page, run: LoadedRun) -> None:
    tab(page, 1)
    click(page, "layer-1")
    inputs = run.run.static.task.encode(TEXT)[None]
    for step, at in ((1, 20), (0, 10)):
        page.run(
            f"(() => {{ const x = document.getElementById('step'); x.value = '{step}';"
            " x.dispatchEvent(new Event('input')); })()"
        )
        assert text(page, "step-told") == str(at)
        _, found = run.apply(inputs, at, want=["q", "k", "scores", "weights", "z", "head_out"])
        for canvas, head, t, s in (
            ("document.querySelectorAll('#cards canvas')[3]", 3, 9, 4),
            ("document.getElementById('large')", 3, 11, 2),
            ("document.querySelectorAll('#cards canvas')[0]", 0, 12, 12),
        ):
            click_cell(page, canvas, t, s)
            assert text(page, "row-title") == f"Head {head}: what {SEEN[t]} (row {t}) reads"
            got = rows(page)
            assert [[row[1], row[2], row[5]] for row in got] == shown(found, head, t)
            assert f"weight {fixed(found['weights'][1][0, head, t, s])}" in text(page, "cell")
            z, out = found["z"][1][0, t, head], found["head_out"][1][0, t, head]
            assert numbers(page, "z") == [fixed(x) for x in z]
            assert numbers(page, "out") == [fixed(x) for x in out]
            # Each product, of the key that was clicked.
            q, k = found["q"][1][0, t, head], found["k"][1][0, s, head // 2]
            terms = page.run(
                "[...document.querySelectorAll('#terms-score li')].map((x) => x.textContent)"
            )
            pairs = enumerate(zip(q, k, strict=True))
            assert terms == [
                f"{j} {fixed(a)} × {fixed(b)} = {fixed(float(a) * float(b))}" for j, (a, b) in pairs
            ]


def test_hover_shows_the_terms_of_every_number(page: devtools.Page) -> None:
    tab(page, 1)
    for id, first in (
        ("z-3", "z 3 = "),
        ("out-5", "output 5 of the head = "),
        ("y-7", "output 7 = "),
    ):
        x, y = page.run(
            f"(() => {{ const c = document.getElementById('{id}'); c.scrollIntoView();"
            " const b = c.getBoundingClientRect(); return [b.left + 4, b.top + 4]; })()"
        )
        page.mouse(x, y, ("mouseMoved",))
        kind = id.partition("-")[0]
        assert text(page, f"terms-{kind}").startswith(first + text(page, id))
        terms = page.run(
            f"[...document.querySelectorAll('#terms-{kind} li')].map((x) => x.textContent)"
        )
        parts = [float(term.split(" ")[-1]) for term in terms]
        # Each of them is rounded to four decimals, and so is the sum.
        assert abs(sum(parts) - float(text(page, id))) < 1e-4 * len(parts)
        assert any(abs(part) > 0.01 for part in parts)
    page.run("document.getElementById('z').focus()")
    page.press("ArrowRight")
    assert text(page, "terms-z").startswith("z 4 = ")


def test_a_head_that_is_off_is_missing_from_the_output(page: devtools.Page, run: LoadedRun) -> None:
    tab(page, 1)
    _, found = run.apply(run.run.static.task.encode(TEXT)[None], want=["head_out"])
    out_tnd = found["head_out"][0][0]
    click_cell(page, "document.getElementById('large')", 7, 3)
    click(page, "on-1")
    size = np.linalg.norm
    row = size(out_tnd[7, 1]) / size(out_tnd[7].sum(0))
    everywhere = size(out_tnd[:, 1]) / size(out_tnd.sum(1))
    told = text(page, "change")
    assert f"by {100 * row:.1f} % of its length at this row, {100 * everywhere:.1f} % over" in told
    assert numbers(page, "y") == [fixed(x) for x in out_tnd[7].sum(0) - out_tnd[7, 1]]
    click(page, "reset")


def test_switches_change_what_is_shown(page: devtools.Page) -> None:
    tab(page, 1)
    trained, told = rows(page), text(page, "change")
    assert "differs from the model's by 0.0 %" in told
    for id in ("scale", "wo", "merged", "on-1"):
        click(page, id)
        changed = rows(page) != trained
        assert changed == (id in ("scale", "merged"))
        assert ("by 0.0 % of its length at this row, 0.0 %" in text(page, "change")) == (id == "wo")
        if id == "merged":
            assert text(page, "large-title").startswith("All heads as one")
            assert page.run("document.querySelectorAll('#cards canvas').length") == 1
            head = page.run("document.querySelector('#row-keys thead').textContent")
            assert "÷ √64" in head  # the whole width
        if id == "wo":
            assert "W_O is switched off" in text(page, "row")
        if id == "on-1":
            assert "1 head off" in text(page, "change")
        click(page, "reset")
        assert rows(page) == trained and text(page, "change") == told
    page.run(
        "(() => { const x = document.getElementById('temperature'); x.value = '-3';"
        " x.dispatchEvent(new Event('input')); })()"
    )
    assert text(page, "temperature-told") == "0.13" and rows(page) != trained
    click(page, "reset")
    assert rows(page) == trained


def test_the_arithmetic_is_copied_as_text(page: devtools.Page) -> None:
    tab(page, 1)
    click(page, "copy")
    lines = page.run("document.querySelector('#row textarea').value").splitlines()
    got = [line.split("\t")[2:] for line in lines[2 : 2 + len(TEXT)]]
    assert got == rows(page)


def test_keys_move_from_cell_to_cell(page: devtools.Page) -> None:
    tab(page, 1)
    page.run("document.getElementById('large').focus()")
    for key, end in (("ArrowDown", "row 7"), ("ArrowUp", "row 6"), ("ArrowRight", "row 6")):
        page.press(key)
        assert end in text(page, "row-title")
    assert "query 6" in text(page, "said")
    page.run("document.getElementById('tab-1').focus()")
    page.press("ArrowLeft")
    assert page.run("document.activeElement.id") == "tab-0"
    assert text(page, "large-title").startswith("Head 0")


def test_zoom_shows_fewer_cells(page: devtools.Page) -> None:
    tab(page, 1)
    whole = page.run("document.getElementById('large').drawn.cell")
    click(page, "zoom-in")
    assert page.run("document.getElementById('large').drawn.cell") > 1.5 * whole
    click(page, "zoom-out")
    assert page.run("document.getElementById('large').drawn.cell") == whole


def test_the_exercise_hides_names_until_all_are_guessed(page: devtools.Page) -> None:
    tab(page, 0)
    click(page, "exercise-start")
    cards = text(page, "cards")
    assert "Map A" in cards and not any(word in cards for word in ("Head", "kv", "1.00"))
    assert "Head" not in text(page, "row") + text(page, "large-title")
    assert page.run("document.getElementById('exercise-answers').disabled")
    for head, role in enumerate(("prev", "class_or_copy", "word", "word")):  # the last one is wrong
        page.run(
            f"(() => {{ const x = document.getElementById('guess-{head}'); x.value = '{role}';"
            " x.dispatchEvent(new Event('change')); })()"
        )
    click(page, "exercise-answers")
    assert text(page, "cards").count("✓ right") == 3
    assert text(page, "cards").count("✗ it is delimiter") == 1
    click(page, "exercise-end")
    assert "delimiter 1.00" in text(page, "cards")


def test_the_meter_counts(page: devtools.Page) -> None:
    tab(page, 1)
    for id, value, event in (
        ("context", "1000", "input"),
        ("batch", "3", "input"),
        ("dtype", "bfloat16", "change"),
    ):
        page.run(
            f"(() => {{ const x = document.getElementById('meter-{id}'); x.value = '{value}';"
            f" x.dispatchEvent(new Event('{event}')); }})()"
        )
    found = page.run("[...document.querySelectorAll('.bytes')].map((x) => x.textContent)")
    one = 2 * 2 * 16 * 1000 * 3 * 2  # layers, keys and values, width, tokens, sequences, bytes
    assert [x.split(" B")[0] for x in found] == [f"{n * one:,}" for n in (4, 2, 1)]


def test_hostile_strings_stay_text(page: devtools.Page) -> None:
    tab(page, 2)
    assert text(page, "title") == HOSTILE[0] and page.run("document.title.length") > 20
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.querySelectorAll('img, iframe, link').length") == 0
    intro = page.run("[...document.querySelectorAll('.intro')].map((x) => x.textContent)")
    assert intro == list(HOSTILE)
    names = page.run(
        "[...document.querySelectorAll('#row-keys tbody bdi')].map((x) => x.textContent)"
    )
    assert names == list(HOSTILE)
    assert HOSTILE[0] in text(page, "cards") and HOSTILE[1] in text(page, "numbers")
    assert text(page, "tab-2") == HOSTILE[0]


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_sticks_out(page: devtools.Page, width: int) -> None:
    page.resize(width, 800)
    for i in (0, 2):  # the others have no names
        tab(page, i)
        click(page, "exercise-start")
        assert page.run("document.documentElement.scrollWidth") <= width, f"exercise of tab {i}"
        click(page, "exercise-end")
        assert page.run("document.documentElement.scrollWidth") <= width, f"tab {i}"
    page.resize(1280, 900)


def test_every_control_has_a_name(page: devtools.Page) -> None:
    for i in range(3):
        tab(page, i)
        nameless = page.run(
            "[...document.querySelectorAll('input, select, button, canvas, textarea')]"
            ".filter((x) => !x.getAttribute('aria-label') && !x.textContent.trim())"
            ".filter((x) => !(x.labels && x.labels.length))"
            ".map((x) => x.id || x.tagName)"
        )
        assert nameless == []


def test_maps_have_the_colours_of_their_weights(page: devtools.Page) -> None:
    """Dark is 0, bright is 1: of the constructed neighbour head."""
    tab(page, 0)
    # In one reading: a second one makes the browser say that it is slow.
    pixels = page.run(
        "(() => { const c = document.querySelector('#cards canvas');"
        " const { margin, cell } = c.drawn;"
        " const all = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " const place = (i) => Math.floor(margin + (i + 0.5) * cell);"
        " const at = (t, s) => [0, 1, 2].map((i) => all[4 * (place(t) * c.width + place(s)) + i]);"
        " return [at(2, 1), at(2, 5)]; })()"
    )
    np.testing.assert_allclose(pixels, [[0xFD, 0xE7, 0x25], [0x44, 0x01, 0x54]], atol=2)
    click(page, "bright")
    assert text(page, "legend-end") == "largest"
    even = page.run(  # the first row, whose weights are equal
        "(() => { const c = document.getElementById('large'); const { margin, cell } = c.drawn;"
        " const all = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " const at = Math.floor(margin + cell / 2);"
        " return [0, 1, 2].map((i) => all[4 * (at * c.width + at) + i]); })()"
    )
    click(page, "bright")
    np.testing.assert_allclose(even, [0xFD, 0xE7, 0x25], atol=2)
