"""Attention by its kernels: what `core.reference` says, from one fused program of an accelerator.

    fast     XLA, any device                                     `fast.py`
    cudnn    cuDNN's fused attention, NVIDIA GPUs, 16-bit inputs
    splash   jax's Pallas kernel, TPUs

All have the arguments of `fast.fast` and keep scores and softmax in float32 and out of the
device's main memory. What each cannot do is in `mha_jax/kernel_rules.py`, which of them a run uses
in `mha_jax/kernel_choice.py`.
"""

from __future__ import annotations

from typing import Any, Literal

import jax

from mha_jax.attention.core import Mask
from mha_jax.attention.fast import fast

_LANES = 128  # what a block of splash attention is a multiple of
_BLOCK = 512  # and at most this; its scores, float32 [block, block], are 1 MiB of a core's memory


def attend(
    kernel: str,
    q_btkgh: jax.Array,
    k_bskh: jax.Array,
    v_bskh: jax.Array,
    mask: Mask,
    scale: float,
    sink_kg: jax.Array | None = None,
) -> jax.Array:
    """z_btkgh of `core.reference`, by a kernel of its name; "auto" is "fast" here.

    Raises:
      ValueError: the kernel has no form for these arguments.
    """
    if kernel == "cudnn":
        return cudnn(q_btkgh, k_bskh, v_bskh, mask, scale, sink_kg)
    if kernel == "splash":
        return splash(q_btkgh, k_bskh, v_bskh, mask, scale, sink_kg)
    return fast(q_btkgh, k_bskh, v_bskh, mask, scale, sink_kg)


def cudnn(
    q_btkgh: jax.Array,
    k_bskh: jax.Array,
    v_bskh: jax.Array,
    mask: Mask,
    scale: float,
    sink_kg: jax.Array | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """z_btkgh by `jax.nn.dot_product_attention`, which reads grouped heads as they are.

    `implementation="xla"` is the same call on any device, in float32 too.

    Raises:
      ValueError: sinks, of which it has none.
    """
    if sink_kg is not None or mask.n_sinks:
        raise ValueError("cudnn has no sinks")
    b, t, k, g, h = q_btkgh.shape
    if mask.kind == "context_query":  # all that is seen, by every query
        k_bskh, v_bskh = k_bskh[:, : mask.n_context], v_bskh[:, : mask.n_context]
    z_btnh = jax.nn.dot_product_attention(
        q_btkgh.reshape(b, t, k * g, h),
        k_bskh,
        v_bskh,
        scale=scale,
        is_causal=mask.kind == "causal",
        # A window counts the query's own key, which jax's does not.
        local_window_size=(mask.window - 1, 0) if mask.window else None,
        implementation=implementation,
    )
    return z_btnh.reshape(b, t, k, g, h)


def splash(
    q_btkgh: jax.Array,
    k_bskh: jax.Array,
    v_bskh: jax.Array,
    mask: Mask,
    scale: float,
    sink_kg: jax.Array | None = None,
    interpret: bool = False,
) -> jax.Array:
    """z_btkgh by splash attention, which skips blocks of keys that no query of a block sees.

    `interpret=True` runs the kernel's statements one by one on any device, slowly.

    Raises:
      ValueError: a length that is not a multiple of 128.
    """
    # Not above: importing it takes longer than all of this package.
    from jax.experimental.pallas.ops.tpu import splash_attention

    b, t, k, g, h = q_btkgh.shape
    block = next((n for n in (_BLOCK, 2 * _LANES, _LANES) if t % n == 0), None)
    if block is None:
        raise ValueError(f"splash goes in blocks of {_LANES} positions, and there are {t}")
    sizes = splash_attention.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    kernel = splash_attention.make_splash_mha_single_device(
        mask=splash_attention.MultiHeadMask([_table(mask, t)] * (k * g)),
        block_sizes=sizes,
        interpret=interpret,
    )
    q_bnth = (q_btkgh * scale).reshape(b, t, k * g, h).swapaxes(1, 2)
    sinks = None if sink_kg is None else sink_kg.reshape(k * g)
    z_bnth = jax.vmap(lambda q, k, v: kernel(q, k, v, sinks=sinks))(
        q_bnth, k_bskh.swapaxes(1, 2), v_bskh.swapaxes(1, 2)
    )
    return z_bnth.swapaxes(1, 2).reshape(b, t, k, g, h)


def _table(mask: Mask, length: int) -> Any:
    """The mask as splash attention reads it: by a rule where it has one for it, since a table of a
    long sequence is large."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = (length, length)
    if mask.kind == "full":
        return masks.FullMask(shape)
    if mask.kind == "causal" and not mask.window:
        return masks.CausalMask(shape)
    if mask.kind == "causal" and not mask.n_sinks:
        return masks.LocalMask(shape, (mask.window - 1, 0), offset=0)
    return masks.NumpyMask(mask.table(length))
