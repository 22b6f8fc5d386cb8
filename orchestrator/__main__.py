"""`python -m orchestrator`: the command line without an installed script."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Python puts the working directory first, where its files would replace installed packages. The installed script
    # does not have it either; modules that the user names are found there all the same.
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - sys.path holds text
        del sys.path[0]

    from orchestrator.cli import main

    main()
