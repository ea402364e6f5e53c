"""`python -m refmoe.cli`, where the script is not on PATH."""

from refmoe.cli import main

main()
