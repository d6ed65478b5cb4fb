"""Grouped attention block by block: memory grows with the length and not with its square.

The softmax goes over one block of keys after another and carries the largest score, the sum and the
weighted values of its rows (Milakov and Gimelshein 2018); the backward pass keeps of each row the
logarithm of the sum alone and makes the weights again (FlashAttention, Dao et al. 2022). Blocks
that no query sees are left out. A block stays in the cache of one core, whose matrix products are
then what the time goes to: sequences and kv heads follow one after another.

Letters as in `core`, and m pairs of a sequence and a kv head, i blocks of queries, j blocks of
keys, r the rows (t, g) of a block of queries, s its keys. Scores stand as [s, r], so that all
five products of the backward pass multiply rows with columns: a CPU multiplies with a
transposed matrix at half the speed.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.attention.core import LOWEST, Mask

# Measured on one x86 core with 1 MiB of second-level cache: others are up to a fifth slower.
_ROWS = 256
_KEYS = 128
# Below every real score, and so far above a hidden one that its exponential is 0.
_FLOOR = LOWEST / 2


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Which block of queries reads which block of keys."""

    mask: Mask
    length: int
    group: int  # query heads of a kv head, g

    @property
    def queries(self) -> int:
        """Positions of a block of queries."""
        return max(8, _ROWS // self.group)

    def sees(self, i: Any, j: Any) -> jax.Array:
        """Whether a row of block i of queries reads a key of block j, bool [s, r]."""
        shape = _KEYS, self.queries * self.group
        s = j * _KEYS + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        row = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        seen = self.mask.sees(i * self.queries + row // self.group, s)
        return seen & (s < self.length) if self.length % _KEYS else seen

    def pairs(self) -> np.ndarray:
        """Whether any query of a block reads any key of one, bool [i, j]."""
        t, s = np.arange(self.length)[:, None], np.arange(self.length)[None]
        n_keys = -(-self.length // _KEYS)
        pairs = []
        for start in range(0, self.length, self.queries):
            read = self.mask.sees(t[start : start + self.queries], s).any(axis=0)
            read = np.pad(read, (0, n_keys * _KEYS - self.length))
            pairs.append(read.reshape(n_keys, _KEYS).any(axis=1))
        return np.array(pairs)


def blocked(
    q_btkgh: jax.Array,
    k_bskh: jax.Array,
    v_bskh: jax.Array,
    mask: Mask,
    sink_kg: jax.Array | None = None,
) -> jax.Array:
    """z_btkgh of `fast`, float32, of queries that are scaled already. No forward derivatives."""
    b, t, k, g, _ = q_btkgh.shape
    plan = _Plan(mask, t, g)
    rows = _cut(q_btkgh.transpose(0, 2, 1, 3, 4).reshape(b * k, t * g, -1), plan.queries * g)
    keys, values = (
        _cut(x.transpose(0, 2, 1, 3).reshape(b * k, t, -1), _KEYS) for x in (k_bskh, v_bskh)
    )
    sink_mr = None
    if sink_kg is not None:
        sink_mr = jnp.tile(sink_kg, (b, plan.queries))
    z_mirh = _attend(plan, rows, keys, values, sink_mr)
    z_bktgh = z_mirh.reshape(b, k, -1, g, z_mirh.shape[-1])[:, :, :t]
    return z_bktgh.transpose(0, 2, 1, 3, 4)


def _cut(x: jax.Array, size: int) -> jax.Array:
    """Axis 1 in blocks of a size, the last one filled up with zeros."""
    m, n, h = x.shape
    return jnp.pad(x, ((0, 0), (0, -n % size), (0, 0))).reshape(m, -1, size, h)


def _listed(pairs: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Of each row of a table the columns that are true, int [rows, most], and how many."""
    order = np.argsort(~pairs, axis=1, kind="stable")[:, : max(1, pairs.sum(axis=1).max())]
    return jnp.asarray(order, jnp.int32), jnp.asarray(pairs.sum(axis=1), jnp.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    plan: _Plan,
    q_mirh: jax.Array,
    k_mjsh: jax.Array,
    v_mjsh: jax.Array,
    sink_mr: jax.Array | None,
) -> jax.Array:
    """z_mirh of queries that are scaled already, float32."""
    return _attend_keeping(plan, q_mirh, k_mjsh, v_mjsh, sink_mr)[0]


def _attend_keeping(plan: _Plan, *inputs: Any) -> tuple[jax.Array, Any]:
    z_mirh, log_total_mir = jax.lax.map(lambda one: _forward(plan, *one), inputs)
    return z_mirh, (*inputs, z_mirh, log_total_mir)


def _gradients(plan: _Plan, kept: Any, dz_mirh: jax.Array) -> Any:
    return jax.lax.map(lambda one: _backward(plan, *one), (*kept, dz_mirh))


_attend.defvjp(_attend_keeping, _gradients)


def _times(a: jax.Array, b: jax.Array) -> jax.Array:
    """A product in the dtype of its second factor, summed in float32."""
    return jax.lax.dot(a.astype(b.dtype), b, preferred_element_type=jnp.float32)


def _forward(
    plan: _Plan, q_irh: jax.Array, k_jsh: jax.Array, v_jsh: jax.Array, sink_r: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """z_irh, and the logarithm of each row's sum of exponentials."""
    v_jhs = v_jsh.swapaxes(1, 2)
    n_rows, width = q_irh.shape[1], v_jsh.shape[2]
    start = jnp.full(n_rows, _FLOOR), jnp.zeros(n_rows)
    start = start if sink_r is None else (sink_r, jnp.ones(n_rows))

    def block(of: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q_hr, i, read, n_read = of

        def add(n: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            largest_r, total_r, z_hr = carry
            j = read[n]
            scores_sr = jnp.where(plan.sees(i, j), _times(k_jsh[j], q_hr), LOWEST)
            now_r = jnp.maximum(largest_r, scores_sr.max(axis=0))
            exp_sr, old_r = jnp.exp(scores_sr - now_r[None]), jnp.exp(largest_r - now_r)
            z_hr = z_hr * old_r[None] + _times(v_jhs[j], exp_sr.astype(v_jhs.dtype))
            return now_r, total_r * old_r + exp_sr.sum(axis=0), z_hr

        carry = *start, jnp.zeros((width, n_rows))
        largest_r, total_r, z_hr = jax.lax.fori_loop(0, n_read, add, carry)
        total_r = jnp.where(total_r > 0, total_r, 1.0)  # a row that sees nothing
        return (z_hr / total_r[None]).T, largest_r + jnp.log(total_r)

    read, n_read = _listed(plan.pairs())
    return jax.lax.map(block, (q_irh.swapaxes(1, 2), jnp.arange(len(read)), read, n_read))


def _backward(
    plan: _Plan,
    q_irh: jax.Array,
    k_jsh: jax.Array,
    v_jsh: jax.Array,
    sink_r: jax.Array | None,
    z_irh: jax.Array,
    log_total_ir: jax.Array,
    dz_irh: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Gradients by queries, keys, values and sinks (Dao et al. 2022, appendix B)."""
    dtype = v_jsh.dtype
    mean_ir = (dz_irh * z_irh).sum(axis=-1)  # the weights' mean of their own gradient
    dz_irh = dz_irh.astype(dtype)
    q_ihr, dz_ihr, k_jhs = (x.swapaxes(1, 2) for x in (q_irh, dz_irh, k_jsh))

    def block(dq_ihr: jax.Array, of: tuple[jax.Array, ...]) -> Any:
        k_sh, k_hs, v_sh, j, readers, n_readers = of

        def add(n: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            dq_ihr, dk_sh, dv_sh = carry
            i = readers[n]
            scores_sr = _times(k_sh, q_ihr[i])
            weights_sr = jnp.exp(scores_sr - log_total_ir[i][None])
            weights_sr = jnp.where(plan.sees(i, j), weights_sr, 0.0)
            by_weight_sr = _times(v_sh, dz_ihr[i])
            by_score_sr = (weights_sr * (by_weight_sr - mean_ir[i][None])).astype(dtype)
            return (
                dq_ihr.at[i].add(_times(k_hs, by_score_sr)),
                dk_sh + _times(by_score_sr, q_irh[i]),
                dv_sh + _times(weights_sr, dz_irh[i]),
            )

        f32 = jnp.float32
        carry = dq_ihr, jnp.zeros(k_sh.shape, f32), jnp.zeros(v_sh.shape, f32)
        dq_ihr, *of_keys = jax.lax.fori_loop(0, n_readers, add, carry)
        return dq_ihr, of_keys

    readers, n_readers = _listed(plan.pairs().T)
    blocks = k_jsh, k_jhs, v_jsh, jnp.arange(len(readers)), readers, n_readers
    dq_ihr, (dk_jsh, dv_jsh) = jax.lax.scan(block, jnp.zeros(q_ihr.shape), blocks)
    dsink_r = None
    if sink_r is not None:
        dsink_r = -(jnp.exp(sink_r[None] - log_total_ir) * mean_ir).sum(axis=0)
    dq_irh = dq_ihr.swapaxes(1, 2).astype(q_irh.dtype)
    return dq_irh, dk_jsh.astype(k_jsh.dtype), dv_jsh.astype(dtype), dsink_r
