"""What the framework is measured against, written as a good user of those libraries would.

Each module is served by `side.py`. The torch ones import no jax.
"""
