"""`python -m viewer` serves the pages (viewer/app.py)."""

from __future__ import annotations

import sys

from viewer.app import main

if __name__ == "__main__":
    sys.exit(main())
