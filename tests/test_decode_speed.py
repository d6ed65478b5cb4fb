"""The speed of decoding that a run records: what there is to decode, and none of what there is not.

How fast it is no test asks.
"""

import pytest

from mha_jax import cost, decode_speed
from tests.saved import program_and_state
from tests.synthetic import static


@pytest.mark.parametrize("model", [{}, {"positions": "rope", "share": "kv"}])
def test_a_task_that_goes_on(model: dict[str, object]) -> None:
    spec = static("copy", 2, 1, model={"d_model": 16, **model})
    program, state = program_and_state(spec, 0)
    told = decode_speed.of(program, state.params)
    assert told["decode_kv_bytes"] == cost.kv_bytes_resident(spec.model, program.spec.length)
    speed = told["decode_tokens_per_s"]
    assert speed is not None and 0 < speed < 1e8


@pytest.mark.parametrize("task", ["relations", "needle"])
def test_nothing_to_decode(task: str) -> None:
    program, state = program_and_state(static(task, 2), 0)
    told = decode_speed.of(program, state.params)
    assert told == {"decode_tokens_per_s": None, "decode_kv_bytes": None}
