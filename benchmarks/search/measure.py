"""`python -m benchmarks.search.measure`: what `benchmarks.search.command` does.

Each process that a service spawns imports the main module anew. A server's is small. So this one is small, too, or the
processes of a benchmark would start seconds later than those of a server.
"""

from __future__ import annotations

if __name__ == "__main__":
    from benchmarks.search.command import main

    main()
