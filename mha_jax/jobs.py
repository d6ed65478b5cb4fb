"""Which runs a worker does one after another, and on which core. Imports no jax."""

from __future__ import annotations

from collections.abc import Sequence

from mha_jax import cost, host
from mha_jax.planned import PlannedRun


def cpus(n_runs: int, workers: int | None) -> Sequence[int | None]:
    """The core of each worker on this machine; None: all cores.

    It depends on the whole sweep, not on what is left of it: a resumed run must find the same
    number of threads.
    """
    if workers is None:
        workers = 1 if host.accelerator() or n_runs == 1 else len(host.cores())
    if workers == 1:
        return [None]
    cores = host.cores()
    return [cores[i % len(cores)] for i in range(workers)]


def jobs_of(pending: list[PlannedRun], n_workers: int) -> list[list[PlannedRun]]:
    """Runs by group, the longest job first; groups are split only when there are fewer than
    workers."""
    groups: dict[str, list[PlannedRun]] = {}
    for planned in pending:
        groups.setdefault(planned.run.group_hash, []).append(planned)
    jobs = list(groups.values())
    while len(jobs) < n_workers and max(map(len, jobs)) > 1:
        jobs.sort(key=len)
        largest = jobs.pop()
        jobs += [largest[::2], largest[1::2]]

    def work(job: list[PlannedRun]) -> float:
        train = job[0].run.static.train
        return len(job) * train.n_steps * train.batch_size * cost.flops_per_token(job[0].run.static)

    return sorted(jobs, key=work, reverse=True)
