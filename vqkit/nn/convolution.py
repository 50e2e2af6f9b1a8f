"""The autoencoder's convolutions, as a CPU computes them well; on CUDA torch's own operators are used.

oneDNN computes a convolution and its two gradients near the rate of a matrix product. What it does badly is written
here in terms of what it does well:

- the bias gradient is a sum, not a part of the weight gradient, which it slows down by up to a quarter, and which a
  transposed convolution would not get from a fast kernel at all;
- a transposed convolution to three channels is a convolution to blocks of 2×2 pixels.
"""

import torch
import torch.nn.functional as F
from torch import nn

KERNEL, STRIDE, PADDING = 4, 2, 1  # of a transposed convolution, which doubles the side of an image
FEW_CHANNELS = 8  # up to here blocks are faster
CHANNELS_AT_ONCE = 8  # a convolution to twelve channels takes longer than one to sixteen


class Convolution(nn.Conv2d):
    """[N, C, H, W] → [N, C', H/stride, W/stride], a ``nn.Conv2d`` with zero padding 1; ``rectify``: of the ReLU of its
    input, which is taken in place."""

    def __init__(self, in_channels, out_channels, kernel, stride=1, rectify=False):
        super().__init__(in_channels, out_channels, kernel, stride=stride, padding=PADDING)
        self.rectify = rectify

    def forward(self, x):
        if x.device.type == "cpu":
            return _Convolution.apply(x, self.weight, self.bias, self.stride, self.rectify)
        return super().forward(F.relu_(x) if self.rectify else x)


class Upsample(nn.ConvTranspose2d):
    """[N, C, H, W] → [N, C', 2H, 2W], a ``nn.ConvTranspose2d`` of 4×4, stride 2, padding 1, of the ReLU of its input,
    which is taken in place."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels, KERNEL, stride=STRIDE, padding=PADDING)

    def forward(self, x):
        if x.device.type == "cpu":
            return _TransposedConvolution.apply(x, self.weight, self.bias)
        return super().forward(F.relu_(x))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, stride, rectify):
        x = x.detach().relu_() if rectify else x
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.rectify = stride, rectify
        return F.conv2d(x, weight, bias, stride, PADDING)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        of_x, of_weight = _gradients(gradient, x, weight, ctx.stride, (ctx.needs_input_grad[0], True))
        if ctx.rectify:
            of_x = _before_relu(of_x, x)
        return of_x, of_weight, _sum_pixels(gradient), None, None


class _TransposedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        x = x.detach().relu_()
        ctx.save_for_backward(x, weight)
        if weight.shape[1] <= FEW_CHANNELS:
            return _upsample_in_blocks(x, weight, bias)
        return F.conv_transpose2d(x, weight, bias, STRIDE, PADDING)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        _, of_weight = _gradients(x, gradient, weight, (STRIDE, STRIDE), (False, True))
        of_x = _before_relu(F.conv2d(gradient, weight, None, STRIDE, PADDING), x)
        return of_x, of_weight, _sum_pixels(gradient)


def _before_relu(gradient, y):
    """The gradient before a ReLU from that of its output y; takes the place of ``gradient``."""
    return torch.ops.aten.threshold_backward.grad_input(gradient, y, 0, grad_input=gradient)


def _gradients(gradient, x, weight, stride, wanted):
    """(of x, of the weight) of the convolution of ``x``, from the gradient of its output; those that are wanted."""
    sides = (stride, (PADDING, PADDING), (1, 1), False, (0, 0), 1)
    return torch.ops.aten.convolution_backward(gradient, x, weight, None, *sides, (*wanted, False))[:2]


def _sum_pixels(gradient_NCHW):
    """Sum over all but channels, [C]."""
    return gradient_NCHW.permute(0, 2, 3, 1).reshape(-1, gradient_NCHW.shape[1]).sum(0)


def _upsample_in_blocks(x, weight, bias):
    """A convolution of 2×2 to the pixels of blocks of 2×2, which tile a frame one pixel wider than the image.

    Along each axis block i holds the rows 2i−1 and 2i of the image: kernel rows 2 and 3 times position i−1, plus kernel
    rows 0 and 1 times position i.
    """
    (n, inputs, height, width), channels = x.shape, weight.shape[1]
    at_once = -(-4 * channels // CHANNELS_AT_ONCE) * CHANNELS_AT_ONCE
    kernel, offset = weight.new_zeros(at_once, 2, 2, inputs), bias.new_zeros(at_once)
    rows_and_columns = weight.unflatten(3, (2, 2)).unflatten(2, (2, 2)).flip(2, 4)  # C, C', (i, row), (j, column)
    kernel[: 4 * channels].view(2, 2, channels, 2, 2, inputs).copy_(rows_and_columns.permute(3, 5, 1, 2, 4, 0))
    offset[: 4 * channels].view(4, channels).copy_(bias)
    blocks = F.conv2d(x, kernel.permute(0, 3, 1, 2), offset, padding=1)[:, : 4 * channels]
    frame = blocks.unflatten(1, (2, 2, channels)).permute(0, 4, 1, 5, 2, 3)  # N, i, row, j, column, C'
    frame = frame.reshape(n, 2 * height + 2, 2 * width + 2, channels)
    return frame[:, 1:-1, 1:-1].permute(0, 3, 1, 2)
