"""`induction` against a search for the repeat; predictors by position are at chance."""

import jax
import numpy as np
import pytest

from mha_jax.tasks import induction

sample = jax.jit(induction.sample, static_argnums=(2, 3))

CONFIGS = [
    induction.Config(48, 32, 4, 12),
    induction.Config(4, 3, 2, 2),
    induction.Config(21, 11, 3, 10),
]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 48))
    for b in range(48):
        tokens = batch.inputs[b].tolist()
        asked = np.flatnonzero(batch.loss_mask[b, :, 0])
        start, size = asked[0], len(asked) + 1
        assert cfg.min_block <= size <= cfg.max_block
        assert asked.tolist() == list(range(start, start + size - 1))
        block = tokens[start : start + size]
        assert len(set(block)) == size
        # Every token of the block stands exactly twice, in the same order.
        for t, token in enumerate(block, start=start):
            earlier, here = [s for s, other in enumerate(tokens) if other == token]
            assert here == t
            if t < start + size - 1:
                assert batch.pointers["induction"][b, t] == earlier + 1
                assert batch.targets[b, t, 0] == tokens[t + 1] == tokens[earlier + 1]
        outside = np.delete(batch.pointers["induction"][b], asked)
        assert (outside == -1).all()
    assert (batch.pointers["previous"] == np.arange(cfg.length) - 1).all()


def test_block_and_gaps_are_uniform():
    cfg, n = CONFIGS[0], 6000
    batch = jax.tree.map(np.asarray, sample(jax.random.key(8), {}, cfg, n))
    asked = batch.loss_mask[..., 0] == 1
    size = asked.sum(1) + 1
    rates = np.bincount(size)[4:] / n
    np.testing.assert_allclose(rates, 1 / 9, rtol=0.2)  # 670 of each: five standard deviations
    second = asked.argmax(1)
    period = second - batch.pointers["induction"][np.arange(n), second] + 1
    for m in (4, 12):
        noise = 48 - 2 * m
        gap = (period - size)[size == m]
        start = (second - period)[size == m]
        assert gap.min() >= 0 and gap.max() <= noise
        # The mean of about 670 uniform numbers, four standard deviations.
        assert abs(gap.mean() - noise / 2) < 4 * noise / 12**0.5 / len(gap) ** 0.5
        assert abs((start - (noise - gap) / 2).mean()) < 4 * noise / 12**0.5 / len(gap) ** 0.5
        assert (start + m + gap + m <= 48).all()


def test_looking_by_position_alone_is_at_chance():
    """The best fixed offset, and the best key position of every query position."""
    cfg, n = CONFIGS[0], 20000
    batch = jax.tree.map(np.asarray, sample(jax.random.key(9), {}, cfg, n))
    tokens, asked = batch.inputs, batch.loss_mask[..., 0] == 1
    right = np.zeros((48, 48))  # [query, key]
    for offset in range(48):
        t = np.arange(offset, 48)
        hit = (tokens[:, t - offset] == batch.targets[:, t, 0]) & asked[:, t]
        right[t, t - offset] = hit.sum(0)
    by_offset = [np.trace(right, -offset) / asked.sum() for offset in range(48)]
    chance = 1 / 32
    assert max(by_offset) < chance + 0.01
    assert right.max(1).sum() / asked.sum() < chance + 0.05
    # Periods 12 to 36 fit every block and are equally likely, so their mean rate is the best one.
    # About .8 of the 20,000 blocks have one of them, each counting by its size: 2 % is three
    # standard errors.
    baseline = induction.baselines(cfg, 0, None)["fixed_offset"]
    assert np.mean(by_offset[11:36]) == pytest.approx(baseline, rel=0.02)


def test_with_a_fixed_period_a_fixed_offset_is_right():
    cfg = induction.Config(8, 5, 4, 4)
    assert induction.baselines(cfg, 0, None) == {"fixed_offset": 1.0}


def test_spec():
    spec = induction.spec(CONFIGS[0])
    assert (spec.input_sizes, spec.output_size, spec.chance) == ((32,), 32, 1 / 32)
    assert spec.roles == ("induction", "previous")
    assert spec.autoregressive
