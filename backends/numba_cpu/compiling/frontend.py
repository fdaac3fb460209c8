"""From Python functions to one LLVM module, through Numba's front end and without its JIT.

Numba's own dispatchers make wrappers for CPython, optimize every function twice and load it. Kernels need
none of that: their functions are lowered into one library, which is handed on as it is, unoptimized. Nor do they need
most of what Numba implements: they have a target of their own, which knows scalars, ranges and the intrinsics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from numba.core import compiler, imputils, typed_passes, types, typing, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import PassManager
from numba.core.cpu import CPUContext, CPUTargetOptions
from numba.core.runtime import rtsys
from numba.core.target_extension import CPU, dispatcher_registry, jit_registry, target_override, target_registry
from numba.core.targetconfig import ConfigStack
from numba.core.types.misc import VarArg
from numba.core.typing import templates

_INTP3 = (types.intp, types.intp, types.intp)


class _RawLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Collects LLVM modules without optimizing or loading them."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def linked_module(self) -> Any:
        """This library's module with every library it calls linked in."""
        module = self._final_module
        defined = {f.name for f in module.functions if not f.is_declaration}
        for library in dict.fromkeys(self._linking_libraries):
            if library.name == "nrt":  # the reference-counting runtime: kernels may not use it
                continue
            shared = library._get_module_for_linking()
            if not defined.issuperset(f.name for f in shared.functions if not f.is_declaration):
                module.link_in(shared, preserve=True)
                defined.update(f.name for f in module.functions if not f.is_declaration)
        return module


class _KernelCompiler(compiler.CompilerBase):  # type: ignore[misc]
    """The passes that straight code over scalars and intrinsics needs: a fifth less time than Numba's own pipeline.

    Left out: what serves closures, ``inline=``, ``with``, exceptions, ``literal_unroll``, array expressions and
    branches on constants.
    """

    def define_pipelines(self) -> list[Any]:
        passes = PassManager("eqsat kernel")
        for each in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            untyped_passes.IRProcessing,
            untyped_passes.GenericRewrites,
            untyped_passes.ReconstructSSA,
            typed_passes.NopythonTypeInference,
            typed_passes.PreLowerStripPhis,
            typed_passes.IRLegalization,
            typed_passes.NativeLowering,
            typed_passes.NoPythonBackend,
        ):
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


_OWN = imputils.Registry("eqsat")


def _extreme(name: str, comparison: str) -> Any:
    """The least or greatest of integers."""

    class Template(templates.AbstractTemplate):  # type: ignore[misc]
        key = f"eqsat.{name}"

        def generic(self, args: Any, kws: Any) -> Any:
            fits = len(args) > 1 and not kws and all(isinstance(a, types.Integer) for a in args)
            return templates.signature(types.intp, *[types.intp] * len(args)) if fits else None

    @_OWN.lower(Template.key, VarArg(types.intp))  # type: ignore[untyped-decorator]
    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return functools.reduce(lambda a, b: builder.select(builder.icmp_signed(comparison, a, b), a, b), values)

    return types.Function(Template)


_EXTREMES = {min: _extreme("min", "<="), max: _extreme("max", ">=")}


class _Typing(typing.Context):  # type: ignore[misc]
    """Types of scalars: each operator of a kernel would else be tried as one of arrays, sets and dates, too."""

    def __init__(self) -> None:
        super().__init__()
        self._resolved: dict[Any, Any] = {}

    def _load_builtins(self) -> None:
        from numba.core.typing import builtins, mathdecl  # noqa: F401

        self.install_registry(templates.builtin_registry)
        self.install_registry(mathdecl.registry)

    def load_additional_registries(self) -> None:
        pass

    def _get_global_type(self, value: Any) -> Any:
        if value is min or value is max:  # for which Numba would compile a function of its own
            return _EXTREMES[value]
        return super()._get_global_type(value)

    def resolve_value_type(self, value: Any) -> Any:
        """Classes (``range``, ``bool``) are functions: to tell that none is a container, Numba imports its own."""
        known = self._get_global_type(value) if isinstance(value, type) else None
        return known or super().resolve_value_type(value)

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """Remembered: kernels add and multiply integers on every line."""
        if kws or not isinstance(func, types.Function):
            return super().resolve_function_type(func, args, kws)
        found = self._resolved.get((func, args))
        if found is None:
            found = super().resolve_function_type(func, args, kws)
            if found is not None:
                self._resolved[func, args] = found
        return found


class _Target(CPU):  # type: ignore[misc]
    """Numba's name for where a kernel runs."""


class _Context(CPUContext):  # type: ignore[misc]
    """Implementations on scalars. Numba's own context imports those of arrays, and SciPy for these."""

    def load_additional_registries(self) -> None:
        from numba.cpython import builtins, mathimpl, numbers, rangeobj, tupleobj  # noqa: F401

        rtsys.initialize(self)  # linking asks for it
        self.install_registry(mathimpl.registry)
        self.install_registry(_OWN)

    def refresh(self) -> None:
        with target_override(self.target_name):  # else it is Numba's own context that is refreshed on the way
            super().refresh()


class _Intrinsics:
    """Where Numba looks up how intrinsics are lowered: a table that a context reads when it misses one."""

    _registries = (imputils.builtin_registry,)

    @property
    def targetdescr(self) -> Any:
        return self

    target_context = targetdescr

    def refresh(self) -> None:
        pass


def load_registries() -> None:
    """Let Numba find the implementations, which it imports when it first looks for them."""
    _contexts()[1].refresh()


@functools.cache
def _contexts() -> tuple[Any, Any]:
    target_registry["eqsat"] = _Target
    dispatcher_registry[_Target] = _Intrinsics()
    jit_registry[_Target] = jit_registry[CPU]
    typing_context = _Typing()
    return typing_context, _Context(typing_context, "eqsat")


def _flags(fastmath: Any) -> Any:
    flags = compiler.Flags()
    options: dict[str, Any] = {
        "nopython": True,
        "nogil": True,
        "error_model": "numpy",
        "boundscheck": False,
        "fastmath": fastmath,
        "_nrt": False,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    CPUTargetOptions.parse_as_flags(flags, options)
    flags.no_compile = True
    return flags


def lower_functions(
    functions: Mapping[str, Callable[..., Any]], prefix: str, fastmath: Any
) -> tuple[Any, dict[str, str]]:
    """One LLVM module with a C function ``void(intp, intp, intp)`` for each Python function.

    Returns the module and function name -> symbol. Call it with Numba's compiler lock held.
    """
    typing_context, target_context = _contexts()
    load_registries()
    flags = _flags(fastmath)
    codegen = target_context.codegen()
    library = _RawLibrary(codegen, prefix)
    entries: dict[str, str] = {}
    for number, (name, function) in enumerate(functions.items()):
        with ConfigStack().enter(flags):
            result = compiler.compile_extra(
                typing_context,
                target_context,
                function,
                _INTP3,
                types.void,
                flags,
                {},
                library=library,
                pipeline_class=_KernelCompiler,
            )
        entries[name] = f"{prefix}_{number}"
        library.add_ir_module(_entry_module(target_context, codegen, result.fndesc, entries[name]))
    module = library.linked_module()
    module.verify()
    return module, entries


def _entry_module(context: Any, codegen: Any, descriptor: Any, symbol: str) -> Any:
    """``void symbol(intp, intp, intp)``, which calls the lowered function in Numba's own convention."""
    module = codegen._create_empty_module(symbol)
    intp = context.get_value_type(types.intp)
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [intp] * 3), symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    native = context.declare_function(module, descriptor)
    context.call_conv.call_function(builder, native, types.void, _INTP3, entry.args)
    builder.ret_void()
    return module
