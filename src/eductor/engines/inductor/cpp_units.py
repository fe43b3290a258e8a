"""The C++ kernels of a generated module in few translation units, where torch compiles one for each kernel.

Most of the time that a compiler needs for a small kernel goes to torch's headers, and each unit pays for them once. A
generated module defines its kernels one after the other by `AsyncCompile.cpp_pybinding`: here, that only collects them.
`submit` divides them into units and starts their compilation, as soon as the module waits for its kernels.

The code of a kernel stays as generated, in a namespace of its own. Torch compiles a kernel that cannot share a file: one
that defines a macro, or takes an argument whose type is unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from eductor.progress import building

_LARGEST, _SMALLEST = 60_000, 10_000  # characters of one unit
_ENTRY = re.compile(r'extern "C"\s+void\s+kernel\(')
_INCLUDE = re.compile(r"^#include .*\n", re.M)
_DIRECTIVE = re.compile(r"^\s*#\s*(?!pragma\b)\w", re.M)
_ARGUMENT = re.compile(r"(const )?(\w+( \w+)*\*|int64_t|uintptr_t|float|double)")

_PREFIX = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <exception>
#include <type_traits>

struct PythonError {};
static void* (*data_of)(PyObject*);

template <typename T> static T argument(PyObject* value) {
    if constexpr (std::is_pointer_v<T>) {
        return static_cast<T>(data_of(value));
    } else if constexpr (std::is_floating_point_v<T>) {
        double number = PyFloat_AsDouble(value);
        if (number == -1.0 && PyErr_Occurred()) throw PythonError();
        return static_cast<T>(number);
    } else {
        long long number = PyLong_AsLongLong(value);
        if (number == -1 && PyErr_Occurred()) throw PythonError();
        return static_cast<T>(number);
    }
}

template <typename F> static PyObject* guarded(Py_ssize_t given, Py_ssize_t expected, F call) {
    if (given != expected) return PyErr_Format(PyExc_TypeError, "a kernel takes %zd arguments, not %zd", expected, given);
    try {
        call();
        Py_RETURN_NONE;
    } catch (PythonError) {
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    } catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "a kernel raised an unknown C++ exception");
    }
    return nullptr;
}

static PyObject* connect(PyObject*, PyObject* address) {
    data_of = reinterpret_cast<void* (*)(PyObject*)>(PyLong_AsVoidPtr(address));
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
}
"""

_KERNEL = """
namespace kernel_{number} {{
{code}
static PyObject* bound(PyObject*, PyObject* const* args, Py_ssize_t count) {{
    return guarded(count, {count}, [&] {{ kernel({arguments}); }});
}}
}}
"""

_SUFFIX = """
static PyMethodDef methods[] = {{
    {{"connect", connect, METH_O, nullptr}},
{methods}
    {{nullptr, nullptr, 0, nullptr}}}};
static PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "unit", nullptr, -1, methods}};
PyMODINIT_FUNC PyInit_unit() {{
    PyObject* module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
    if (module) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}}
"""
_METHOD = '    {{"kernel_{n}", reinterpret_cast<PyCFunction>(kernel_{n}::bound), METH_FASTCALL, nullptr}},'


@dataclass
class _Kernel:
    """A kernel of a module: the types of its arguments, its code, and the function that loads it once its unit is known."""

    types: Sequence[str]
    code: str
    load: Callable[[], Any] | None = None


_waiting: WeakKeyDictionary[Any, list[_Kernel]] = WeakKeyDictionary()


def bind_in_batch(bind: Callable[..., Any], compiler: Any, types: Sequence[str], code: str) -> Any:
    """The future function of a kernel: `AsyncCompile.cpp_pybinding`, where `compiler` is the one of a generated module."""
    from torch._inductor.async_compile import kernel_code_log
    from torch._inductor.codecache import LambdaFuture

    if not shares_a_unit(types, code):
        return bind(compiler, types, code)
    kernel_code_log.info("CPP+Bindings Kernel:\n%s", code)
    kernel = _Kernel(types, code)
    _waiting.setdefault(compiler, []).append(kernel)

    def load() -> Any:
        submit(compiler)
        assert kernel.load is not None
        return kernel.load()

    return LambdaFuture(load)


def wait_for_units(
    wait: Callable[..., Any], compiler: Any, scope: dict[str, Any], builds: Mapping[Future[Any], int]
) -> None:
    """Wait for the kernels of a module by `AsyncCompile.wait`; `builds` are the tasks that build so many of them each."""
    from torch._inductor.codecache import LambdaFuture

    for task, kernels in builds.items():
        building(task, kernels)
    wait(compiler, scope)  # without worker processes, torch expects no futures
    scope.update({name: value.result() for name, value in scope.items() if isinstance(value, LambdaFuture)})


def submit(compiler: Any) -> dict[Future[Any], int]:
    """Divide the waiting kernels of a module into units, and build those that are not on disk: tasks of so many kernels."""
    from torch._inductor.async_compile import get_compile_threads

    workers, tasks = get_compile_threads(), dict[Future[Any], int]()
    for unit in _divided(_waiting.pop(compiler, []), workers):
        source = source_of([(kernel.types, kernel.code) for kernel in unit])
        start = partial(_start, compiler, tasks, len(unit)) if workers > 1 else None
        built = _cache().load_async(source, submit_fn=start)
        for number, kernel in enumerate(unit):
            kernel.load = partial(_function, built, number)
    return tasks


def _start(compiler: Any, tasks: dict[Future[Any], int], kernels: int, build: Callable[[], None]) -> Any:
    """Let a worker build a unit with so many kernels."""
    task = compiler.submit(build)
    tasks[task] = kernels
    return task


def _function(built: Callable[[], ModuleType], number: int) -> Any:
    """One kernel of a unit, when the unit is built."""
    return getattr(built(), f"kernel_{number}")


def shares_a_unit(types: Sequence[str], code: str) -> bool:
    """Whether a kernel can share a file: its only `extern "C"` is the entry, its only directives are includes and pragmas."""
    inner = _INCLUDE.sub("", code)
    exported = inner.count('extern "C"') == len(_ENTRY.findall(inner)) == 1
    return exported and not _DIRECTIVE.search(inner) and all(map(_ARGUMENT.fullmatch, types))


def source_of(kernels: Sequence[tuple[Sequence[str], str]]) -> str:
    """The C++ of a unit: a Python module with the functions `kernel_0`, `kernel_1`, one for each kernel."""
    includes = dict.fromkeys(line for _, code in kernels for line in _INCLUDE.findall(code))
    bodies = []
    for number, (types, code) in enumerate(kernels):
        arguments = ", ".join(f"argument<{kind.removeprefix('const ')}>(args[{i}])" for i, kind in enumerate(types))
        inner = _ENTRY.sub("static void kernel(", _INCLUDE.sub("", code))
        bodies.append(_KERNEL.format(number=number, code=inner, count=len(types), arguments=arguments))
    methods = "\n".join(_METHOD.format(n=number) for number in range(len(kernels)))
    return "".join(includes) + _PREFIX + "".join(bodies) + _SUFFIX.format(methods=methods)


def _divided(kernels: Sequence[_Kernel], workers: int) -> list[list[_Kernel]]:
    """One unit for each worker, but none so small that headers dominate, or so large that the others wait for it."""
    size = min(_LARGEST, max(_SMALLEST, sum(len(k.code) for k in kernels) // workers))
    units: list[list[_Kernel]] = []
    room = 0
    for kernel in kernels:
        if room <= 0:
            units.append([])
            room = size
        units[-1].append(kernel)
        room -= len(kernel.code)
    return units


@cache
def _cache() -> Any:
    """Torch's cache of compiled C++ files, which loads a unit as a Python module."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    guards: Any = torch._C._dynamo.guards

    class Units(CppPythonBindingsCodeCache):
        entry_function = "unit"

        @classmethod
        def _load_library_inner(cls, path: str, key: str) -> Any:
            module = super()._load_library_inner(path, key)
            module.connect(guards._torchinductor_pyobject_tensor_data_ptr)
            return module

    return Units
