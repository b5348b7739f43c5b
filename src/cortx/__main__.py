"""``python -m cortx``: the command line."""

from cortx.interfaces.cli import main

if __name__ == "__main__":
    main()
