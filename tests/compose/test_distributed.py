"""Distributed training: data parallel, sharded parameters, distributed tensors. Two processes run all cells."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.compose._contexts import CONTEXTS, Outcome, cells, context, judge, measure
from tests.compose._ops import COLUMNS, X
from tests.compose.test_objects import Weighted

SIZE = 2
FAMILY = "distributed"
ROOT = Path(__file__).resolve().parents[2]


def mesh():
    return torch.distributed.device_mesh.init_device_mesh("cpu", (SIZE,))


@context(FAMILY, "DistributedDataParallel")
def ddp(op):
    """Each rank scales its loss differently; the gradient is the mean over ranks."""
    module = torch.nn.parallel.DistributedDataParallel(Weighted(op))
    (module() * (1 + dist.get_rank())).sum().backward()
    return module.module.weight.grad / 1.5


@context(FAMILY, "FSDP2, fully_shard")
def fsdp(op):
    module = Weighted(op)
    torch.distributed.fsdp.fully_shard(module, mesh=mesh())
    y = module()
    (y * (1 + dist.get_rank())).sum().backward()
    return y, module.weight.grad.full_tensor() / 1.5


def distributed(op, placement):
    x = torch.distributed.tensor.distribute_tensor(X.clone(), mesh(), [placement]).requires_grad_()
    y = op(x)
    y.sum().backward()
    return y.full_tensor(), x.grad.full_tensor()


@context(FAMILY, "DTensor, sharded")
def dtensor_sharded(op):
    return distributed(op, torch.distributed.tensor.Shard(0))


@context(FAMILY, "DTensor, replicated")
def dtensor_replicated(op):
    return distributed(op, torch.distributed.tensor.Replicate())


@context(FAMILY, "DTensor, create_graph", order=2)
def dtensor_create_graph(op):
    x = torch.distributed.tensor.distribute_tensor(X.clone(), mesh(), [torch.distributed.tensor.Shard(0)])
    x.requires_grad_()
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    return h.full_tensor()


def outcomes():
    """Measure every cell in two processes; the first one writes the results."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __name__, folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        workers = [subprocess.Popen([*command, str(rank)], env=environment, cwd=ROOT) for rank in range(SIZE)]
        try:
            assert [worker.wait(timeout=120) for worker in workers] == [0] * SIZE
        finally:
            for worker in workers:
                worker.kill()
        found = json.loads(Path(folder, "outcomes.json").read_text(encoding="utf-8"))
    return {(name, column): Outcome(*outcome) for name, column, outcome in found}


def main(folder, rank):
    """Run one of the two processes."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "store")), SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    rows = [row for (family, _), row in CONTEXTS.items() if family == FAMILY]
    found = [
        (row.name, column, (outcome.verdict, outcome.error, outcome.message))
        for row in rows
        for column in COLUMNS
        for outcome in [measure(row, column)]
    ]
    if rank == 0:
        Path(folder, "outcomes.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def measured():
    return outcomes()


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo")
@cells(FAMILY)
def test_derivative_is_kept_in_distributed_training(row, column, measured):
    judge(row, column, measured[row.name, column])


if __name__ == "__main__":
    from tests.compose import test_distributed  # the rows that `measure` knows, not this module's copies

    test_distributed.main(sys.argv[1], int(sys.argv[2]))
    os._exit(0)  # gloo's threads now and then outlive the interpreter, which aborts: "terminate called without …"
