"""Campaigns: many cells, each an arm and a seed, under one plan.

1. ``definition``  a sweep as written → checked arms, seeds, marks
   ``calibrated``  what a confirmatory campaign takes from an earlier calibration
2. ``plan``        the campaign's folder: cells under opaque names, arms sealed
3. ``cells``       claims and publication, on disk alone; ``outcomes`` what became of them; ``waiting`` says what for
4. ``worker``      a process that trains one cell after another; ``host`` is where it meets single runs
5. ``local``       the executor that keeps workers running on this machine
6. ``command``     sweep, status, retry; ``progress`` and ``estimate`` are what people see
"""
