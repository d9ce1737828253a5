"""Starts the worker process. fisub runs this file as a script."""

import os
import sys

if __name__ == "__main__":  # processes that a solution spawns import this file, too
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path[0] == here:  # missing if $PYTHONSAFEPATH is set
        del sys.path[0]
    # Byte code of fisub's files would end up in its cache, and that of a solution's sources is useless to other
    # processes.
    sys.dont_write_bytecode = True
    # All of the package is imported before code of a solution, so no other module of these names can replace a part.
    sys.path.insert(0, os.path.dirname(here))
    from fisub_worker import below, server
    del sys.path[0]
    server.main(below.narrow())
