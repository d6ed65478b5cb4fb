"""What `scripts/slots.py` tells: which head writes which slot of a run's answer, and how well.

A slot is the part of the answer's columns that a head would write if its z were the answer, see
`analysis.slots`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import examine
from mha_jax.analysis import slots
from mha_jax.attention.stops import Replacement, on_one_axis
from mha_jax.heads_text import plain
from mha_jax.run import LoadedRun


class Told(NamedTuple):
    """The slots of a run; s slots, as many as the last layer has heads, n."""

    directory: str
    step: int
    blocks_sn: np.ndarray  # norms of the blocks of the Jacobian
    diagonal_share: float
    r2: list[float] | None  # of each slot; None: the task is no regression
    one_pattern: list[float] | None  # what one attention pattern can reach in it; None: not known


def of_run(run: LoadedRun, at: str | int = "last") -> Told:
    """The slots of one checkpoint: blocks on the first batch of the probe draw, R^2 on all of it.

    Raises:
      ValueError: no checkpoint, the corpus has changed, the run diverged, the last layer has no
        heads, or the answer's columns do not divide by its heads.
    """
    if run.summary.get("status") == "diverged":
        raise ValueError(f"{run.directory}: the run diverged, its weights are no numbers")
    program, params, batch = run.program, run.params(at), run.probe_batch()
    n_layers = len(run.run.static.model.layers)
    _, stops = program.model.apply(params, batch.inputs, probe=lambda stops: stops)
    if "z_btkgh" not in stops[-1]:
        raise ValueError(f"{run.directory}: the last layer of the model has no heads")
    z_btnh = on_one_axis("z_btkgh", stops[-1]["z_btkgh"])
    n_heads = z_btnh.shape[2]

    def answer(z_btnh: jax.Array) -> jax.Array:
        replace: list[dict[str, Replacement]] = [{} for _ in range(n_layers)]
        replace[-1]["z_btkgh"] = Replacement(jnp.ones(n_heads, bool), z_btnh)
        out_btov, _ = program.model.apply(params, batch.inputs, replace=replace)
        return out_btov.reshape(*out_btov.shape[:2], -1)

    try:
        blocks_sn = np.asarray(jax.jit(lambda z: slots.jacobian_blocks(answer, z))(z_btnh))
    except ValueError as error:
        raise ValueError(f"{run.directory}: {error}") from None
    r2 = _quality(run, params, n_heads) if run.spec.kind == "regression" else None
    known = run.run.static.task.baselines(run.run.static.model)
    bounds = [known.get(f"one_pattern/slot{i}") for i in range(n_heads)]
    return Told(
        directory=str(run.directory),
        step=run.step(at),
        blocks_sn=blocks_sn,
        diagonal_share=slots.diagonal_share(blocks_sn),
        r2=r2,
        one_pattern=[x for x in bounds if x is not None] or None,
    )


def _quality(run: LoadedRun, params: Any, n_slots: int) -> list[float]:
    """R^2 of each slot on the whole probe draw."""
    program, constants = run.program, run.probe_constants()

    @jax.jit
    def columns(i: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        batch = examine.probe_batch(program, constants, i)
        outputs, _ = program.model.apply(params, batch.inputs)
        asked_btov = jnp.broadcast_to(batch.loss_mask[..., None], outputs.shape)
        flat = (*outputs.shape[:2], -1)
        return outputs.reshape(flat), batch.targets.reshape(flat), asked_btov.reshape(flat)

    batches = [columns(jnp.int32(i)) for i in range(examine.n_batches(program))]
    out_btc, y_btc, asked_btc = (np.concatenate(x) for x in zip(*batches, strict=True))
    return slots.slot_r2(out_btc, y_btc, asked_btc, n_slots).tolist()


def to_text(told: Told) -> str:
    """Tables for a terminal."""
    n = len(told.blocks_sn)
    lines = [f"{told.directory}, step {told.step}", ""]
    lines.append("how strongly each slot of the answer follows each head (norm of the Jacobian)")
    lines.append("slot   " + "".join(f"{f'n{j}':>8}" for j in range(n)))
    lines += [
        f"{i:<7}" + "".join(f"{x:>8.3f}" for x in row) for i, row in enumerate(told.blocks_sn)
    ]
    lines.append(f"share of the squares on the diagonal: {told.diagonal_share:.3f}")
    for name, values in (("R^2", told.r2), ("one pattern at best", told.one_pattern)):
        if values is not None:
            lines.append(f"{name} of each slot: " + " ".join(f"{x:.3f}" for x in values))
    return "\n".join(lines)


def to_json(told: Told) -> dict[str, object]:
    """The same; what is undefined is null."""
    told_of = {"run": told.directory, "step": told.step, "blocks": told.blocks_sn}
    qualities = {"r2": told.r2, "one_pattern": told.one_pattern}
    return plain({**told_of, "diagonal_share": told.diagonal_share, **qualities})
