"""The independent side: whoever does not trust the runner recomputes every number from the raw evidence.

Nothing here shares code with training but the formats, and nothing needs torch. Read in this order:

1.  ``held``      what the verifier holds itself, and how it opens what it does not trust
2.  ``evidence``  V0, V1: the files of a run, each read once, every byte accounted for
3.  ``verify``    the ladder: V2 bound, V3 recomputed, V4 replayed
4.  ``metrics``   perplexity, utilization, mse, psnr, ssim
5.  ``replay``    the model once more, in numpy
6.  ``signature`` who sealed a run, where a key is given
7.  ``checks``    what a verification says, and what it does not prove
8.  ``reproduce`` V5: train once more through the runner, and compare
9.  ``exhibit``   what people want to see: training curve, a few reconstructions
10. ``score``     blind scores of a campaign, frozen when every cell has an outcome
11. ``unblind``   the arms, after that
"""
