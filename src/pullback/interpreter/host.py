"""The world around kernels: host code that asks for a GPU gets its answers, on CPU tensors.

Without it the code of a library says that its tensors are not on CUDA, makes float32 tensors between float64 kernels,
or asks a driver that is missing.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from pullback._torch.context import without_modes
from pullback._torch.ops import custom_op_type, decorated_function
from pullback.interpreter.streams import replace_streams
from pullback.interpreter.worlds import POISON, presented, world

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_DTYPE, _DEVICE, _IS_CUDA = (getattr(torch.Tensor, name).__get__ for name in ("dtype", "device", "is_cuda"))
_EMPTY = {
    torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty, torch.Tensor.new_empty_strided,
}  # fmt: skip
_NARROWING = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}
_SUMS = {torch.addmm, torch.baddbmm}
_PRODUCTS = {torch.mm, torch.bmm} | _SUMS
_OF_ONE_DTYPE = _PRODUCTS | {
    torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.Tensor.mm,
    torch.Tensor.bmm, torch.Tensor.addmm, torch.Tensor.baddbmm, torch.mv, torch.Tensor.mv, torch.dot, torch.Tensor.dot,
    torch.einsum, torch.nn.functional.linear,
}  # fmt: skip
"""Products that refuse matrices of two dtypes."""
_WRITES = {
    getattr(torch.Tensor, name + end)
    for name in ("scatter", "scatter_add", "index_put", "index_copy", "index_add", "masked_scatter")
    for end in ("", "_")
}
"""Functions that refuse to write numbers of another dtype."""
_NUMBERS = {
    torch.Tensor.item: 1, torch.Tensor.__int__: 1, torch.Tensor.__index__: 1, torch.Tensor.__float__: 1.0,
    torch.Tensor.__bool__: True, torch.equal: False,
}  # fmt: skip
"""Numbers that host code is given for tensors without memory: counts of 1, and conditions that hold."""
_GPU = torch.device("cuda", 0)
_ANSWERS = {_IS_CUDA: True, _DEVICE: _GPU, torch.Tensor.get_device: 0, torch.get_device: 0}
"""Answers of tensors about their device, by the attribute or function that asks."""
_NAME = "NVIDIA H100 (interpreted)"
_FREE, _MEMORY = 64 << 30, 80 << 30
"""Bytes of its memory that are free, and all."""
_RESERVED = 1024
"""Bytes of shared memory per block that the driver keeps for itself."""
_METHODS = ("forward", "backward", "setup_context", "jvp", "vjp")
_OTHERS = ("torch", "triton", "pullback", "numpy")
"""Packages that use Triton, or may, whose functions are not kernels to audit."""


class Host(TorchFunctionMode):
    """Answers host code: tensors say that they are on a GPU and, lifted, that what is float64 is narrower."""

    def __init__(self, lifts: bool, device: str) -> None:
        """Answer for a world that lifts floats to float64, or does not; tensors are made on a device."""
        super().__init__()
        self._lifts = lifts
        self._device = device
        self.is_calling = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of PyTorch with what is on the CPU, and float64 if the world lifts."""
        kwargs = kwargs or {}
        world().ensure_not_endless()
        if (func == _DTYPE or func in _ANSWERS) and _is_of_torch(sys._getframe(1)):
            return func(*args, **kwargs)
        if func is torch.Tensor.cuda:
            return args[0]
        if func in _ANSWERS:
            return _ANSWERS[func]
        if self._device == "meta" and func in _NUMBERS:
            return _NUMBERS[func]
        if self._lifts:
            if func == _DTYPE:
                true = func(*args)
                return presented() if true == torch.float64 else true
            if func is torch.Tensor.element_size and args[0].dtype == torch.float64:
                return presented().itemsize
            if func in _NARROWING:
                return args[0].double()
        args = tuple(self._here(x) for x in args)
        kwargs = {name: self._here(x, name) for name, x in kwargs.items()}
        if func in _PRODUCTS and "out_dtype" in kwargs:  # PyTorch has them on a GPU only
            wide = kwargs.pop("out_dtype")
            if func in _SUMS and len({x.dtype for x in args[1:3]}) > 1:
                with torch.autocast("cpu", enabled=False):  # which leaves these alone on a GPU
                    return func(*args)  # raises
            args = tuple(x.to(wide) if isinstance(x, torch.Tensor) else x for x in args)
        if self._lifts and func in _OF_ONE_DTYPE:
            args = _widened(args)
        if self._lifts and func in _WRITES and _DTYPE(args[0]) == torch.float64:
            args, kwargs = _widened(args), dict(zip(kwargs, _widened((args[0], *kwargs.values()))[1:], strict=True))
        out = self._called(func, args, kwargs)
        if func in _EMPTY and out.dtype == torch.float64 and out.numel() and out.device.type == "cpu":
            torch.empty(0, dtype=torch.float64).set_(out.untyped_storage()).numpy()[:] = POISON
        return out

    def _called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before, self.is_calling = self.is_calling, True
        try:
            return func(*args, **kwargs)
        finally:
            self.is_calling = before

    def _here(self, x: Any, name: str = "") -> Any:
        if self._lifts and isinstance(x, torch.dtype) and x in _NARROW:
            return torch.float64
        if isinstance(x, torch.device | ActiveDevice) or (
            isinstance(x, str) and (name == "device" or x.startswith("cuda"))
        ):
            return self._device
        return self._device if name == "device" and isinstance(x, int) else x


def _widened(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return tensors with narrow floats as float64, if one of them is: a float32 input meets memory that was lifted."""
    flat = [x for arg in args for x in (arg if isinstance(arg, tuple | list) else (arg,))]
    if not any(isinstance(x, torch.Tensor) and _DTYPE(x) == torch.float64 for x in flat):
        return args

    def wide(x: Any) -> Any:
        if isinstance(x, tuple | list):
            return [wide(each) for each in x]
        return x.double() if isinstance(x, torch.Tensor) and _DTYPE(x) in _NARROW else x

    return tuple(map(wide, args))


def _is_of_torch(frame: FrameType) -> bool:
    """Whether PyTorch's own code runs in a frame: it is told the truth, as a checkpoint that compares metadata."""
    return str(frame.f_globals.get("__name__", "")).startswith("torch.")


_hosts: list[Host] = []


@contextlib.contextmanager
def hosted() -> Iterator[None]:
    """Run host code: what it asks for is answered, in the implementation of an op that it calls, too."""
    if _hosts and not _hosts[-1].is_calling:
        yield
        return
    here, default = world(), torch.get_default_dtype()
    host, lifts = Host(here.lifts, "meta" if here.simulates else "cpu"), here.lifts
    if lifts:
        torch.set_default_dtype(torch.float64)
    _hosts.append(host)
    try:
        with host:
            yield
    finally:
        _hosts.pop()
        torch.set_default_dtype(default)


def _is_hosted() -> bool:
    return bool(_hosts)


class hosting:  # noqa: N801  # as functools.partial
    """A callable that makes a call as host code; it can be copied and pickled if the call can."""

    def __init__(self, call: Callable[..., Any]) -> None:
        """Take the call."""
        functools.update_wrapper(self, call, updated=())
        self.__wrapped__ = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call."""
        with hosted():
            return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> Any:
        """Copy and pickle the call alone: the names that it has taken from it are no state."""
        return hosting, (self.__wrapped__,)


# ---- entering -------------------------------------------------------------------------------------------------------

_is_entered = False


def is_entered() -> bool:
    """Whether kernels of this process are interpreted."""
    return _is_entered


def enter() -> None:
    """Interpret kernels from now on in this process; to be called before the code that uses Triton is imported."""
    global _is_entered
    if _is_entered:
        return
    _is_entered = True
    os.environ.pop("TRITON_INTERPRET", None)  # with it, Triton's own interpreter takes the place of `triton.jit`
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # host code under `torch.compile` runs as it stands
    _replace_launches()
    _replace_driver()
    _replace_autocast()
    _adopt_functions()
    _adopt_ops()


def _replace_launches() -> None:
    import triton

    from pullback.interpreter import front_end, launch

    compiled = triton.JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        with without_modes():
            if world().specialises:
                front_end.note(world(), self, args, kwargs, compiled)
            if not warmup:
                launch.run(self, args, grid, kwargs)
        return launch.Compiled(self)

    triton.JITFunction.run = run
    triton.JITFunction.warmup = lambda self, *args, **kwargs: launch.Compiled(self)
    triton.runtime.Autotuner.run = _tune


def _tune(self: Any, *args: Any, **kwargs: Any) -> Any:
    from pullback.interpreter import launch

    return launch.pick(self, args, kwargs)


@contextlib.contextmanager
def picking() -> Iterator[None]:
    """Have the autotuners of compiled kernels take the configuration that the world says."""
    from triton.runtime import Autotuner

    tuning = Autotuner.run
    Autotuner.run = _tune
    try:
        yield
    finally:
        Autotuner.run = tuning


def _properties() -> dict[str, int]:
    """Properties of the device, by the names of Triton's driver."""
    here = world()
    return {
        "multiprocessor_count": here.processors, "max_shared_mem": here.shared_memory, "warpSize": 32,
        "max_num_regs": 65536,
    }  # fmt: skip


def _device() -> SimpleNamespace:
    """Properties of the device, by the names of PyTorch."""
    properties = _properties()
    return SimpleNamespace(
        multi_processor_count=properties["multiprocessor_count"], name=_NAME, total_memory=_MEMORY, major=9, minor=0,
        warp_size=32, shared_memory_per_block_optin=properties["max_shared_mem"], gcnArchName="",
        shared_memory_per_multiprocessor=properties["max_shared_mem"] + _RESERVED, shared_memory_per_block=48 << 10,
        regs_per_multiprocessor=properties["max_num_regs"], max_threads_per_multi_processor=2048,
        L2_cache_size=50 << 20,
    )  # fmt: skip


def _replace_driver() -> None:
    """Put a GPU in place by which libraries choose sizes of blocks: that of an H100, as small as the world says."""
    import triton

    target = SimpleNamespace(backend="cuda", arch=90, warp_size=32)
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=lambda: 0,
            get_active_torch_device=ActiveDevice,
            get_current_stream=lambda device=None: 0,
            utils=SimpleNamespace(get_device_properties=lambda device=0: _properties()),
        )
    )
    answers = {
        "get_device_capability": (9, 0), "current_device": 0, "get_device_name": _NAME, "synchronize": None,
        "set_device": None, "mem_get_info": (_FREE, _MEMORY),
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda device=None, answer=answer: answer)
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    replace_streams()
    setattr(torch.cuda, "get_device_properties", lambda device=None: _device())  # noqa: B010
    count = torch.cuda.device_count  # by which PyTorch itself looks for generators of random numbers
    torch.cuda.device_count = lambda: count() if _is_of_torch(sys._getframe(1)) else 1
    is_available = torch.cuda.is_available
    torch.cuda.is_available = lambda: is_available() if _is_of_torch(sys._getframe(1)) else _is_hosted()
    for module in (torch.cuda, torch.cpu):
        module.device = _OnDevice  # type: ignore[attr-defined]


class ActiveDevice(str):
    """The device of Triton's driver, which scripts ask for where they begin, and later give to PyTorch.

    It equals what tensors say that they are on, in host code and outside of it, where they are on the CPU.
    """

    __slots__ = ()
    type = "cuda"
    index = 0  # type: ignore[assignment]

    def __new__(cls) -> ActiveDevice:
        """Make the device, by the name of the one that PyTorch is to use."""
        return super().__new__(cls, "cpu")

    def __str__(self) -> str:
        """Return the name that host code is told."""
        return str(_GPU)

    def __eq__(self, other: object) -> bool:
        """Whether it is the device of a tensor."""
        if isinstance(other, torch.device) and not _is_hosted():
            return other.type == "cpu"
        return str(other) in ("cuda", str(_GPU))

    def __ne__(self, other: object) -> bool:
        """Whether it is not."""
        return not self == other

    def __hash__(self) -> int:
        """Return the hash of the device of a tensor in host code."""
        return hash(_GPU)


class _OnDevice(contextlib.nullcontext[None]):
    """In place of `torch.cuda.device`: there is one device, of index 0."""

    def __init__(self, device: Any = None) -> None:
        super().__init__()
        self.idx = 0


def _replace_autocast() -> None:
    """Have what code says of the autocast of a GPU hold for that of the CPU, where its tensors are."""

    def moved(call: Callable[..., Any], index: int = 0) -> Callable[..., Any]:
        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            given = (*args[:index], *("cpu" if x == "cuda" else x for x in args[index : index + 1]), *args[index + 1 :])
            if kwargs.get("device_type") == "cuda":
                kwargs["device_type"] = "cpu"
            return call(*given, **kwargs)

        return run

    for name in ("custom_fwd", "custom_bwd"):
        setattr(torch.amp, name, moved(getattr(torch.amp, name)))
    torch.autocast.__init__ = moved(torch.autocast.__init__, 1)  # type: ignore[method-assign]
    is_enabled = torch.is_autocast_enabled
    torch.is_autocast_enabled = moved(lambda device="cpu": is_enabled(device))  # by default that of a GPU
    torch.get_autocast_dtype = moved(torch.get_autocast_dtype)
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")


def _adopt_functions() -> None:
    """Run the methods of Functions as host code: those of today, and those that are defined later."""
    before = Function.__init_subclass__

    def adopt_new(cls: Any, **kwargs: Any) -> None:
        before(**kwargs)
        _adopt(cls)

    Function.__init_subclass__ = classmethod(adopt_new)  # type: ignore[assignment,arg-type]
    todo = list(Function.__subclasses__())
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        _adopt(cls)


def _adopt(cls: type) -> None:
    if cls.__module__.partition(".")[0] in _OTHERS:
        return
    for name in _METHODS:
        method = vars(cls).get(name)
        if isinstance(method, staticmethod):
            setattr(cls, name, staticmethod(_as_host_code(method.__func__, cls.__module__)))


def _adopt_ops() -> None:
    """Run the implementations and the backwards of ops that are defined later as host code, on tensors of any device.

    Those that `torch.library.custom_op` and `triton_op` define.
    """
    definition = custom_op_type()
    kernel, autograd = definition.register_kernel, definition.register_autograd

    def host(function: Any) -> Any:
        return function and _as_host_code(function, decorated_function(function).__module__)

    def register_kernel(self: Any, device_types: Any, fn: Any = None, /) -> Any:
        types = device_types if isinstance(device_types, list | tuple) else [device_types]
        register = kernel(self, None if "cuda" in types else device_types)
        return (lambda fn: register(host(fn))) if fn is None else register(host(fn))

    def register_autograd(self: Any, backward: Any, /, *, setup_context: Any = None) -> None:
        autograd(self, host(backward), setup_context=host(setup_context))

    definition.register_kernel, definition.register_autograd = register_kernel, register_autograd


def _as_host_code(method: Callable[..., Any], module: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not (is_useful(module) or _is_of_script(method)):
            return method(*args, **kwargs)
        with hosted():
            return method(*args, **kwargs)

    return run


# ---- which code uses kernels ----------------------------------------------------------------------------------------

_useful: dict[str, bool] = {}


def is_useful(module: str) -> bool:
    """Whether a module, or one of its package whose functions it uses, launches kernels."""
    if not _is_entered:
        return False
    if module not in _useful:
        _useful[module] = any(map(_has_kernels, _reached_from(module)))
    return _useful[module]


def _reached_from(name: str) -> Iterator[ModuleType]:
    """Yield a module, and those of its package, or of loose files, from which its functions and classes are."""
    package = name.partition(".")[0]
    todo, seen = [name], {name}
    while todo:
        module = sys.modules.get(todo.pop())
        if module is None:
            continue
        yield module
        for value in list(vars(module).values()):
            other = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(other, str) and other not in seen and _belongs(other, package):
                seen.add(other)
                todo.append(other)


def _belongs(module: str, package: str) -> bool:
    top = module.partition(".")[0]
    if top in _OTHERS or top in sys.stdlib_module_names:
        return False
    if top == package:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or "site-packages"
    return "." not in module and "site-packages" not in file and not file.endswith("__init__.py")


def _has_kernels(module: ModuleType) -> bool:
    return _are_kernels_in(vars(module)) or _makes_kernels(module)


def _makes_kernels(module: ModuleType) -> bool:
    """Whether functions of a module make kernels when they are called."""
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        return False
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        text = Path(file).read_text(encoding="utf-8", errors="replace")
        return "triton" in text and any(map(_is_jit, ast.walk(ast.parse(text))))
    return False


def _is_jit(node: ast.AST) -> bool:
    """Whether a node is `triton.jit`, or `jit` imported from it: of code, not of a text in it."""
    if isinstance(node, ast.Attribute):
        return node.attr == "jit" and isinstance(node.value, ast.Name) and node.value.id == "triton"
    return isinstance(node, ast.ImportFrom) and node.module == "triton" and any(a.name == "jit" for a in node.names)


def _are_kernels_in(names: dict[str, Any]) -> bool:
    from triton.runtime import KernelInterface

    return any(isinstance(value, KernelInterface) for value in list(names.values()))


def _is_of_script(method: Callable[..., Any]) -> bool:
    """Whether a method is of a file with kernels that `runpy` has run: its module is gone."""
    names = getattr(inspect.unwrap(method), "__globals__", {})
    return names.get("__name__") not in sys.modules and _are_kernels_in(names)
