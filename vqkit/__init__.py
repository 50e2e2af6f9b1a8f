"""vqkit: train a one-layer vector quantizer under a frozen contract, and prove what came out.

Read the package in the order in which data flows through it:

1. ``vqkit.formats``  what both sides share: canonical JSON, digests, knobs, contract, plan, manifest
2. ``vqkit.data``     every image source becomes one canonical file with a digest
3. ``vqkit.nn``       autoencoder, one-layer quantizer, nearest-code search
4. ``runner``         check, plan, train, seal; campaigns of arms and seeds
5. ``evaluator``      verify, recompute the metrics, score blind, unblind
6. ``vqkit.analysis`` decide the epoch budget from frozen scores, and report it
"""

__version__ = "0.1.0"
