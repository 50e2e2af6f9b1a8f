"""The formats that runner and evaluator share. No torch here, and no opinion on how training works.

``canonical`` reads and writes JSON strictly; ``schema`` checks a value against a closed schema; ``digests`` names
bytes; ``files`` reads once and writes once; ``tensors`` is safetensors with a declared layout; ``knobs`` is the
registry that ``intervention`` and ``contract`` are checked against; ``source`` lists the files that execute training;
``signature`` is the envelope of a signed manifest; ``run`` and ``campaign`` lay out what a run and a campaign leave on
disk; ``calibration`` is what the analysis of a campaign decided, which a later campaign can be planned from.
"""
