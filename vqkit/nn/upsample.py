"""The decoder's transposed convolution: 4×4, stride 2, padding 1, which doubles the side of an image.

It is by definition the input gradient of the convolution with the same weight. On a CPU oneDNN computes that
convolution and its gradients well, and the transposed one badly (half the speed of this module, less with three output
channels), so it is written here in those terms. On CUDA torch's own operator is used.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.grad import conv2d_weight

KERNEL, STRIDE, PADDING = 4, 2, 1
FEW_CHANNELS = 8  # up to here one product and four additions beat oneDNN's input gradient


class Upsample(nn.ConvTranspose2d):
    """[N, C, H, W] → [N, C', 2H, 2W]; parameters as ``nn.ConvTranspose2d`` has them."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels, KERNEL, stride=STRIDE, padding=PADDING)

    def forward(self, x):
        if x.device.type == "cpu":
            return _TransposedConvolution.apply(x, self.weight, self.bias)
        return super().forward(x)


class _TransposedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        n, _, height, width = x.shape
        if weight.shape[1] <= FEW_CHANNELS:
            y = _add_patches(x, weight)
        else:
            y = _input_gradient(x, weight, (n, weight.shape[1], STRIDE * height, STRIDE * width))
        return y.add_(bias.view(-1, 1, 1))

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return (
            F.conv2d(gradient, weight, stride=STRIDE, padding=PADDING),
            conv2d_weight(gradient, weight.shape, x, STRIDE, PADDING),
            gradient.sum((0, 2, 3)),
        )


def _input_gradient(gradient, weight, shape):
    """The convolution's gradient to an input of ``shape``; its values play no part, so they are never written."""
    unwritten = gradient.new_empty(shape).to(memory_format=torch.channels_last)
    sides = ([STRIDE] * 2, [PADDING] * 2, [1] * 2, False, [0] * 2, 1)
    return torch.ops.aten.convolution_backward(gradient, unwritten, weight, None, *sides, [True, False, False])[0]


def _add_patches(x_NCHW, weight):
    """Each position's 4×4 patch by one matrix product, then the patches added where they overlap.

    Along each axis a patch at position i covers the padded rows 2i … 2i+3, that is the two whole blocks i and i+1 of
    two rows, so four additions of block grids place all of them.
    """
    n, _, height, width = x_NCHW.shape
    channels = weight.shape[1]
    rows = x_NCHW.permute(0, 2, 3, 1).reshape(n * height * width, -1)
    patches = rows @ weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1)
    patches = patches.view(n, height, width, 2, STRIDE, 2, STRIDE, channels).transpose(4, 5)
    padded = x_NCHW.new_zeros(n, height + 1, STRIDE, width + 1, STRIDE, channels)
    for i in (0, 1):
        for j in (0, 1):
            padded[:, i : i + height, :, j : j + width] += patches[:, :, :, i, j].transpose(2, 3)
    padded = padded.view(n, STRIDE * (height + 1), STRIDE * (width + 1), channels)
    return (
        padded[:, PADDING:-PADDING, PADDING:-PADDING].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    )
