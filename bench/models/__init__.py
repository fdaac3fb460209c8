"""Whole models as NumPy-style code: MiniLM with its trained weights, the others of ``bench.images``' operators with
random ones. ResNet-50, MobileNetV2 and SqueezeNet are in ``bench.vision``."""
