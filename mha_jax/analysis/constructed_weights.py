"""The parameters of a `constructed.Construction`, written down.

A row of the stream is made of blocks; on arrival every number in it is 0 or 1:

    word | class | position | value | what head 0 of layer 0 read | ... of head 1 | ...

(of tokens the word is the value). A score is a bilinear form of two rows, x_t M x_s, summed over
the roles of a head (the QK circuit of Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits"): the identity on two `word` blocks finds the copies of a word, minus the identity on two
`position` blocks takes the query itself out. The keys are the blocks as they are and M is in the
queries, so that all heads share one key and one value map, and any number of kv heads gives the
same attention.

A head writes the mean of the values that it attended to, one-hot, into its own block; read-out o
shows the block of head o of the last layer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from mha_jax.analysis.constructed import Construction, Head
from mha_jax.config import LayerSpec, ModelSpec


def model_spec(built: Construction) -> ModelSpec:
    """Attention layers with learned positions and a residual, without norm and MLP."""
    d_head = max(_width(_key_columns(built)), built.spec.input_sizes[-1])
    layers = tuple(
        LayerSpec(
            mixer="grouped",
            n_heads=len(heads),
            n_kv_heads=built.n_kv_heads or len(heads),
            d_head=d_head,
            d_ff=0,
            window=0,
            n_sinks=0,
            kv_from=None,
        )
        for heads in built.layers
    )
    return ModelSpec(
        d_model=_width(_columns(built)),
        layers=layers,
        positions="learned",
        qk_from="content",
        norm="none",
        residual=True,
        bias=False,
        activation="gelu",
        scale=True,
        use_wo=True,
        share="none",
        qk_norm=False,
        gate=False,
        sink_logit=False,
        d_latent=0,
        d_latent_q=0,
        d_rope=0,
        kv_quant="none",
        kv_group=1,
        kv_tail=0,
        kv_init="mean",
        kernel="auto",
        compute_dtype="float32",
        cache_dtype="float32",
    )


def resplit(model: ModelSpec, n_heads: int) -> ModelSpec:
    """The same model with `n_heads` wider or narrower heads, for the same parameters.

    Raises:
      ValueError: a layer whose width n_heads does not divide, or which shares kv heads: its
        matrices then have other shapes.
    """
    layers = []
    for layer in model.layers:
        width = layer.n_heads * layer.d_head
        if width % n_heads or layer.n_kv_heads != layer.n_heads:
            raise ValueError(f"n_heads={n_heads} does not re-split {layer}")
        layers.append(
            dataclasses.replace(layer, n_heads=n_heads, n_kv_heads=n_heads, d_head=width // n_heads)
        )
    return dataclasses.replace(model, layers=tuple(layers))


def params(built: Construction) -> dict[str, Any]:
    """The parameters of `mha_jax.model.build(model_spec(built), built.spec)`, float32."""
    spec, at = built.spec, _columns(built)
    d = _width(at)
    embed = {str(i): np.zeros((size, d), np.float32) for i, size in enumerate(spec.input_sizes)}
    embed["0"][:, at["word"]] = np.eye(len(built.classes))
    embed["0"][:, at["class"]] = np.eye(max(built.classes) + 1)[list(built.classes)]
    if spec.inputs == "fields":
        embed[str(len(embed) - 1)][:, at["value"]] = np.eye(spec.input_sizes[-1])
    positions = np.zeros((spec.length, d), np.float32)
    positions[:, at["position"]] = np.eye(spec.length)

    out = np.zeros((d, len(spec.outputs), spec.output_size), np.float32)
    for o in range(len(spec.outputs)):
        out[at[_read(len(built.layers) - 1, o)], o] = np.eye(spec.output_size)
    return {
        "encoder": {"embed": embed},
        "positions": positions,
        "layers": {str(i): {"mixer": _mixer(built, i)} for i in range(len(built.layers))},
        "readout": {"out": {"w": out.reshape(d, -1)}},
    }


def _mixer(built: Construction, layer: int) -> dict[str, np.ndarray]:
    """wq, wk, wv and wo of a layer."""
    at, to = _columns(built), _key_columns(built)
    like = model_spec(built)
    n, k, h = (like.layers[layer].n_heads, like.layers[layer].n_kv_heads, like.layers[layer].d_head)
    d, size = like.d_model, built.spec.input_sizes[-1]
    wq_dnh, wo_nhd = np.zeros((d, n, h)), np.zeros((n, h, d))
    for j, head in enumerate(built.layers[layer]):
        for query, key, table in _forms(built, head):
            # The model divides scores by sqrt(d_head).
            wq_dnh[at[query], j, to[key]] += math.sqrt(h) * table
        wo_nhd[j, :size, at[_read(layer, j)]] = np.eye(size)
    wk_dh, wv_dh = np.zeros((d, h)), np.zeros((d, h))
    for name, columns in to.items():
        source = name
        if name == "before":
            previous = built.previous_head(layer)
            if previous is None:
                continue
            source = _read(layer - 1, previous)
        wk_dh[at[source], columns] = np.eye(columns.stop - columns.start)
    wv_dh[at["value" if "value" in at else "word"], :size] = np.eye(size)
    matrices = {
        "wq": wq_dnh.reshape(d, n * h),
        "wk": np.tile(wk_dh, (1, k)),
        "wv": np.tile(wv_dh, (1, k)),
        "wo": wo_nhd.reshape(n * h, d),
    }
    return {name: matrix.astype(np.float32) for name, matrix in matrices.items()}


def _forms(built: Construction, head: Head) -> list[tuple[str, str, np.ndarray]]:
    """(block of the query, block of the key, table [query feature, key feature]), to be summed."""
    n_words, n_classes, length = len(built.classes), max(built.classes) + 1, built.spec.length
    same_word, same_class, itself = np.eye(n_words), np.eye(n_classes), np.eye(length)
    to_delimiter = np.zeros((n_words, n_words))
    to_delimiter[:, built.delimiter] = 1
    to_first = np.zeros((length, length))
    to_first[:, 0] = 1
    roles = {
        "prev": [("position", "position", np.eye(length, k=-1))],
        "word": [("word", "word", same_word), ("position", "position", -itself)],
        "class": [("class", "class", same_class), ("word", "word", -same_word)],
        "class_or_copy": [("class", "class", same_class), ("position", "position", -itself)],
        "delimiter": [("word", "word", to_delimiter)],
        "induction": [
            ("word", "before", same_word),
            ("position", "position", -2 * (itself + to_first)),
        ],
    }
    return [
        (query, key, logit * table)
        for role, logit in built.logits(head).items()
        for query, key, table in roles[role]
    ]


def _columns(built: Construction) -> dict[str, slice]:
    """The blocks of the stream."""
    words, values = built.spec.input_sizes[0], built.spec.input_sizes[-1]
    widths = {"word": words, "class": max(built.classes) + 1, "position": built.spec.length}
    if built.spec.inputs == "fields":
        widths["value"] = values
    for i, heads in enumerate(built.layers):
        widths |= {_read(i, j): values for j in range(len(heads))}
    return _slices(widths)


def _key_columns(built: Construction) -> dict[str, slice]:
    """The blocks of queries and keys."""
    at = _columns(built)
    widths = {name: at[name].stop - at[name].start for name in ("word", "class", "position")}
    return _slices(widths | ({"before": widths["word"]} if built.has_induction else {}))


def _read(layer: int, head: int) -> str:
    return f"read by {layer}.{head}"


def _slices(widths: dict[str, int]) -> dict[str, slice]:
    ends = list(itertools.accumulate(widths.values()))
    return {
        name: slice(end - width, end)
        for (name, width), end in zip(widths.items(), ends, strict=True)
    }


def _width(columns: dict[str, slice]) -> int:
    return max(columns_.stop for columns_ in columns.values())
