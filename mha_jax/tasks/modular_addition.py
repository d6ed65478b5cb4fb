"""Modular addition: (a + b) mod p, where some pairs are never seen in training.

p = 5 (- is not asked):

    position   0  1  2
    input      3  4  =
    target     -  -  2
    a          -  -  0        where the addends stand
    b          -  -  1

All p * p pairs are divided once, by task.seed: `train_fraction` of them are the training split, the
rest is halved into validation and test. So validation and test measure generalisation, and a model
may fit its training pairs long before it finds the rule: "grokking" (Power et al. 2022,
arXiv:2201.02177), which needs weight decay of about 1. With one layer the rule found is addition of
angles (Nanda et al. 2023, arXiv:2301.05217: p = 113, 30 % of the pairs, 4 heads, d = 128). Smaller
p need a larger share: with p = 23 and 60 % of the pairs three seeds were seen between .92 and 1,
and .63 without weight decay. A batch is drawn from its split with replacement.

Heads needed: one is enough to bring both addends to "="; four are customary, without a proof that
they are needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.config import ModelSpec
from mha_jax.tasks import Batch, TaskSpec, bounds


@dataclasses.dataclass(frozen=True)
class Config:
    """The modulus, p, and how much of the table of sums is seen in training."""

    modulus: int
    train_fraction: float


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and a split without a pair."""
    sizes = list(bounds.outside(cfg, modulus=(2, 1024)))
    yield from sizes
    if not sizes and not 1 <= _n_train(cfg) <= cfg.modulus**2 - 2:
        yield (
            "train_fraction",
            f"must leave pairs to all three splits, of {cfg.modulus**2}",
            "use a share between 0 and 1, such as 0.5",
        )


def _n_train(cfg: Config) -> int:
    return round(cfg.train_fraction * cfg.modulus**2)


def spec(cfg: Config) -> TaskSpec:
    """Tokens: the numbers and "=". Chance: any fixed number."""
    return TaskSpec(
        inputs="tokens",
        input_sizes=(cfg.modulus + 1,),
        length=3,
        mask="causal",
        outputs=("sum",),
        output_size=cfg.modulus,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.modulus,
        solved_at=0.99,
        roles=("a", "b"),
        vocab=(*map(str, range(cfg.modulus)), "="),
    )


def constants(cfg: Config, seed: int, split: str) -> dict[str, Any]:
    """pairs: int32 [pairs of the split, 2]."""
    order = np.random.default_rng(seed).permutation(cfg.modulus**2)
    n_train = _n_train(cfg)
    n_validation = (len(order) - n_train) // 2
    train, validation, test = np.split(order, (n_train, n_train + n_validation))
    mine = {"train": train, "validation": validation, "test": test}[split]
    return {"pairs": np.stack(np.divmod(mine, cfg.modulus), axis=1).astype(np.int32)}


def baselines(cfg: Config, seed: int, model: ModelSpec) -> dict[str, float]:
    """`mirror`: the sum of (b, a) where the training split has it, any fixed number elsewhere.

    What a model reaches on the test split that learnt the training pairs by heart and that order
    does not matter.
    """
    del model
    known = np.zeros((cfg.modulus, cfg.modulus), bool)
    known[tuple(constants(cfg, seed, "train")["pairs"].T)] = True
    a, b = constants(cfg, seed, "test")["pairs"].T
    return {"mirror": float(np.where(known[b, a], 1.0, 1 / cfg.modulus).mean())}


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n pairs of the split."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    pairs = constants["pairs"]
    (bits,) = draw.columns(key, n, 1)
    pair_bt = jnp.take(pairs, draw.integers(bits[:, 0], pairs.shape[0]), axis=0)
    total_b1 = pair_bt.sum(axis=1, keepdims=True, dtype=jnp.int32) % cfg.modulus
    equals_b1 = jnp.full((n, 1), cfg.modulus, jnp.int32)
    asked_bt = jnp.broadcast_to(jnp.arange(3)[None, :] == 2, (n, 3))
    return Batch(
        inputs=jnp.concatenate([pair_bt, equals_b1], axis=1),
        targets=jnp.where(asked_bt, total_b1, 0)[..., None],
        loss_mask=asked_bt.astype(jnp.float32)[..., None],
        pointers={
            role: jnp.where(asked_bt, jnp.int32(place), -1) for place, role in enumerate("ab")
        },
    )
