"""Machine code as data: emit an object file from an LLVM module, wrap it with what it needs, load it again.

Only llvmlite is used here, so that a process that finds its kernels in the cache never imports Numba.

A *code object* is the text line ``MAGIC``, one line of JSON (``Header``) and the bytes of a relocatable
object file. The header names the entry points, the host it was made for, and every symbol the code takes
from outside; :func:`load_object` refuses a code object made for another host or with a foreign symbol.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
import json
import os
import struct
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from eqsat.cache import kernel_store
from eqsat.contents import code_files, files_digest
from eqsat.forks import hold_over_fork
from eqsat.installed import version
from eqsat_backends.numba_cpu.vectors.lanes import host_features

MAGIC = b"eqsat code object 1\n"

# What generated code may take from outside: the C library's memory functions and libm, in C's spelling, for
# float and double. Anything else (Numba's runtime, the Python C API) means that a kernel allocates or raises.
_MEMORY = ("memcpy", "memmove", "memset")
_LIBM = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh"),
    *("erf", "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fma", "fmax", "fmin", "fmod", "frexp", "hypot"),
    *("ldexp", "lgamma", "log", "log10", "log1p", "log2", "modf", "nearbyint", "nextafter", "pow", "remainder"),
    *("rint", "round", "roundeven", "scalbn", "sin", "sincos", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc"),
)
ALLOWED_SYMBOLS = frozenset(_MEMORY) | frozenset(_LIBM) | frozenset(name + "f" for name in _LIBM)


# llvmlite lets one thread at a time into LLVM; the lock inside its own is a plain one
_in_llvm = getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None)
if _in_llvm is not None:
    hold_over_fork(_in_llvm)


class CodeObjectError(RuntimeError):
    """A code object that is damaged, made for another host, or that needs symbols it may not need."""


@dataclass(frozen=True)
class Host:
    """The processor and compiler that machine code is made for. Equal hosts can exchange code objects."""

    triple: str
    cpu: str
    features: str
    llvm: str

    @property
    def key(self) -> str:
        return hashlib.blake2b("\0".join((self.triple, self.cpu, self.features, self.llvm)).encode()).hexdigest()[:32]


@functools.cache
def host() -> Host:
    """This machine's processor with all the features that may be used, and the LLVM in use."""
    _initialize()
    return Host(
        triple=llvm.get_process_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=",".join(("+" if present else "-") + name for name, present in sorted(host_features().items())),
        llvm="llvmlite " + version("llvmlite") + " LLVM " + ".".join(map(str, llvm.llvm_version_info)),
    )


@functools.cache
def package_fingerprint() -> str:
    """Hash of this package's own source files: generated modules import from them, so old code dies with them."""
    return files_digest(code_files(os.path.dirname(os.path.dirname(__file__))))


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # for instructions in assembly


def target_machine(opt: int = 3, *, far: bool = False) -> Any:
    """A target machine for this host.

    Position-independent code in the small model addresses its constants relative to the program counter;
    the model that JITs default to spends an instruction and ten bytes on each. With ``far`` it is nevertheless that
    one: what it refers to may lie anywhere.
    """
    here = host()
    target = llvm.Target.from_triple(here.triple)
    reloc, model = ("static", "large") if far else ("pic", "small")
    return target.create_target_machine(cpu=here.cpu, features=here.features, opt=opt, reloc=reloc, codemodel=model)


def optimize(module: Any, machine: Any, *, as_written: bool = False) -> None:
    """LLVM's level-3 pipeline on ``module``, once, in place; ``as_written``: its loops stay the loops that they are."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.loop_unrolling = not as_written
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    manager = builder.getModulePassManager()
    manager.run(module, builder)


def emit(module: Any, machine: Any, entries: Mapping[str, str]) -> bytes:
    """The code object of an optimized LLVM module; ``entries`` maps public names to symbols of the module.

    Raises:
        CodeObjectError: the machine code refers to symbols other than libm's and the C memory functions.
    """
    code = bytes(machine.emit_object(module))
    needs = _undefined_symbols(code, module)
    foreign = [name for name in needs if name not in ALLOWED_SYMBOLS]
    if foreign:
        raise CodeObjectError(
            "generated code is not self-contained: it refers to "
            + ", ".join(foreign)
            + ". Kernels may use raw addresses, SIMD values and libm only; they may not allocate, raise or use arrays."
        )
    if needs and not _reserves(needs):
        code = bytes(target_machine(far=True).emit_object(module))
    header = {"host": host().key, "entries": dict(entries), "needs": needs, "size": len(code)}
    return MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n" + code


def _reserves(needs: Sequence[str]) -> bool:
    """Whether llvmlite has one piece of memory for code with such needs: on x86 not for addresses of functions."""
    return not needs or not host().triple.startswith("x86_64")


def _undefined_symbols(code: bytes, module: Any) -> list[str]:
    """Names the object takes from outside, sorted: from its ELF symbol table, else from the module's declarations."""
    if code[:6] == b"\x7fELF\x02\x01":
        return _elf_undefined_symbols(code)
    return sorted(f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm."))


def _elf_undefined_symbols(code: bytes) -> list[str]:
    (sections_at,) = struct.unpack_from("<Q", code, 0x28)
    entry_size, count = struct.unpack_from("<HH", code, 0x3A)
    # Elf64_Shdr: name, type, flags, addr, offset, size, link, info, addralign, entsize
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, sections_at + i * entry_size) for i in range(count)]
    undefined: set[str] = set()
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        names_at = sections[section[6]][4]
        for at in range(section[4] + 24, section[4] + section[5], 24):  # Elf64_Sym; the first is null
            name, _info, _other, index = struct.unpack_from("<IBBH", code, at)
            if index == 0 and name:  # SHN_UNDEF
                end = code.index(b"\0", names_at + name)
                undefined.add(code[names_at + name : end].decode())
    undefined.discard("_GLOBAL_OFFSET_TABLE_")
    return sorted(undefined)


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    if not data.startswith(MAGIC):
        raise CodeObjectError("not a code object of this version of eqsat")
    end = data.find(b"\n", len(MAGIC))
    try:
        header = json.loads(data[len(MAGIC) : end])
        code = data[end + 1 :]
        whole = len(code) == header["size"]
    except (ValueError, KeyError, TypeError) as error:
        raise CodeObjectError("damaged code object: unreadable header") from error
    if not whole:
        raise CodeObjectError(f"damaged code object: {len(code)} bytes of machine code, {header['size']} expected")
    if header["host"] != host().key:
        raise CodeObjectError("code object made for another processor or LLVM version")
    return header, code


class Code(dict[str, int]):
    """Loaded machine code: entry name -> address, valid for as long as this object lives.

    Whoever runs the code holds it meanwhile, the threads of a call included. It is unloaded later, by whoever loads the
    next, or by :func:`unload`: where an object happens to be freed, no lock may be waited for.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, addresses: Mapping[str, int], engine: Any) -> None:
        super().__init__(addresses)
        # Not at exit: threads may still be in the code when the interpreter shuts down.
        weakref.finalize(self, _unused.append, engine).atexit = False


_unused: list[Any] = []


def unload() -> None:
    """Free machine code that nobody uses any more, unless another thread is loading some."""
    if _loading.acquire(blocking=False):
        try:
            _free_unused()
        finally:
            _loading.release()


def _free_unused() -> None:
    while _unused:
        engine = _unused.pop()
        engine._owned = False
        engine.close()


def load_object(data: bytes) -> Code:
    """Load a code object into this process.

    All of it in one piece of memory: where much of the address space is taken its parts would come to lie further from
    one another than code of the small model reaches, and LLVM aborts. What has no such place is of the large model.

    Raises:
        CodeObjectError: damaged, made for another host, or with symbols this process does not offer.
    """
    header, code = _split(data)
    for name in header["needs"]:
        _provide(name)
    with _loading:
        _free_unused()
        together = _reserves(header["needs"])
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine(opt=0), use_lmm=together)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        addresses = {entry: int(engine.get_function_address(symbol)) for entry, symbol in header["entries"].items()}
        engine._owned = True  # llvmlite does not unload it
    found = Code(addresses, engine)
    missing = [entry for entry, address in addresses.items() if not address]
    if missing:
        raise CodeObjectError("damaged code object: no code for " + ", ".join(missing))
    return found


def load_ir(
    name: str, write: Callable[[], str], entries: Mapping[str, str], *, as_written: bool = False
) -> dict[str, int]:
    """Addresses of the functions of a module of this package: its machine code from the cache, or made now.

    ``write`` gives its LLVM assembly, which follows from ``name``, this host and the package alone. It stays loaded
    until the process ends. ``entries``: name -> symbol, as for :func:`emit`. ``as_written``: see :func:`optimize`.
    """
    parts = (host().key, package_fingerprint(), name, str(as_written))
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()
    store = kernel_store()
    data = store.get(key)
    if data is not None:
        try:
            return _pinned(load_object(data))
        except CodeObjectError:
            data = None  # foreign or damaged: made anew
    machine = target_machine()
    module = llvm.parse_assembly(write())
    module.verify()
    optimize(module, machine, as_written=as_written)
    data = emit(module, machine, entries)
    store.put(key, data, name)
    return _pinned(load_object(data))


_for_ever: list[Code] = []


def _pinned(code: Code) -> Code:
    _for_ever.append(code)
    return code


_loading = hold_over_fork(threading.Lock())


@functools.cache
def _libm() -> ctypes.CDLL | None:
    path = ctypes.util.find_library("m")
    return ctypes.CDLL(path) if path else None


@functools.cache
def _provide(name: str) -> None:
    """Make sure that the loader can find ``name``: an unresolved symbol would abort the process."""
    if name not in ALLOWED_SYMBOLS:
        raise CodeObjectError(f"code object refers to {name}, which generated code may not use")
    if llvm.address_of_symbol(name):
        return
    library = _libm()
    function = getattr(library, name, None) if library is not None else None
    if function is None:
        raise CodeObjectError(f"this system's C library has no {name}")
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    llvm.add_symbol(name, address)
