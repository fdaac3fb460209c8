"""Laws of XLA's algebraic simplifier as TensorRight states them (Arora et al. 2025), as facts, over floats.

The notation is that of ``taso`` with numbers and comparisons. Which constant a law is for is free there, and one here.
``sumN`` sums over an axis, ``revN`` reverses one.
"""

from __future__ import annotations

REFUTED = frozenset(("sub2", "mul3", "mul4", "compare3", "compare4", "compare5"))
"""Those that do not hold for floats: a NaN or an infinity is lost."""

TEXT = """
add1 2d (a + 2) + 3 = a + 5
add2 2d a + 0 = a
add3 2d 0 + a = a
add4 2d 3 + a = a + 3
sub0 2d a - 0 = a
sub1 2d a - 3 = a + (-3)
sub2 2d a - a = 0 * ones_like(a)
mul1 2d a * 1 = a
mul2 2d 1 * a = a
mul3 2d a * 0 = ones_like(a) * 0
mul4 2d 0 * a = 0 * ones_like(a)
mul5 2d (a * 2) * (b * 3) = (a * b) * 6
mul6 2d (a * 2) * 3 = a * 6
mul7 2d (a * 2) * b = (b * 2) * a
mul8 2d a * c + b * c = (a + b) * c
mul9 2d abs(a) * abs(a) = a * a
mul10 2d exp(a) * exp(b) = exp(a + b)
div1 2d a / 1 = a
div2 2d a / 4 = a * 0.25
div3 2d (a / b) / (c / d) = (a * d) / (b * c)
div4 2d a / (b / c) = (a * c) / b
max1 2d maximum(a, -inf) = a
max2 2d minimum(a, inf) = a
clamp1 2d minimum(maximum(minimum(maximum(a, -1), 2), -1), 2) = minimum(maximum(a, -1), 2)
clamp2 2d maximum(-1, minimum(a, 2)) = minimum(maximum(a, -1), 2)
compare1 2d a > a = b < b
compare3 2d a >= a = ones_like(a) > 0
compare4 2d a <= a = ones_like(a) > 0
compare5 2d a >= a = b <= b
logical9 2d (a < b) & (c > a) = a < minimum(b, c)
logical10 2d maximum(a, b) > b = a > b
logical11 2d maximum(a, b) > a = b > a
not1 2d ~(~(a < b)) = a < b
not2 2d -(-a) = a
select1 2d where(a < b, c, c) = c
select4 2d where(~(a < b), c, d) = where(a < b, d, c)
relabel1 2d t(t(t(a))) = t(a)
relabel2 2d t(t(a)) = a
reverse2 2d rev0(rev0(a)) = a
reverse3 2d rev0(rev1(rev0(a))) = rev1(a)
reverse4 2d rev0(a + 3) = rev0(a) + 3
concat2 2d cat1(a, cat1(b, c)) = cat1(cat1(a, b), c)
concat4 2d cat1(split1_0(cat1(a, b)), split1_1(cat1(a, b))) = cat1(a, b)
slice8 2d split0_1(cat0(a, b)) = b
slice10 2d split0_0(cat0(a, b)) = a
slice12 2d split1_1(cat1(a, cat1(b, c))) = cat1(b, c)
reduce2 2d sum1(cat1(a, b)) = sum1(a) + sum1(b)
reduce3 2d 3 * sum1(a) = sum1(3 * a)
reduce4 2d sum0(t(a)) = sum1(a)
reduce5 2d sum0(sum1(a)) = sum0(sum0(a))
dot1 2d cat1(a, b) @ cat0(c, d) = a @ c + b @ d
dot2 2d t(t(b) @ t(a)) = a @ b
dot3 2d a @ (b @ c) = (a @ b) @ c
dot6 2d sum1(a * b) = sum0(t(b) * t(a))
"""

OUTSIDE = {
    "div5-8": "laws of integer remainders, under conditions on values",
    "clamp3": "the definition of clamp here",
    "compare2, 6": "as compare1 and compare3",
    "logical1-8": "constants of bool: folded when they are known, with no variables of bool in the notation",
    "select2, 3": "as logical1-8",
    "broadcast1-8, iota1": "broadcasting and constants have no operator of their own: operands broadcast by themselves",
    "reverse1, reduce7-8": "for axes of extent 1, which views and reductions leave out when they are made",
    "concat1, 3, 5-7": "concat1, 3 and 7 are definitions; of a constant beside a tensor no law makes a pad yet",
    "slice1-7, 9, 11, 13": "compositions of index maps, which are equal when they are made; slice11 is slice12",
    "dynamic slices": "starts that are values: gathers here, with no laws of their own yet",
    "pad1-4": "pads of nothing are left out when made; there is no interior or negative padding",
    "reduce1, reduce6, dot4, dot5": "products over other axes and with empty ones, which the notation cannot write",
    "conv0-3": "interior padding; see pad",
}
"""Those that are not in the table, with the reason."""
