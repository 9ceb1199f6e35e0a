"""Pages to browse the trajectories of run/ and of deployed runs.

python -m viewer                     # `make view`; http://127.0.0.1:8600
python -m viewer --run other/run --port 8601
"""

from __future__ import annotations

import sys

from viewer.app import main

if __name__ == "__main__":
    sys.exit(main())
