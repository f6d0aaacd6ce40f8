"""`python -m curriculoss` is the command `curriculoss`."""

from curriculoss.cli import main

main()
