"""The frozen side. A run goes through these modules in this order:

0. ``modules``      load the source from its files alone, and know what is loaded
1. ``config``       command line and configs → one request; anything that the contract freezes is refused
2. ``environment``  pin what decides numbers, and describe it
3. ``plan``         every digest that exists before training
4. ``train``        one trajectory through every mark
5. ``execute``      plan → train → evidence → manifest, each file written once
6. ``sweep``        many cells under one plan (outside the source digest)
"""

import sys

from runner import modules

modules.note(sys._getframe().f_code)
modules.install()
