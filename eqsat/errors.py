"""Errors and warnings that eqsat raises for the user. Each docstring is an example that fails, and its mend."""

from __future__ import annotations

import numpy as np

from eqsat.ir.node import Source


class EqsatError(Exception):
    """Base of all errors raised on purpose; ``where`` is the user's line if one is to blame.

    >>> try:
    ...     eqsat.optimize(f)(x)
    ... except eqsat.errors.EqsatError as error:
    ...     print(error.where)
    """

    def __init__(self, message: str, where: Source | None = None) -> None:
        self.message = message
        self.where = where
        super().__init__(message if where is None else f"{message}\n  at {where}")


class ShapeError(EqsatError, ValueError):
    """Shapes, axes or sizes do not fit. The message names the operator, the shapes and the user's line.

    >>> @eqsat.optimize
    ... def f(x, b):
    ...     return x + b                      # x: (8, 3), b: (8,)
    ShapeError: add: shapes (8, 3), (8,) do not broadcast together

    Fix: give ``b`` the axis it lacks.

    >>> return x + b[:, None]
    """


class AxisError(ShapeError, np.exceptions.AxisError):
    """An axis that an array has not; what catches NumPy's catches it.

    >>> @eqsat.optimize
    ... def f(x):
    ...     return x.sum(axis=2)              # x: (8, 3)
    AxisError: sum: axis 2 is out of bounds for array of dimension 2

    Fix: count axes from 0, or from the end by -1.
    """


class BoundsError(EqsatError, IndexError):
    """An index known while tracing lies outside its axis.

    >>> x[5]                                  # x: (3,)
    BoundsError: index 5 is out of bounds for axis 0 with size 3

    Fix: index within ``-n ≤ i < n``.
    """


class ReadOnlyError(EqsatError, ValueError):
    """The function writes to an array that may not be written to, as ``numpy.broadcast_to`` and ``diagonal`` return.

    >>> @eqsat.optimize
    ... def f(x):
    ...     np.broadcast_to(x, (3, 4))[0] = 1
    ReadOnlyError: assignment destination is read-only

    Fix: write to a copy.

    >>> y = np.broadcast_to(x, (3, 4)).copy()
    """


class UnsupportedOpError(EqsatError, NotImplementedError):
    """A function, method or option that traced arrays do not have. The message says what to use instead.

    >>> x[x > 0]                              # how many elements this has depends on values
    UnsupportedOpError: indexing by a traced boolean mask …

    Fix: keep the shape and choose values.

    >>> np.where(x > 0, x, 0)
    """


class SharedMemoryError(UnsupportedOpError):
    """An array is read that may or may not be a view of one that was modified since.

    Whether NumPy copies, as in ``reshape``, depends on the order of elements in memory, which for the result of an
    operator is that of its arguments. Without ``strict=True`` NumPy runs such a function.

    >>> turned = x.T + 1
    >>> y = turned.reshape(-1)
    >>> turned[0] = 1
    >>> return y                              # with the old elements, or with the new ones
    SharedMemoryError: this array may or may not share memory with one that was modified in place at …

    Fix: copy before.

    >>> y = turned.reshape(-1).copy()
    """


class UnsupportedDTypeError(EqsatError, TypeError):
    """An element type eqsat does not compute with, or an operator NumPy does not define for a type.

    >>> eqsat.optimize(np.sin)(np.zeros(3, np.longdouble))
    UnsupportedDTypeError: argument 'x': element type 'float128' is not supported …

    Fix: cast before, as with ``x.astype(np.float64)``.
    """


class ConcretizationError(EqsatError, TypeError):
    """Python asked for a traced array's value, which is not known while the function is traced.

    >>> @eqsat.optimize
    ... def f(x):
    ...     if x.sum() > 0:                   # a branch on a value
    ...         return x
    ...     return -x
    ConcretizationError: the truth value of a traced array is not known …

    Fix: compute both and choose.

    >>> return np.where(x.sum() > 0, x, -x)
    """


class CarryError(EqsatError, TypeError):
    """What a loop carries has another structure, shape or element type after a trip than before, or branches differ.

    >>> eqsat.scan(lambda c, x: (c + x, None), np.float32(0), xs)     # xs: float64
    CarryError: eqsat.scan: the carry is float32 before a trip, and float64 after it

    Fix: begin with a value of the type that it has later.

    >>> eqsat.scan(lambda c, x: (c + x, None), np.float64(0), xs)
    """


class VerificationError(EqsatError, AssertionError):
    """The compiled program disagrees with the reference. ``program`` reproduces it when pasted; ``rules``: the ids of
    those that it came from, as far as that is known.

    >>> eqsat.optimize(f, disable=("suspect-rule",))(x)   # mend: switch the rule off, and report it
    """

    def __init__(self, message: str, program: str = "", where: Source | None = None) -> None:
        self.program = program
        self.rules: frozenset[str] = frozenset()
        super().__init__(f"{message}\n\n{program}" if program else message, where)


class TraceDiffersError(VerificationError):
    """A function does more than its trace: it writes to what it was given, draws random numbers, tests types.

    >>> @eqsat.optimize(strict=True)
    ... def f(x):
    ...     return x + np.random.normal(size=x.shape)
    TraceDiffersError: output 0 differs from run to run …

    Fix: pass what differs as an argument.
    """


class ResultChangedError(VerificationError):
    """A function that its library runs returned another structure, shape or type than when the program was compiled.

    >>> eqsat.optimize(lambda x: eqsat.opaque(trimmed)(x) * 2, strict=True)(x)     # as many elements as are not 0
    ResultChangedError: trimmed returned float64[4] where it returned float64[5] when the function was compiled …

    Fix: call it outside the optimized function.
    """


class RuleError(EqsatError, ValueError):
    """A rewrite rule is refused when it is defined, or its right side has another type than its left.

    >>> eqsat.rewrite(a + b, a + c)           # c is not bound by the left side
    RuleError: …

    Fix: use on the right only variables of the left.
    """


class OptionError(EqsatError, ValueError):
    """An unknown option, value of an option, rule id or argument name. The message lists the valid ones.

    >>> eqsat.optimize(f, numerics="fast")
    OptionError: numerics must be one of 'exact', 'reassociates', 'approximates', not 'fast'
    """


class EqsatWarning(UserWarning):
    """What cannot be compiled is run by NumPy. Said once for each reason, with the line and the mend.

    >>> @eqsat.optimize
    ... def f(x):
    ...     return x[x > 0].sum()
    EqsatWarning: f(x: float64[100]): NumPy runs the function: indexing by a traced boolean mask …

    Fix: what the warning says; ``strict=True`` makes an error of it.
    """


class BudgetWarning(EqsatWarning):
    """A compilation did not fit into its ``budget``, so NumPy runs the function for these argument types.

    >>> eqsat.optimize(f, budget=0.1)(x)
    BudgetWarning: f(x: float32[4096,4096]): the budget of 0.1 s was spent …

    Fix: allow more, or call ``compile``, which tries again with the kernels that are ready.

    >>> eqsat.optimize(f, budget=120)(x)
    """


class ForkWarning(EqsatWarning):
    """A forked process cannot use what its parent had loaded, and compiles without rules. Results are right.

    >>> with multiprocessing.get_context("fork").Pool() as pool:      # where the library cannot be loaded twice
    ...     pool.map(f, arrays)

    Fix: compile before the fork (``f.compile(x)``), or use ``get_context("spawn")``.
    """


class RecompilationWarning(EqsatWarning):
    """A function is compiled again and again for arguments that differ in little: every time costs seconds.

    >>> for step in range(100):
    ...     f(x, 0.1 * step)                  # a Python number is part of the program

    Fix: make it an array, which is data: ``f(x, np.float32(0.1 * step))``; pad a growing axis to a few sizes.
    """
