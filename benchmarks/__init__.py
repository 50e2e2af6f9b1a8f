"""Measurements of vqkit's speed and memory; every figure is a ratio measured side by side in one run."""
