"""The training loop of flax's own documentation: NNX modules, `nnx.Optimizer`, `nnx.jit`.

The same model as ours in `nnx.MultiHeadAttention`, `nnx.LayerNorm`, `nnx.Linear` and `nnx.Embed`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from mha_jax.bench.side import Handlers, timed

_built: dict[str, Any] = {}


class Block(nnx.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, d: int, n_heads: int, d_ff: int, rngs: nnx.Rngs):
        self.norm_mixer = nnx.LayerNorm(d, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(n_heads, d, use_bias=False, decode=False, rngs=rngs)
        self.norm_mlp = nnx.LayerNorm(d, rngs=rngs)
        self.wi = nnx.Linear(d, d_ff, use_bias=False, rngs=rngs)
        self.wo = nnx.Linear(d_ff, d, use_bias=False, rngs=rngs)

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        x_btd = x_btd + self.attention(self.norm_mixer(x_btd), is_causal=True)
        return x_btd + self.wo(nnx.gelu(self.wi(self.norm_mlp(x_btd))))


class Net(nnx.Module):
    """Tokens [b, t] to logits [b, t, v]."""

    def __init__(self, sizes: tuple[int, ...], n_heads: int, n_layers: int, rngs: nnx.Rngs):
        vocab, length, d, d_ff = sizes
        self.embed = nnx.Embed(vocab, d, rngs=rngs)
        self.positions = nnx.Embed(length, d, rngs=rngs)
        self.blocks = nnx.List(Block(d, n_heads, d_ff, rngs) for _ in range(n_layers))
        self.norm = nnx.LayerNorm(d, rngs=rngs)
        self.readout = nnx.Linear(d, vocab, use_bias=False, rngs=rngs)

    def __call__(self, tokens_bt: jax.Array) -> jax.Array:
        x_btd = self.embed(tokens_bt) + self.positions(jnp.arange(tokens_bt.shape[1]))[None]
        for block in self.blocks:
            x_btd = block(x_btd)
        return self.readout(self.norm(x_btd))


@nnx.jit
def train_step(
    model: Net, optimizer: nnx.Optimizer, inputs_bt: jax.Array, targets_bt: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One update in place; the loss and the norm of the gradient."""

    def objective(model: Net) -> jax.Array:
        logits_btv = model(inputs_bt)
        return optax.softmax_cross_entropy_with_integer_labels(logits_btv, targets_bt).mean()

    loss, grads = nnx.value_and_grad(objective)(model)
    optimizer.update(model, grads)
    return loss, optax.tree.norm(grads)


def build(run: dict[str, Any], n_models: int, read: str) -> dict[str, Any]:
    """`n_models` models with the parameters of `read`, and its batches in memory.

    Args:
      run: the JSON of a `config.Run` of configs/bench.py.
      n_models: how many.
      read: what `train_ours.build` wrote.
    """
    arrays = dict(np.load(read))
    models = [_model(run["static"]["model"], arrays) for _ in range(n_models)]
    adamw = _adamw(run)  # one for all: another one would be another program
    optimizers = [nnx.Optimizer(model, adamw, wrt=nnx.Param) for model in models]
    batches = [
        (jnp.asarray(x), jnp.asarray(y))
        for x, y in zip(arrays["inputs"], arrays["targets"], strict=True)
    ]
    _built.update(pairs=list(zip(models, optimizers, strict=True)), batches=batches, step=0)
    # Compiles on a model of its own.
    spare = _model(run["static"]["model"], arrays)
    train_step(spare, nnx.Optimizer(spare, adamw, wrt=nnx.Param), *batches[0])
    return {}


def _model(told: dict[str, Any], arrays: dict[str, np.ndarray]) -> Net:
    layer, d = told["layers"][0], told["d_model"]
    vocab, length = arrays["params/readout/out/w"].shape[1], arrays["inputs"].shape[2]
    sizes, n_layers = (vocab, length, d, layer["d_ff"]), len(told["layers"])
    model = Net(sizes, layer["n_heads"], n_layers, nnx.Rngs(0))
    heads = (layer["n_heads"], layer["d_head"])

    def put(to: Any, name: str, shape: tuple[int, ...] | None = None) -> None:
        array = arrays[f"params/{name}"]
        to[...] = jnp.asarray(array if shape is None else array.reshape(shape))

    put(model.embed.embedding, "encoder/embed/0")
    put(model.positions.embedding, "positions")
    for i, block in enumerate(model.blocks):
        for letter, linear in (
            ("q", block.attention.query),
            ("k", block.attention.key),
            ("v", block.attention.value),
        ):
            put(linear.kernel, f"layers/{i}/mixer/w{letter}", (d, *heads))
        put(block.attention.out.kernel, f"layers/{i}/mixer/wo", (*heads, d))
        put(block.wi.kernel, f"layers/{i}/mlp/wi/w")
        put(block.wo.kernel, f"layers/{i}/mlp/wo/w")
        for name in ("norm_mixer", "norm_mlp"):
            norm = getattr(block, name)
            put(norm.scale, f"layers/{i}/{name}/scale")
            put(norm.bias, f"layers/{i}/{name}/bias")
    put(model.norm.scale, "norm/scale")
    put(model.norm.bias, "norm/bias")
    put(model.readout.kernel, "readout/out/w")
    return model


def _adamw(run: dict[str, Any]) -> optax.GradientTransformation:
    optim, hypers, n = run["static"]["optim"], run["hypers"], run["static"]["train"]["n_steps"]
    peak, n_fall = hypers["lr"], round(optim["decay_fraction"] * n)
    warmup = optim["warmup_steps"]
    rate = optax.join_schedules(
        [
            optax.linear_schedule(peak / warmup, peak, warmup - 1),
            optax.constant_schedule(peak),
            optax.linear_schedule(peak, 0.0, n_fall),
        ],
        [warmup, n - n_fall],
    )
    return optax.chain(
        optax.clip_by_global_norm(optim["clip"]),
        optax.adamw(
            rate,
            b1=optim["b1"],
            b2=optim["b2"],
            eps=optim["eps"],
            weight_decay=hypers["weight_decay"],
            mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
        ),
    )


def _step(i: int) -> tuple[jax.Array, jax.Array]:
    batches, step = _built["batches"], _built["step"]
    _built["step"] += 1
    return train_step(*_built["pairs"][i], *batches[step % len(batches)])


def losses(n: int) -> dict[str, Any]:
    """Of n steps of the first model, made by the function that is timed."""
    told: dict[str, list[float]] = {"losses": [], "grad_norms": []}
    for _ in range(n):
        loss, norm = _step(0)
        told["losses"].append(float(loss))
        told["grad_norms"].append(float(norm))
    return told


def steps(n: int) -> dict[str, float]:
    """n steps of every model, one model after another."""

    def work() -> None:
        for i in range(len(_built["pairs"])):
            for _ in range(n):
                loss, _ = _step(i)
            jax.block_until_ready((loss, nnx.state(_built["pairs"][i][0])))

    return timed(work)


HANDLERS: Handlers = {"build": build, "losses": losses, "steps": steps}
