"""Functions of neural networks, for traced arrays and NumPy arrays alike.

Each is one operator to the optimizer, equal to its written-out form, or a few that are written out here; writing the
form out in NumPy is recognised too. Functions of images have PyTorch's names and meaning. Integers are computed in
float64, as NumPy's float functions do, except where what is computed of integers is an integer.
"""

from eqsat.nn.convolution import (
    conv1d,
    conv2d,
    conv3d,
)
from eqsat.nn.functions import (
    erf,
    gelu,
    layer_norm,
    log_softmax,
    relu,
    rms_norm,
    rsqrt,
    sigmoid,
    silu,
    softmax,
)
from eqsat.nn.normalization import (
    batch_norm,
    group_norm,
    instance_norm,
)
from eqsat.nn.padding import (
    pad,
)
from eqsat.nn.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    global_avg_pool,
    global_max_pool,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from eqsat.nn.quantization import (
    conv_integer,
    dequantize_linear,
    matmul_integer,
    qlinear_conv,
    qlinear_matmul,
    quantize_linear,
)
from eqsat.nn.resizing import (
    interpolate,
    pixel_shuffle,
    pixel_unshuffle,
)
from eqsat.nn.transposed import (
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_integer",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "dequantize_linear",
    "erf",
    "gelu",
    "global_avg_pool",
    "global_max_pool",
    "group_norm",
    "instance_norm",
    "interpolate",
    "layer_norm",
    "log_softmax",
    "matmul_integer",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "pad",
    "pixel_shuffle",
    "pixel_unshuffle",
    "qlinear_conv",
    "qlinear_matmul",
    "quantize_linear",
    "relu",
    "rms_norm",
    "rsqrt",
    "sigmoid",
    "silu",
    "softmax",
]
