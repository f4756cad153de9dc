"""A stand-in for Triton on CPU tensors: runs a kernel as Python, one program after another, and checks each access.

A read or a write outside of a tensor raises, as does a second write to a place, an operation on two dtypes, or one that
Triton does not round correctly. What a mask leaves out reads as NaN.
"""

import operator
import sys
from contextlib import nullcontext
from fractions import Fraction
from types import SimpleNamespace

import torch

from pullback.triton import build as triton_build

FLOATS, INTS, NARROW = (torch.float32, torch.float64), (torch.int32, torch.int64), (torch.bfloat16, torch.float16)


class Block:
    """Values of one dtype."""

    def __init__(self, values):
        self.values, self.dtype = values, values.dtype

    def to(self, dtype):
        return Block(self.values.to(dtype))

    def __neg__(self):
        raise TypeError("Triton subtracts from 0, which loses the sign of a zero")


def values_of(*given):
    """Return operands as tensors of one dtype; numbers take that of the blocks."""
    dtypes = {x.dtype for x in given if isinstance(x, Block)}
    dtype = torch.int64 if dtypes == {torch.int32, torch.int64} else next(iter(dtypes))
    assert dtypes in ({dtype}, set(INTS)), f"operands of {dtypes}"
    assert dtype not in NARROW, "arithmetic in 16 bits"
    return [x.values.to(dtype) if isinstance(x, Block) else torch.tensor(x, dtype=dtype) for x in given]


def elementwise(function, *allowed):
    def call(*given):
        values = values_of(*given)
        assert not allowed or values[0].dtype in allowed, f"{function} of {values[0].dtype}"
        return Block(function(*values))

    return call


for name, dtypes in {
    **dict.fromkeys(["add", "sub", "mul"], (*FLOATS, *INTS)),
    **dict.fromkeys(["floordiv", "mod"], INTS),
    **dict.fromkeys(["lt", "le", "gt", "ge", "eq", "ne"], (*FLOATS, *INTS)),
    **dict.fromkeys(["and_", "or_", "xor", "invert"], (torch.bool,)),
    "truediv": (torch.float64,),  # in float32 Triton's is not correctly rounded
}.items():
    setattr(Block, f"__{name.strip('_')}__", elementwise(getattr(operator, name), *dtypes))


class Pointer:
    """A pointer: the memory of a tensor from its first element, and offsets into it."""

    def __init__(self, tensor, written=None, at=None):
        self.tensor, self.written, self.at = tensor, set() if written is None else written, at

    def __add__(self, offsets):
        return Pointer(self.tensor, self.written, offsets.values)

    def places(self, mask):
        """Return the offsets that the mask admits; each must be an element of the tensor."""
        taken = torch.broadcast_to(self.at, mask.values.shape)[mask.values].tolist()
        own = torch.zeros((), dtype=torch.int64)
        for size, stride in zip(self.tensor.shape, self.tensor.stride(), strict=True):
            own = own[..., None] + torch.arange(size) * stride
        assert set(taken) <= set(own.flatten().tolist()), "out of bounds"
        return torch.tensor(taken, dtype=torch.int64)

    @property
    def memory(self):
        size = self.tensor.untyped_storage().nbytes() // self.tensor.element_size() - self.tensor.storage_offset()
        return self.tensor.detach().as_strided((size,), (1,))


def load(pointer, mask):
    dtype = pointer.tensor.dtype
    poison = True if dtype == torch.bool else float("nan")
    found = torch.full(mask.values.shape, poison, dtype=dtype)
    found[mask.values] = pointer.memory[pointer.places(mask)]
    return Block(found)


def store(pointer, block, mask):
    assert block.dtype == pointer.tensor.dtype
    places = pointer.places(mask)
    assert pointer.written.isdisjoint(places.tolist()), "written twice"
    pointer.written.update(places.tolist())
    pointer.memory[places] = torch.broadcast_to(block.values, mask.values.shape)[mask.values]


def where(condition, x, y):
    assert condition.dtype == torch.bool
    return Block(torch.where(condition.values, *values_of(x, y)))


def extreme(x, y, of, sign):
    """Return the larger or the smaller one; 0 is larger than -0, and NaN propagates."""
    x, y = torch.broadcast_tensors(*values_of(x, y))
    zeros = torch.where(sign(x.signbit(), y.signbit()), -torch.zeros_like(x), torch.zeros_like(x))
    return Block(torch.where((x == 0) & (y == 0), zeros, of(x, y)))


def fused(x, y, z):
    """Return x y + z, rounded once."""
    try:
        return float(Fraction(x) * Fraction(y) + Fraction(z))
    except (OverflowError, ValueError):  # infinities and NaN, of operands or of the result
        return x * y + z


def fma(*given):
    x, *others = torch.broadcast_tensors(*values_of(*given))
    found = [fused(*numbers) for numbers in zip(x.tolist(), *(t.tolist() for t in others), strict=True)]
    return Block(torch.tensor(found, dtype=torch.float64).to(x.dtype))


class Jit:
    """Stand-in for the result of `triton.jit`."""

    def __init__(self, function):
        self.function, self.launches, self.warmed = function, [], []

    def __call__(self, *arguments):
        return self.function(*arguments)

    def launch(self, grid, *arguments):
        given = [Pointer(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        for program in range(grid[0]):
            language.program_id = lambda axis, p=program: Block(torch.tensor(p, dtype=torch.int32))
            self.function(*given)

    def warmup(self, *arguments, grid, **options):
        self.warmed.append((arguments, options))
        return Compiled(self, [kind_of(a) for a in arguments])


class Compiled:
    """Stand-in for the result of `warmup`: a kernel for a signature, which launches do not check again."""

    def __init__(self, jit, kinds):
        self.jit, self.kinds = jit, kinds

    def __getitem__(self, grid):
        def launch(*arguments):
            assert [kind_of(a) for a in arguments] == self.kinds, "compiled for others"
            self.jit.launches.append((grid, arguments))
            self.jit.launch(grid, *arguments)

        return launch


def kind_of(argument):
    """Return the specialisation of an argument: alignment for a tensor, the value for a number."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.device, argument.data_ptr() % 16 == 0
    return argument


FUNCTIONS = (
    "acos acosh asin asinh atan atan2 atanh ceil cos cosh erf erfc exp exp2 expm1 floor hypot lgamma log log10 log1p "
    "log2 pow sin sinh tan tanh trunc"
)
libdevice = SimpleNamespace(
    nearbyint=elementwise(torch.round, *FLOATS),
    **{name: elementwise(getattr(torch, name), *FLOATS) for name in FUNCTIONS.split()},
)
language = SimpleNamespace(
    **{name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64", "int64")},
    int1=torch.bool,
    constexpr=lambda value: value,
    arange=lambda start, end: Block(torch.arange(start, end, dtype=torch.int32)),
    full=lambda shape, value, dtype: Block(torch.full(shape, value or 0, dtype=dtype)),  # of -0.0 too, as Triton does
    load=load,
    store=store,
    where=where,
    fma=fma,
    abs=elementwise(torch.abs, *FLOATS),
    maximum=lambda x, y, propagate_nan: extreme(x, y, torch.maximum, torch.logical_and),
    minimum=lambda x, y, propagate_nan: extreme(x, y, torch.minimum, torch.logical_or),
    PropagateNan=SimpleNamespace(ALL="ALL"),
    div_rn=elementwise(torch.div, torch.float32),
    sqrt_rn=elementwise(torch.sqrt, torch.float32),
    sqrt=elementwise(torch.sqrt, torch.float64),
    extra=SimpleNamespace(libdevice=libdevice),
)
MODULES = {
    "triton": SimpleNamespace(jit=Jit, language=language),
    "triton.language": language,
    "triton.language.extra": language.extra,
    "triton.language.extra.libdevice": libdevice,
}


def put_in_place(monkeypatch):
    """Make kernels use the stand-in; PyTorch, which imports Triton too, does not see it."""
    kernel_of = triton_build.kernel_of

    def made(source):
        with monkeypatch.context() as patch:
            for name, module in MODULES.items():
                patch.setitem(sys.modules, name, module)
            return kernel_of(source)

    monkeypatch.setattr(triton_build, "_made", {})
    monkeypatch.setattr(triton_build, "on", lambda device: nullcontext())
    monkeypatch.setattr(triton_build, "kernel_of", made)
