"""Optimized functions: a call finds its program, or has it made, and runs it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqsat import forks
from eqsat.compiled import Compiled
from eqsat.deadline import Deadline
from eqsat.errors import ConcretizationError, EqsatError, OptionError, ResultChangedError
from eqsat.explain.report import Explanation
from eqsat.explained import explanation
from eqsat.frontends.again import take_again
from eqsat.frontends.pytree import ArgSpec, Key, TracedArgument
from eqsat.frontends.shapes_only import with_examples
from eqsat.frontends.trace import const_inputs
from eqsat.frontends.tracing import CURRENT
from eqsat.growth import Growth
from eqsat.lengths import Lengths
from eqsat.locks import compiling, fresh_in_forks, is_compiling, locked, patience
from eqsat.making import Maker
from eqsat.methods import BoundMethod
from eqsat.options import Options, unknown
from eqsat.paths import NoMorePaths, taken
from eqsat.plain import REFUSED, PlainProgram, told_by
from eqsat.plan import backend as backends
from eqsat.programs import CacheInfo, Programs
from eqsat.tracebacks import at_users_line, shortened
from eqsat.varying import Numbers, Varying
from eqsat.verify.plain import Plain

log = logging.getLogger("eqsat")
MOST_TAKES = 4
"""How often it is learned to take containers apart for one program: where each call makes keys anew, it never helps."""


class OptimizedFunction:
    """A function compiled once per shapes, element types and structure of its arguments, then cached.

    Made by :func:`optimize`. Safe to call from several threads, in signal handlers and finalizers, and after a fork
    at any moment. While one thread compiles, others that call the function with new argument types wait for it.

    Ctrl-C during a compilation raises ``KeyboardInterrupt`` at once, and the next call compiles again. Where the
    ``budget`` is spent first, NumPy runs the function for these argument types from then on, with a
    :class:`~eqsat.errors.BudgetWarning`.
    """

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.options = options
        self._spec = ArgSpec(fn)
        self._flatten = self._spec.flatten
        self._programs = Programs(options.programs)
        self._growth = Growth(self._spec.name, [p.name for p in self._spec.parameters])
        self._numbers = Numbers(self._spec)
        self._last: Compiled | PlainProgram | None = None
        self._latest: tuple[weakref.ref[Compiled | PlainProgram | Varying], int] | None = None
        self._maker = Maker(fn, self._spec, options)
        self._hits = self._misses = 0
        self._lock = threading.Lock()
        FUNCTIONS.add(self)
        self._check_const()

    def _check_const(self) -> None:
        parameters = [p.name for p in self._spec.parameters]
        for name in self.options.const:
            head = name.split(".")[0].split("[")[0]
            if head not in parameters and not self._takes_any():
                raise unknown("argument in const", head, parameters)

    @property
    def needs(self) -> int:
        """How many arguments a call has to have."""
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return sum(p.default is p.empty and p.kind not in kinds for p in self._spec.parameters)

    def _takes_any(self) -> bool:
        return any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in self._spec.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, as new NumPy arrays in the structure the function returns."""
        last = self._last
        if last is not None and not kwargs:
            # The compiled driver checks types and shapes itself, in a fraction of the time that a key takes.
            given = args if last.take is None else last.take(args)
            try:
                busy = given is None or (compiling.values and is_compiling())
                results = None if busy else last.direct(given)  # type: ignore[misc, arg-type]
            except ResultChangedError:  # which it will do again below
                results = None
            except Exception as error:
                raise shortened(error)  # noqa: B904 (the same exception)
            if results is not None:
                self._hits += 1
                return results[0] if last.single else last.traced.rebuild(results, given)  # type: ignore[arg-type, union-attr]
        try:
            return self._call(args, kwargs)
        except Exception as error:
            raise shortened(error)  # noqa: B904 (the same exception)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that has to find its program."""
        try:
            leaves, key = self._flatten(args, kwargs)
        except TracedArgument:
            return self._within()(*args, **kwargs)
        except (TypeError, EqsatError) as error:
            if self.options.strict or is_compiling():
                raise
            refused = PlainProgram(self.fn, self._spec.name, None, str(error), REFUSED, 0.0, error)
            return self._run_plain(refused, args, kwargs)
        if is_compiling():
            return self._within()(*args, **kwargs)
        plain = self._programs.plain(key)
        if plain is not None:
            if self._latest is not None and self._latest[0]() is plain and not kwargs and plain.recognize(args):
                self._come_back_to(plain)
            self._hits += 1
            self._took(plain, leaves)
            return self.fn(*args, **kwargs)
        program = self._program(args, kwargs, leaves, key, patience(self.options.budget))
        if program is None:
            return self.fn(*args, **kwargs)
        if isinstance(program, Varying):
            self._latest = weakref.ref(program), self._hits + self._misses
            return program.function(*program.given(args, kwargs))
        again = self._latest is not None and self._latest[0]() is program
        self._took(program, leaves)
        if isinstance(program, PlainProgram):
            return self._run_plain(program, args, kwargs)
        if again and leaves is not args and not kwargs and not program.traced.guards:
            self._take_again(program, args)
        if not program.traced.guards and not program.traced.takes(leaves):
            return self.fn(*args, **kwargs)  # NumPy says what becomes of arguments that share memory
        if leaves is args and not program.traced.guards:
            self._come_back_to(program)
        try:
            if program.traced.guards:
                return self._run_path(program, args, kwargs, leaves, key)
            return program.run(leaves)
        except ResultChangedError as error:
            if self.options.strict:
                raise
            refused = self._maker.refused(error, args, kwargs, leaves, program.traced, program.seconds)
            self._replace(key, program, refused)
            return self._run_plain(refused, args, kwargs)

    def _run_path(
        self, program: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], key: Key
    ) -> Any:
        """The result where the function asks for values, of the program for the way that this call takes or NumPy."""
        latest, self._last = program.paths[0], None
        found = self._path(program, args, kwargs, leaves, key)
        if isinstance(found, PlainProgram):
            return self._run_plain(found, args, kwargs)
        if found is None or not found[0].traced.takes(leaves):
            return self.fn(*args, **kwargs)
        if leaves is args and found[0] is latest:  # not where branches alternate
            self._come_back_to(latest)
        return found[0].traced.rebuild(found[1], leaves)

    def _come_back_to(self, program: Compiled | PlainProgram) -> None:
        """Try this program first."""
        if program.direct is not None:
            self._last = program
            if not self._programs.has(program.first):  # forgotten meanwhile
                self._last = None

    def _take_again(self, program: Compiled, args: tuple[Any, ...]) -> None:
        """Try this program first, of arguments in such containers with the same constants."""
        if program.taking == MOST_TAKES:
            return
        program.taking += 1
        if len(args) == len(self._spec.parameters) and not self._takes_any():
            program.take = take_again(*self._spec.raw_trees(args, {}), program.held)
            if program.take is not None:
                self._come_back_to(program)

    def _path(
        self, program: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], key: Key
    ) -> tuple[Compiled, Sequence[np.ndarray]] | PlainProgram | None:
        def another() -> Compiled | PlainProgram | None:
            with locked(self._lock, patience(self.options.budget)) as mine:
                self._misses += mine
                return self._maker.make(args, kwargs, leaves) if mine else None

        try:
            return taken(program, leaves, another)
        except NoMorePaths as no_more:
            error = ConcretizationError(str(no_more))
            refused = self._maker.refused(error, args, kwargs, leaves, program.traced, program.seconds)
            self._replace(key, program, refused)
            return refused

    def _replace(self, key: Key, program: Compiled, other: PlainProgram) -> None:
        with self._lock:
            if self._programs.has(program):
                self._programs.forget(program)
                self._keep(key, other)

    def _took(self, program: Compiled | PlainProgram, leaves: Sequence[Any]) -> None:
        """Note the program of a call: calls counted beyond this one took the direct way, to ``_last``."""
        self._latest = weakref.ref(program), self._hits + self._misses
        if not isinstance(program, PlainProgram):
            program.remember(leaves)

    def _asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Compiled | PlainProgram, Plain | None]:
        """The program of these arguments, and their call; without any, those of the last call."""
        if args or kwargs or not self.needs:
            args, kwargs = self._with_arrays(args, kwargs)
            return self._known(args, kwargs), Plain(self.fn, args, kwargs, self._spec)
        latest, count = self._latest or (lambda: None, 0)
        direct = self._last is not None and self._hits + self._misses > count
        program = self._last if direct else latest()
        assert not isinstance(program, Varying)
        if program is None:
            raise TypeError(
                f"{self._spec.name} has not been called, or its program is forgotten: give explain and source the "
                "arguments of a call"
            )
        if isinstance(program, PlainProgram):
            return program, None
        call = program.first.last_call()
        return program.first.paths[0], None if call is None else Plain(self.fn, *call, self._spec)

    def _as_varying(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[OptimizedFunction, tuple[Any, ...]] | None:
        """What runs such a call (without arguments, the last call) with numbers as inputs, and its arguments."""
        if args or kwargs or not self.needs:
            if is_compiling():
                return None
            args, kwargs = self._with_arrays(args, kwargs)
            leaves, key = self._flatten(args, kwargs)
            found = self._program(args, kwargs, leaves, key, threading.TIMEOUT_MAX)
            return (found.function, found.given(args, kwargs)) if isinstance(found, Varying) else None
        latest, count = self._latest or (lambda: None, 0)
        last, direct = latest(), self._last is not None and self._hits + self._misses > count
        return (last.function, ()) if isinstance(last, Varying) and not direct else None

    def _run_plain(self, program: PlainProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function itself. Where it runs, the first time, the user is told why it is not compiled."""
        error = program.error
        if error is None:
            return self.fn(*args, **kwargs)
        try:
            result = self.fn(*args, **kwargs)
        except Exception as own:
            if self._programs.has(program):  # other values may pass
                self._programs.forget(program)
            told = told_by(error, own)
            if told is own:
                raise
            raise told from own
        self._maker.tell(program)
        return result

    def _within(self) -> Callable[..., Any]:
        """The function as another one that is being traced calls it."""
        trace = CURRENT.get()
        return self.fn if trace is None else trace.shown(self.fn)

    def _program(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
        key: Key,
        patience: float,
        *,
        again: bool = False,
    ) -> Compiled | PlainProgram | Varying | None:
        """The program of these arguments, compiled if need be; None where another thread is at it for too long.

        ``again``: compiled also where the budget was spent before.
        """
        found = self._found(key, leaves, again)
        if found is not None:
            return found
        with locked(self._lock, patience) as mine:
            if not mine:
                return None
            found = self._found(key, leaves, again)
            if found is not None:
                return found
            varying = None if again else self._vary(args, kwargs, key)
            if varying is not None:
                return varying
            program, new = self._make(args, kwargs, leaves, key, again)
            self._misses += new
            self._hits += not new
            self._keep(key, program)
        if new:
            self._growth.compiled(key, len(self._programs.get(key, ())))
        return program

    def _make(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], key: Key, again: bool
    ) -> tuple[Compiled | PlainProgram, bool]:
        """A program, and whether more than its driver was made."""
        maker = self._maker
        ranges, changing = maker.ranges, None if again else maker.lengths.changing(key)
        program = maker.make(args, kwargs, leaves, changing)
        if not isinstance(program, Compiled) or program.lengths is None:
            if isinstance(program, Compiled):
                maker.lengths.compiled(key)
            return program, True
        assert changing is not None
        if maker.ranges > ranges:
            names = self._spec.leaf_names(self._spec.trees(args, kwargs)[0])
            self._growth.became_arguments([(names[i], axis) for i, axis in changing.axes], *program.lengths)
        return program, maker.ranges > ranges

    def _vary(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Key) -> Varying | None:
        """A program for all values of Python numbers that have changed often enough, where there can be one."""
        changing = self._growth.changing(key)
        if not changing or self._numbers.tried(key, changing):
            return None
        deadline = Deadline(self.options.budget)

        def of(paths: frozenset[str]) -> Varying | None:
            made = Varying(self._spec, self.fn, self.options, args, kwargs, paths)
            return made if paths and made.traces(args, kwargs, deadline) else None

        paths = changing
        made = of(paths)
        if made is None and len(changing) > 1:
            paths = frozenset(path for path in changing if of(frozenset((path,))) is not None)
            made = of(paths)
        if made is not None:
            made.function = OptimizedFunction(made.fn, made.options)
            try:
                leaves, inner = made.function._flatten(made.given(args, kwargs), {})
                program = made.function._program(tuple(leaves), {}, leaves, inner, threading.TIMEOUT_MAX)
                compiled = isinstance(program, Compiled) or (isinstance(program, PlainProgram) and not program.error)
            except EqsatError as error:
                log.info("numbers stay part of the program: %r", error)
                compiled = False
            made = made if compiled else None
        self._numbers.keep(key, changing if made is None else paths, made)
        if made is not None:
            self._growth.became_inputs(paths)
        return made

    def _found(self, key: Key, leaves: Sequence[Any], again: bool) -> Compiled | PlainProgram | Varying | None:
        found = self._programs.find(key, leaves)
        if found is None and not again:
            return self._numbers.find(key)
        if found is None or (again and isinstance(found, PlainProgram)):
            return None
        self._hits += 1
        return found

    def _keep(self, key: Key, program: Compiled | PlainProgram) -> None:
        last, programs = self._last, self._programs
        if last is not None:  # its calls do not pass through `find`
            programs.touch(last.first)
        programs.add(key, program)
        if last is not None and not programs.has(last.first):
            self._last = None

    def cache_info(self) -> CacheInfo:
        """Calls that found their program, and that compiled; the most programs kept, and how many there are now.

        ``nbytes``: bytes of the constants that they hold.
        """
        programs = self._programs
        inner = [varying.function.cache_info() for varying in self._numbers.made.values() if varying is not None]
        sums = [sum(counts) for counts in zip(*((i.hits, i.misses, i.currsize, i.nbytes) for i in inner), strict=True)]
        hits, misses, count, nbytes = sums or (0, 0, 0, 0)
        return CacheInfo(
            self._hits + hits,
            self._misses + misses,
            programs.most,
            programs.count + count,
            programs.nbytes + nbytes,
        )

    def cache_clear(self) -> None:
        """Forget all programs of this function, and free the memory kept for later results.

        Arrays named in ``const`` are looked at anew. What is remembered on disk stays (``eqsat cache clear``).
        """
        self._programs = Programs(self.options.programs)  # another thread may be adding to the former ones
        self._numbers = Numbers(self._spec)
        self._maker.lengths = Lengths(self._maker.lengths.names)
        self._last = self._latest = None
        self._hits = self._misses = 0
        backends.release()

    @at_users_line
    def compile(self, *args: Any, **kwargs: Any) -> Compiled | PlainProgram:
        """Compile for these arguments without calling: arrays, or :func:`eqsat.spec` in their place.

        What is returned is called as the function is, with arguments of these types. Where the budget was spent before,
        this tries again, with the kernels that were compiled then.

        Raises:
            ConcretizationError: a function is being traced, this one or another.
            OptionError: a spec stands for an argument named in ``const``, whose values are needed.
        """
        return self._known(*self._with_arrays(args, kwargs), again=True)

    def _with_arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with an array for every spec among them."""
        args, kwargs, examples = with_examples(args, kwargs)
        if examples and self.options.const:
            trees, leaves = self._spec.trees(args, kwargs)
            names = self._spec.leaf_names(trees)
            for number in const_inputs(self.options.const, names, [p.name for p in self._spec.parameters]):
                if any(leaves[number] is example for example in examples):
                    raise OptionError(
                        f"{names[number]!r} is named in const=, so its values are part of the program: pass the array"
                    )
        return args, kwargs

    def _known(self, args: tuple[Any, ...], kwargs: dict[str, Any], again: bool = False) -> Compiled | PlainProgram:
        leaves, key = self._flatten(args, kwargs)
        program = (
            None if is_compiling() else self._program(args, kwargs, leaves, key, threading.TIMEOUT_MAX, again=again)
        )
        assert not isinstance(program, Varying)  # which ``again`` or `_as_varying` leaves out
        if program is None:
            raise ConcretizationError(
                f"{self._spec.name} cannot be compiled while a function is being traced; compile it before"
            )
        self._took(program, leaves)
        if isinstance(program, PlainProgram) and program.error is not None:
            self._maker.tell(program)
        return program

    @at_users_line
    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What was chosen for these arguments and why, with every step timed now; without arguments, for the last call.

        The function itself is run by NumPy, to be timed too, if its code shows that it does nothing but compute.
        """
        with forks.IMPORTING:
            from eqsat.algorithms import algorithms
            from eqsat.derivation import derivation
            from eqsat.why import why
        varying = self._as_varying(args, kwargs)
        if varying is not None:
            return varying[0].explain(*varying[1])
        program, call = self._asked(args, kwargs)
        if isinstance(program, Compiled) and program.traced.guards and call is not None:
            leaves, key = self._flatten(call.args, call.kwargs)
            found = self._path(program.first, call.args, call.kwargs, leaves, key)
            program = found[0] if isinstance(found, tuple) else found or program
        if isinstance(program, PlainProgram):
            return program.explain(self._spec.name)
        made = explanation(program, self._spec.name, call, functools.partial(why, program), algorithms(program))
        return dataclasses.replace(made, _derivation=functools.partial(derivation, program))

    @at_users_line
    def source(self, *args: Any, **kwargs: Any) -> str:
        """The generated kernels for these arguments, as Python source; without arguments, of the last call."""
        varying = self._as_varying(args, kwargs)
        if varying is not None:
            return varying[0].source(*varying[1])
        program, _ = self._asked(args, kwargs)
        if isinstance(program, PlainProgram):
            return program.source()
        rule = "\n\n" + "# " + "-" * 100 + "\n\n"
        return rule.join(program.executable.sources())

    def __get__(self, instance: object, owner: type | None = None) -> OptimizedFunction | BoundMethod:
        """Methods: ``self`` is passed on as the first argument."""
        return self if instance is None else BoundMethod(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickled by name where a module holds it, as functions are; else as its function and options."""
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (OptimizedFunction, (self.fn, self.options))

    def __repr__(self) -> str:
        return f"<eqsat.optimize of {self._spec.name}{self._spec.signature}>"


FUNCTIONS: weakref.WeakSet[OptimizedFunction] = weakref.WeakSet()


def _fresh_locks() -> None:
    for function in list(FUNCTIONS):
        function._lock = threading.Lock()


fresh_in_forks(_fresh_locks)
