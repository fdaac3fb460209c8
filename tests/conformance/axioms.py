"""The 44 operator properties by which TASO verifies its substitutions, as facts, in the notation of ``taso``.

``p`` and ``q`` have no axes; ``t`` transposes; ``conv_full`` is a convolution without groups; pools are 3×3 and keep
the size, and ``avgpool`` divides by all nine places.
"""

from __future__ import annotations

TEXT = """
  1 2d a + (b + c) = (a + b) + c
  2 2d a + b = b + a
  3 2d a * (b * c) = (a * b) * c
  4 2d a * b = b * a
  5 2d (a + b) * c = a * c + b * c
  6 2d (a * p) * q = a * (p * q)
  7 2d (a + b) * p = a * p + b * p
  8 2d (a * b) * p = a * (b * p)
  9 2d t(a) * p = t(a * p)
 10 2d (a @ b) * p = a @ (b * p)
 11 2d cat1(a, b) * p = cat1(a * p, b * p); cat0(a, c) * p = cat0(a * p, c * p)
 14 4d relu(conv(a, b)) = conv_relu(a, b)
 15 2d relu(cat1(a, b)) = cat1(relu(a), relu(b)); relu(cat0(a, c)) = cat0(relu(a), relu(c))
 16 2d relu(t(a)) = t(relu(a))
 17 4d conv(a, b + c) = conv(a, b) + conv(a, c)
 18 4d conv(a + b, c) = conv(a, c) + conv(b, c)
 19 4d conv_full(a, c) + conv_full(b, d) = conv_full(cat1(a, b), cat1(c, d))
 20 2d a @ c + b @ d = cat1(a, b) @ cat0(c, d)
 21 2d cat1(a + b, c + d) = cat1(a, c) + cat1(b, d)
 22 2d cat1(a * b, c * d) = cat1(a, c) * cat1(b, d)
 23 4d cat0(conv(a, c), conv(b, c)) = conv(cat0(a, b), c)
 24 4d cat1(conv_full(a, b), conv_full(a, c)) = conv_full(a, cat0(b, c))
 25 2d a @ (b @ c) = (a @ b) @ c
 26 2d split0_0(cat0(a, b)) = a; split1_0(cat1(a, c)) = a
 27 2d split0_1(cat0(a, b)) = b; split1_1(cat1(a, c)) = c
 28 2d a @ cat1(b, c) = cat1(a @ b, a @ c)
 29 2d a @ (b + c) = a @ b + a @ c
 30 2d t(t(a)) = a
 31 2d t(a @ b) = t(b) @ t(a)
 32 2d t(cat0(a, b)) = cat1(t(a), t(b))
 33 2d cat0(cat1(a, b), cat1(c, d)) = cat1(cat0(a, c), cat0(b, d))
 34 2d t(a + b) = t(a) + t(b)
 35 2d t(a * b) = t(a) * t(b)
 36 4d cat1(avgpool(a), avgpool(b)) = avgpool(cat1(a, b))
 37 4d cat0(maxpool(a), maxpool(b)) = maxpool(cat0(a, b))
 38 4d cat1(maxpool(a), maxpool(b)) = maxpool(cat1(a, b))
 42 2d a * ones_like(a) = a
"""

OUTSIDE = {
    12: "of class approximates: zeros of the padding times an infinity are NaN, the padding of the product is zero",
    13: "as 12",
    39: "the mean of windows as a convolution with a matrix of one number, whose groups are as many as the channels: "
    "the notation has no such kernel",
    40: "of class approximates: where a kernel is zero, a NaN of the window is lost",
    41: "of class approximates: a NaN in a row spreads over the row of the product with an identity",
    43: "as 39",
    44: "of class approximates: places that a larger kernel adds are zero, and a NaN under them would spread",
}
"""Those that are not in the table, with the reason."""
