"""From Python functions to one LLVM module, through Numba's front end and without its JIT.

Numba's own dispatchers make wrappers for CPython, optimize every function twice and load it. Kernels need
none of that: their functions are lowered into one library, which is handed on as it is, unoptimized.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from numba.core import compiler, typed_passes, types, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import PassManager
from numba.core.cpu import CPUTargetOptions
from numba.core.registry import cpu_target
from numba.core.targetconfig import ConfigStack

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


def load_registries() -> None:
    """Let Numba find its own implementations, which it imports when it first looks for them."""
    for context in _contexts():
        context.refresh()


@functools.cache
def _contexts() -> tuple[Any, Any]:
    typing_context, target_context = cpu_target.typing_context, cpu_target.target_context
    return typing_context, target_context


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
