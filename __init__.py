"""optnoise: search the smallest noise under a privacy budget, train with it, check its bound.

Four packages, one subject each: `mechanisms` (noise), `accounting` (privacy), `search` (the smallest noise)
and `finetune` (private training). Importing this package imports none of them.
"""

__version__ = "0.1.0"
