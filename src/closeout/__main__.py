"""`python -m closeout` is the command line."""

from closeout.cli.main import main

main()
