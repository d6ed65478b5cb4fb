"""Values that a config key must refuse, drawn for each key from what the table of keys says."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from mha_jax import keys
from mha_jax.values import Key

HTML = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</script>", "<b>&amp;")
PATHS = ("../outside", "/abs", "a/b", "..", ".hidden", "a\\b", "~", "con:", "x" * 81, "a b")
STRANGE = ("nul\0byte", "li\nne", "esc\x1b[31m", "tab\t", "\udcff", "bell\x07")
FOREIGN = ("n\u00e4ive", "\u0664", "\u202eevil", "\u65e5\u672c", "\uff11")
# Python values that no key holds.
OBJECTS = ("[]", "{}", "{1}", "1j", "b'x'", "object()", "lambda: 1", "print", "(1, 2, 3)", "...")


class Bad(NamedTuple):
    """Something that must be refused."""

    kind: str
    keys: tuple[str, ...]  # the message must name one of them
    flags: tuple[str, ...] = ()
    body: str = ""  # lines of get_config, which change c


def of_key(name: str, draw: random.Random) -> Bad:
    """A bad value, or a bad spelling, of one key."""
    key = keys.find(name)
    assert key is not None
    task = name.split(".")[1] if name.count(".") == 2 else ""
    flags = (f"--config.task.name={task}",) if task else ()
    body = f"c.task.name = {task!r}\n" if task else ""
    kinds = ["typo", "object", *_kinds(key)]
    kind = draw.choice(kinds)
    if kind == "typo":
        wrong = typo(name, draw)
        return Bad(kind, (f"--config.{wrong}",), (*flags, f"--config.{wrong}=1"))
    if kind == "object":
        return Bad(kind, (name,), body=f"{body}c.{name} = {draw.choice(OBJECTS)}")
    text = _value(name, key, kind, draw)
    named = (name, f"--config.{name}")
    if kind == "tuple length":
        return Bad(kind, named, (*flags, "--config.model.n_layers=2", f"--config.{name}={text}"))
    # On a command line as a text, or in a file as the value that it stands for.
    if draw.random() < 0.3 and kind in ("range", "huge", "nan") and len(text) < 100:
        return Bad(kind, named, body=f"{body}c.{name} = float({text!r})")
    return Bad(kind, named, (*flags, f"--config.{name}={text}"))


def _kinds(key: Key) -> list[str]:
    if key.kind == "bool":
        return ["type", "html", "unicode", "null byte"]
    if key.kind == "str":
        return ["html", "unicode", "null byte", "traversal", "text"]
    kinds = ["type", "range", "nan", "huge", "unicode", "html", "null byte"]
    return [*kinds, "tuple length", "tuple entry"] if key.per_layer else kinds


def _value(name: str, key: Key, kind: str, draw: random.Random) -> str:
    if kind == "html":
        return draw.choice(HTML)
    if kind == "null byte" or (key.kind == "str" and not key.choices and kind == "unicode"):
        return draw.choice(STRANGE)
    if kind == "unicode":
        return draw.choice(FOREIGN)
    if kind == "traversal":
        return draw.choice(PATHS)
    if kind == "tuple length":
        low = 1 if key.low <= 1 else int(key.low)
        return ",".join([str(low)] * draw.choice((3, 4, 7)))
    if kind == "tuple entry":
        return "4," + draw.choice(("x", "", "1.5", "-1", "nan", "<b>"))
    if kind == "nan":
        return draw.choice(("nan", "inf", "-inf", "1e999", "NaN"))
    if kind == "huge":
        least = 13 if key.high < 1e12 or math.isinf(key.high) else int(math.log10(key.high)) + 2
        if math.isinf(key.high) and key.kind == "float":
            least = 400  # no number of this size is finite
        return draw.choice(("9", "1")) + "0" * draw.randrange(least, least + 3000)
    if kind == "range":
        return _outside(key, draw)
    if key.kind == "bool":
        return draw.choice(("yes", "1", "0", "on", "None", "2", ""))
    if key.kind == "int":
        return draw.choice(("two", "2.5", "1_6", "0x10", "[4]", "4 4", "1e3", "--4", "True", ""))
    if key.kind == "float":
        return draw.choice(("fast", "1,2", "0x1p3", "1_0.0", "[1]", "1e", "True", "", "1..2"))
    return "".join(draw.choice("abcdefgh=,") for _ in range(draw.randrange(3, 12))) + "=="


def _outside(key: Key, draw: random.Random) -> str:
    low, high = key.low, key.high
    ends = []
    if math.isfinite(low):
        gap = draw.choice((1, 2, 1000, 10**6))
        ends.append(str(int(low) - gap) if key.kind == "int" else repr(low - gap / 7))
        if key.above:
            ends.append(repr(float(low)))
    if math.isfinite(high):
        gap = draw.choice((1, 2, 10**6))
        ends.append(str(int(high) + gap) if key.kind == "int" else repr(high * 1.5 + gap))
    return draw.choice(ends) if ends else "nan"


def typo(name: str, draw: random.Random) -> str:
    """The name of a key with a letter changed, lost, doubled or swapped, which is no other key."""
    known = {*keys.all_keys(), *keys.SECTIONS}
    while True:
        at, how = draw.randrange(len(name)), draw.randrange(4)
        swapped = name[:at] + name[at : at + 2][::-1] + name[at + 2 :]
        wrong = (
            name[:at] + draw.choice("aeiounst_") + name[at + 1 :],
            name[:at] + name[at + 1 :],
            name[:at] + name[at] + name[at:],
            swapped,
        )[how]
        if wrong not in known and wrong != name:
            return wrong


def together(draw: random.Random) -> Bad:
    """Values that are right one by one and not together."""
    n = draw.choice((2, 4, 6, 8, 12, 16))
    k = draw.choice([k for k in range(1, 33) if n % k])
    d = draw.choice([d for d in range(8, 130) if d % n])
    length = draw.choice((3, 5, 9))
    options = (
        ((f"n_heads={n}", "d_model=96", f"n_kv_heads={k}"), ("model.n_kv_heads", "model.n_heads")),
        ((f"n_heads={n}", f"d_model={d}"), ("model.n_heads", "model.d_model")),
        (("positions=rope", "d_head=5"), ("model.d_head", "model.n_heads")),
        (("share=qk", "n_heads=4", "n_kv_heads=2"), ("model.share",)),
        (("n_layers=2", "n_heads=" + ",".join(["4"] * length)), ("model.n_heads",)),
        (("n_sinks=3",), ("model.n_sinks",)),
        (("window=4",), ("model.window",)),
        ((f"mixer={draw.choice(('core', '../grouped', '/etc/passwd', 'mla'))}",), ("model.",)),
        (("kv_from=1",), ("model.kv_from",)),
    )
    flags, named = draw.choice(options)
    return Bad("divisibility", named, tuple(f"--config.model.{flag}" for flag in flags))


def of_name(draw: random.Random) -> Bad:
    """A bad name: of the experiment, the work directory, the config file, a flag."""
    word = draw.choice((*HTML, *PATHS, *STRANGE, *FOREIGN))
    options = [
        Bad("name", ("experiment",), body=f"c.experiment = {word!r}"),
        Bad("name", ("experiment", "--config.experiment"), (f"--config.experiment={word}",)),
        # A flag's name ends at the first "=".
        Bad("name", (f"--config.{word}".partition("=")[0],), (f"--config.{word}=1",)),
        Bad("name", (f"--{word}".partition("=")[0],), (f"--{word}",)),
        Bad("name", ("--workdir",), ("--workdir=nul\0byte",)),
        Bad("name", ("--workdir",), ("--workdir=file.txt/below",)),
        Bad("name", ("--part",), (f"--part={word}",)),
        Bad("name", ("--workers",), (f"--workers={draw.choice((word, '0', '-1', '1e3'))}",)),
        Bad("name", ("--engine",), (f"--engine={word}",)),
    ]
    return draw.choice(options)
