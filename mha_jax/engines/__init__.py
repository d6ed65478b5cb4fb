"""Where workers run.

base.py       what the pool knows of such a place
local.py      processes of this machine
hosts.py      one process on each of several machines, joined by jax.distributed
ray_tasks.py  tasks of a Ray cluster, each a process
options.py    the flags that choose
choice.py     the engine that they choose
"""
