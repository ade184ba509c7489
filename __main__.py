"""`python -m optnoise` is the `optnoise` command."""

from .cli import main

main()
