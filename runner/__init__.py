"""The frozen side. A run goes through these modules in this order:

0. ``modules``      load the source from its files alone, and know what is loaded
1. ``config``       command line and configs → one request; anything that the contract freezes is refused
2. ``environment``  pin what decides numbers, and describe it
3. ``plan``         every digest that exists before training
4. ``train``        one trajectory through every mark
5. ``execute``      plan → train → evidence → manifest, each file written once
6. ``sweep``        many cells under one plan (outside the source digest)
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if sys.argv[:1] == ["-m"]:  # a command is starting: what lies beside the source, or where it starts, is no library
    beside = {os.getcwd()} | ({ROOT} if os.path.basename(ROOT) not in ("site-packages", "dist-packages") else set())
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) not in beside]

from runner import modules  # noqa: E402

modules.note(sys._getframe().f_code)
modules.install()
