"""`python -m cnfgnn`: the command line."""

from cnfgnn.cli import main

main()
