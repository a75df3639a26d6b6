"""`python -m securevfl` is the `securevfl` command."""

from securevfl.cli.app import main

if __name__ == "__main__":
    main()
