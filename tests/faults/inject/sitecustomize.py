"""Python imports this before anything else in every process that the suite launches: it lets go
wrong what the variable MHA_FAULTS asks for, a JSON list of objects with a `name` and arguments.

So the product needs no hooks. `injected.py` has what may go wrong outside of the product,
`defects.py` how the product itself may be wrong: with such a defect the suite must fail.
"""

import importlib.machinery
import json
import os
import sys


class _After:
    """Changes a module as soon as it has been imported."""

    def __init__(self, wanted):
        self.wanted = wanted  # name of a module -> functions that change it

    def find_spec(self, name, path, target=None):
        if name not in self.wanted:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            for change in self.wanted[name]:
                change(module)

        spec.loader.exec_module = exec_module
        return spec


def _install(asked):
    import defects
    import injected

    wanted = {}
    for one in asked:
        arguments = dict(one)
        known = {**injected.FAULTS, **defects.DEFECTS}[arguments.pop("name")]
        for module, change in known(**arguments).items():
            wanted.setdefault(module, []).append(change)
    for change in wanted.pop("", []):  # of Python itself
        change(None)
    sys.meta_path.insert(0, _After(wanted))


_asked = json.loads(os.environ.get("MHA_FAULTS") or "[]")
if _asked:
    _install(_asked)
