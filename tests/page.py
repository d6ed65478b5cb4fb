"""What the tests of the attention page share: what a page holds, and layers that numpy made up."""

import base64
import functools
import json
import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np

from mha_jax.attention.core import Mask
from mha_jax.config import LayerSpec, StaticConfig
from mha_jax.page.view import Looked

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"quotes' &amp; `${1}`",
    "right\u202eto left\u200f",
    "\U0001f600 emoji",
    "NUL\0 and \x1b",
    "\u2028\u2029",
    "<!--",
    "%data%",
)


def data_of(html: str) -> dict[str, Any]:
    """What Python wrote into a page."""
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)
    return json.loads(text)


def array(data: dict[str, Any], name: str, *shape: int) -> np.ndarray:
    """An array of a page."""
    return np.frombuffer(base64.b64decode(data["arrays"][name]), "<f4").reshape(shape)


def fixed(x: Any, digits: int = 4) -> str:
    """A number as the page shows it: rounded from its exact value, a half up, no minus zero."""
    step = Decimal(1).scaleb(-digits)
    rounded = Decimal(float(x)).copy_abs().quantize(step, ROUND_HALF_UP)
    return f"{-rounded if x < 0 and rounded else rounded}"


def invented(static: StaticConfig, t: int, seed: int = 0, **changed: np.ndarray) -> Looked:
    """What a model of plain attention might have computed, in float32 from random q, k, v and W_O;
    `changed` replaces stops of every layer."""
    rng = np.random.default_rng(seed)
    spec, model = static.task.spec, static.model
    draw = functools.partial(rng.standard_normal, dtype=np.float32)
    layers, mixers = [], []
    for layer in model.layers:
        mask = Mask(spec.mask, spec.n_context, layer.window, layer.n_sinks)
        wo_ed = draw((layer.n_heads * layer.d_head, model.d_model))
        layers.append({**_stops(layer, mask.table(t), draw, t, wo_ed), **changed})
        mixers.append({"wo": wo_ed})
    return Looked(static, 7, [f"w{i}" for i in range(t)], layers, mixers)


def _stops(
    layer: LayerSpec, visible_ts: np.ndarray, draw: Any, t: int, wo_ed: np.ndarray
) -> dict[str, np.ndarray]:
    n, k, h = layer.n_heads, layer.n_kv_heads, layer.d_head
    g = n // k
    q_btkgh, k_bskh, v_bskh = draw((1, t, k, g, h)), draw((1, t, k, h)), draw((1, t, k, h))
    scores_bkgts = np.einsum("btkgh,bskh->bkgts", q_btkgh, k_bskh) * np.float32(h**-0.5)
    exp_bkgts = np.exp(np.where(visible_ts, scores_bkgts, -np.inf))
    weights_bkgts = (exp_bkgts / exp_bkgts.sum(-1, keepdims=True)).astype(np.float32)
    z_btkgh = np.einsum("bkgts,bskh->btkgh", weights_bkgts, v_bskh)
    head_out_btnd = np.einsum(
        "btnh,nhd->btnd", z_btkgh.reshape(1, t, n, h), wo_ed.reshape(n, h, -1)
    )
    return {
        "q_btkgh": q_btkgh,
        "k_bskh": k_bskh,
        "v_bskh": v_bskh,
        "scores_bkgts": scores_bkgts,
        "weights_bkgts": weights_bkgts,
        "z_btkgh": z_btkgh,
        "head_out_btnd": head_out_btnd,
    }
