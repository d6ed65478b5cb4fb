"""What a model costs, by arithmetic on its config: parameters, cache bytes, operations, memory.

Letters as in `attention/core.py`: d d_model, n query heads, k kv heads, h d_head, f d_ff, o
read-outs of v outputs. Builds no array and imports no jax. What a mixer costs stands in
`layer_cost.py`.
"""

from __future__ import annotations

from mha_jax import mixers
from mha_jax.config import LayerSpec, ModelSpec, StaticConfig, TrainSpec
from mha_jax.layer_cost import DTYPE_BYTES, cache_bytes, mixer_cost
from mha_jax.tasks import TaskSpec

_DIRECT_LENGTH = 512  # attention/fast.py: above it, scores are not kept for the backward pass
_EVAL_BATCH = 128  # evaluate.py: sequences at a time
# examine.py: the same, and weights of a layer; analysis/ablation.py: heads at a time.
_PROBE_BATCH, _PROBE_FLOATS, _TOGETHER = 32, 2**24, 8


def attention_params(layer: LayerSpec, model: ModelSpec) -> int:
    """Parameters of a layer's mixer.

    For MHA with n * h = d and nothing else switched on this is 4 d^2 whatever n is (Vaswani et al.
    2017, section 3.2.2); GQA and MQA save 2 (n - k) h d of them (Shazeer 2019; Ainslie et al.
    2023).
    """
    return mixer_cost(layer, model).params


def kv_bytes_resident(model: ModelSpec, context: int) -> int:
    """Bytes that decoding keeps of a sequence with room for `context` tokens: of the arrays of
    `Model.init_cache`, all layers.
    """
    return sum(cache_bytes(layer, model, context) for layer in model.layers)


def kv_bytes_read(model: ModelSpec, context: int) -> int:
    """Bytes of the cache that a decode step reads with `context` tokens kept: every slot of every
    layer. A layer that reads another's keys and values reads them anew.
    """
    read = (
        layer if layer.kv_from is None else model.layers[layer.kv_from] for layer in model.layers
    )
    return sum(cache_bytes(layer, model, context) for layer in read)


def kv_bytes_per_token(model: ModelSpec, context: int) -> float:
    """`kv_bytes_resident` spread over the tokens of the context, without what a mixer keeps however
    long it is: 2 k h numbers a layer for attention without a window, whatever the context.
    """
    return tidy((kv_bytes_resident(model, context) - state_bytes(model)) / context)


def tidy(x: float) -> float:
    """The same number, an int where it is whole, as tables and people write it."""
    return int(x) if x.is_integer() else x


def kv_head_bytes_per_token(model: ModelSpec, context: int) -> list[float]:
    """What of `kv_bytes_per_token` one kv head of each layer has.

    Raises:
      ValueError: a layer whose cache is not made of kv heads of its own.
    """
    for i, layer in enumerate(model.layers):
        if layer.mixer != "grouped" or layer.kv_from is not None:
            what = f"the mixer {mixers.short(layer.mixer)!r}"
            what = what if layer.kv_from is None else f"the keys and values of {layer.kv_from}"
            raise ValueError(f"layer {i} has {what}; bytes by kv head need 'grouped' with its own")
    return [
        cache_bytes(layer, model, context) / context / layer.n_kv_heads for layer in model.layers
    ]


def state_bytes(model: ModelSpec) -> int:
    """Bytes decoding keeps for a sequence whatever its length, cache dtype: 0 for attention, whose
    cache grows; the state of a convolution or of linear attention."""
    elements = sum(mixer_cost(layer, model).state_elements for layer in model.layers)
    return elements * DTYPE_BYTES[model.cache_dtype]


def _width(layer: LayerSpec, model: ModelSpec) -> int:
    """Columns a layer hands on."""
    bare = layer.mixer in mixers.own() and not model.use_wo and layer.d_ff == 0
    return layer.n_heads * layer.d_head if bare else model.d_model


def _norm(model: ModelSpec, width: int) -> int:
    return {"none": 0, "rms": 1, "layer": 2}[model.norm] * width


def _mlp_matrices(layer: LayerSpec, model: ModelSpec) -> list[tuple[int, int]]:
    into = [(model.d_model, layer.d_ff)] * (2 if model.activation == "swiglu" else 1)
    return [*into, (layer.d_ff, model.d_model)] if layer.d_ff else []


def _encoder_matrices(model: ModelSpec, spec: TaskSpec) -> list[tuple[int, int]]:
    """Encoder matrices that are multiplied; a table of tokens or fields is read, not multiplied."""
    width = spec.d_encoder if spec.encoder == "mlp" else model.d_model
    first = [(spec.input_sizes[0], width)] if spec.inputs == "vectors" else []
    return first + ([(width, model.d_model)] if spec.encoder == "mlp" else [])


def _readout_matrices(model: ModelSpec, spec: TaskSpec) -> list[tuple[int, int]]:
    d_in, d_out = _width(model.layers[-1], model), len(spec.outputs) * spec.output_size
    if spec.readout == "none":
        return []
    if spec.readout == "mlp":
        return [(d_in, spec.d_readout), (spec.d_readout, d_out)]
    return [(d_in, d_out)]


def _linear(matrices: list[tuple[int, int]], bias: bool) -> int:
    return sum(i * o + (o if bias else 0) for i, o in matrices)


def model_params(model: ModelSpec, spec: TaskSpec) -> int:
    """Parameters of the whole model on a task: as many as `model.build(...).init` draws."""
    d, mlp_encoder = model.d_model, spec.encoder == "mlp"
    width = spec.d_encoder if mlp_encoder else d
    total = sum(spec.input_sizes) * width
    total += width if mlp_encoder or (model.bias and spec.inputs == "vectors") else 0
    total += (width + 1) * d if mlp_encoder else 0
    total += d if spec.query_token else 0
    total += spec.length * d if model.positions == "learned" else 0
    for layer in model.layers:
        total += _norm(model, d) + attention_params(layer, model)
        if layer.d_ff:
            total += _norm(model, d) + _linear(_mlp_matrices(layer, model), model.bias)
    total += _norm(model, _width(model.layers[-1], model))
    return total + _linear(_readout_matrices(model, spec), model.bias or spec.readout == "mlp")


def n_params(static: StaticConfig) -> int:
    """Parameters of a run's model."""
    return model_params(static.model, static.task.spec)


def weight_flops(model: ModelSpec, spec: TaskSpec) -> int:
    """Operations of a forward pass at one position in products with parameters: 2 for each
    multiply-and-add.
    """
    matrices = [*_encoder_matrices(model, spec), *_readout_matrices(model, spec)]
    for layer in model.layers:
        matrices += _mlp_matrices(layer, model)
    mixers_flops = sum(mixer_cost(layer, model).flops for layer in model.layers)
    return 2 * _linear(matrices, False) + mixers_flops


def flops_per_token(static: StaticConfig) -> int:
    """Operations of a forward pass a position: `weight_flops`, and those of attention.

    Scores and weighted values are counted over all keys of a sequence of the task's length, seen or
    not. The reference kernel multiplies exactly that; the fast one skips keys that no query of a
    chunk sees. A backward pass costs about twice as much again.
    """
    model, spec = static.model, static.task.spec
    per_position = weight_flops(model, spec)
    per_position += spec.length * sum(mixer_cost(x, model).flops_per_key for x in model.layers)
    # The learned query passes no encoder.
    spared = 2 * _linear(_encoder_matrices(model, spec), False) if spec.query_token else 0
    return (per_position * spec.length - spared) // spec.length


def _chunk_length(length: int) -> int:
    """Queries that the fast kernel takes at a time above `_DIRECT_LENGTH`."""
    return max(128, length // 32)


def memory_bytes(static: StaticConfig) -> int:
    """Memory of a run: see `memory`."""
    return memory(static.model, static.task.spec, static.train)


def memory(model: ModelSpec, spec: TaskSpec, train: TrainSpec) -> int:
    """Bytes that a run needs, an estimate from above for refusing absurd sizes.

    Parameters, gradients and AdamW's two moments (16 bytes each parameter), and the activations of
    the largest of its programs: a training step, which keeps those of all layers for its backward
    pass, an evaluation, a probe, or a probe without each head. The factors are fitted to what XLA
    reports for these programs on a CPU, so that the estimate is 1 to 4 times that.
    """
    length, d, n_heads = spec.length, model.d_model, max(layer.n_heads for layer in model.layers)
    chunked = model.kernel != "reference" and length > _DIRECT_LENGTH
    keys = _chunk_length(length) if chunked else length  # scores alive at a time, by position
    hidden = 8 if model.activation == "swiglu" else 6
    kept = 0  # in training, for each position
    for layer in model.layers:
        heads = (4 if model.gate else 2) * layer.n_heads + 2 * layer.n_kv_heads
        kept += 8 * d + 2 * heads * layer.d_head + hidden * layer.d_ff
        # Chunks make their scores again in the backward pass, so none are kept.
        kept += 0 if chunked else 2 * layer.n_heads * length
    outside = 2 * d + 2 * (spec.d_encoder + spec.d_readout)
    outside += 4 * len(spec.outputs) * spec.output_size
    outside += sum(spec.input_sizes) if spec.inputs == "vectors" else len(spec.input_sizes)
    forward = outside + 4 * d + 2 * max(layer.d_ff for layer in model.layers)
    most = _PROBE_FLOATS // (n_heads * length**2)
    probe_size = max(1, min(_PROBE_BATCH, train.n_probe, most))
    programs = (
        train.batch_size * (kept + 4 * n_heads * keys + outside),
        min(_EVAL_BATCH, train.n_eval) * (forward + 2 * n_heads * keys),
        probe_size * (forward + 4 * n_heads * length),
        probe_size * (4 * n_heads * length + _TOGETHER * (forward + 2 * n_heads * keys)),
    )
    return 16 * model_params(model, spec) + 4 * length * max(programs)


def variant(model: ModelSpec) -> str:
    """MHA (k = n), MQA (k = 1), GQA-k, GQA-4/4/2 where layers differ; MLA, GLA-k, GTA-k; or the
    mixers' names. Behind it, which layers share keys and values ("CLA-2": every two), and their
    quantisation.
    """
    told = [_kind(model)]
    read = [i if x.kv_from is None else x.kv_from for i, x in enumerate(model.layers)]
    shared = [i for i, j in enumerate(read) if i != j]
    if shared:
        f = read.count(0)
        every = all(j == i // f * f for i, j in enumerate(read))
        told.append(f"CLA-{f}" if every else f"kv of {'/'.join(map(str, read))}")
    return ", ".join(told + ([] if model.kv_quant == "none" else [model.kv_quant]))


def _kind(model: ModelSpec) -> str:
    names = list(dict.fromkeys(mixers.short(layer.mixer) for layer in model.layers))
    kv = [layer.n_kv_heads for layer in model.layers]
    counts = str(kv[0]) if len(set(kv)) == 1 else "/".join(map(str, kv))
    if names == ["mla"]:
        return "MLA" if counts == "1" else f"GLA-{counts}"
    if names == ["gta"]:
        return f"GTA-{counts}"
    if names != ["grouped"]:
        return "+".join(names)
    if all(layer.n_kv_heads == layer.n_heads for layer in model.layers):
        return "MHA"
    return "MQA" if set(kv) == {1} else f"GQA-{counts}"
