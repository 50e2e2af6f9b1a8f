"""Nearest-code search."""

import torch


def nearest_codes(latents_ND, codes_KD):
    codes_KD = codes_KD.float()
    mean = codes_KD.mean(0)
    codes = codes_KD - mean
    scores = torch.addmm((codes * codes).sum(1), latents_ND.float() - mean, codes.t(), alpha=-2)
    return scores.argmin(1)
