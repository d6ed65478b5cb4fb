"""Benchmarks: both sides of a ratio measured in turn, in one run. Behind `scripts/bench.py`.

A row tells `name`, `ratio`, the bound that it `must` keep, and what each side took. `asked.py` says
what a benchmark's module has.
"""
