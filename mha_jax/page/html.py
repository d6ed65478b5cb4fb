"""The page as one file: the numbers as JSON, the script and the style beside them.

Every string of a run is in the JSON block, in ASCII, with <, > and & as escapes: it cannot end the
block, whatever it holds, and the script writes it as text. The content security policy allows the
one script and the one style by their hashes, and nothing else: no request leaves the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mha_jax import picture
from mha_jax.page import arithmetic

_FILES = Path(__file__).parent / "files"
# In the order in which they need each other.
SCRIPTS = (
    *("arithmetic.js", "data.js", "colour.js", "dom.js", "maps.js", "row.js", "text.js"),
    *("switches.js", "badges.js", "meter.js", "state.js", "cards.js", "large.js", "controls.js"),
    "page.js",
)
# By this a page is known as one that may be written over.
MARK = '<meta name="generator" content="mha_jax attention page">'


def page(title: str, tabs: Sequence[dict[str, Any]]) -> str:
    """The file.

    Args:
      title: of the page.
      tabs: as `tabs.tab` makes them.
    """
    arrays: dict[str, str] = {}
    colours = picture.COLOURS
    data = {
        "title": title,
        "digits": arithmetic.DIGITS,
        "colours": [list(colours[i : i + 3]) for i in range(0, len(colours), 3)],
        "tabs": _packed(list(tabs), arrays),
        "arrays": arrays,
    }
    parts = [(_FILES / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = '"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n"
    style = (_FILES / "page.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    holes = {
        "policy": policy,
        "mark": MARK,
        "style": style,
        "data": escaped(data),
        "script": script,
    }
    # Split before it is filled, so that nothing filled in can be taken for a hole.
    pieces = (_FILES / "page.html").read_text(encoding="utf-8").split("%")
    return "".join(holes.get(piece, piece) for piece in pieces)


def escaped(data: Any) -> str:
    """JSON that may stand between script tags: ASCII, without <, > and &."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def packed_bytes(tab: Any) -> int:
    """How long the numbers of a tab are in the page."""
    arrays: dict[str, str] = {}
    return len(escaped(_packed(tab, arrays))) + sum(map(len, arrays.values()))


def _packed(value: Any, arrays: dict[str, str]) -> Any:
    """The same with a name in place of each float32 array, which goes to `arrays` once, little
    endian, in base64: models that are re-splits of one another share most of theirs."""
    if isinstance(value, np.ndarray):
        raw = np.ascontiguousarray(value, "<f4").tobytes()
        name = hashlib.sha256(raw).hexdigest()[:12]
        arrays[name] = base64.b64encode(raw).decode()
        return name
    if isinstance(value, dict):
        return {key: _packed(x, arrays) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(x, arrays) for x in value]
    return value


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
