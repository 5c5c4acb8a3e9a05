"""Training loops of two ranks, one script for all: `python ranks.py OUT CASE CASE ...`.

For every case each rank appends a line to OUT/rank-N: its losses, a checksum of its weights and random state, and
how many collectives its process groups have issued. Lines of a plain and of an attached run must be equal.
"""

TWO_RANKS = """
import datetime, json, random, sys, tempfile, zlib
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist, torch.multiprocessing as mp

WIDTH, CLASSES, ROWS = 16, 10, 4


class Copy(torch.autograd.Function):
    # Megatron's f: identity forward, all_reduce backward
    @staticmethod
    def forward(ctx, x): return x
    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(); dist.all_reduce(gradient)
        return gradient


class Reduce(torch.autograd.Function):
    # and g: all_reduce forward, identity backward
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x
    @staticmethod
    def backward(ctx, gradient): return gradient


class Gather(torch.autograd.Function):
    # sequence parallel: the same pair along the rows
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = x.new_empty(2 * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out
    @staticmethod
    def backward(ctx, gradient):
        out = gradient.new_empty(gradient.shape[0] // 2, *gradient.shape[1:])
        dist.reduce_scatter_tensor(out, gradient.contiguous(), group=ctx.group, async_op=True).wait()
        return out, None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = x.new_empty(x.shape[0] // 2, *x.shape[1:])
        dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
        return out
    @staticmethod
    def backward(ctx, gradient):
        parts = [torch.empty_like(gradient) for _ in range(2)]
        dist.all_gather(parts, gradient.contiguous(), group=ctx.group)
        return torch.cat(parts), None


copy_in, reduce_out = Copy.apply, Reduce.apply


class Parallel(nn.Module):
    # two matrices, half of each on each rank
    def __init__(self, rank, enter, leave):
        super().__init__()
        self.enter, self.leave = enter, leave
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        up, down = torch.randn(32, WIDTH) * 0.2, torch.randn(WIDTH, 32) * 0.2
        self.up = nn.Parameter(up.chunk(2)[rank].clone())
        self.down = nn.Parameter(down.chunk(2, 1)[rank].clone())
    def forward(self, x):
        inner = F.linear(F.gelu(F.linear(self.enter(self.norm(x)), self.up)), self.down)
        return self.head(x + self.leave(inner))


def plain():
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, CLASSES))


def batch():
    return torch.randn(ROWS, WIDTH), torch.randint(0, CLASSES, (ROWS,))


def train(model, rank, steps=5, same=False, loss_of=F.cross_entropy, after_backward=None, each=None):
    torch.manual_seed(1 if same else 1 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
    losses = []
    for step in range(steps):
        x, y = batch()
        if each: each(step)
        loss = loss_of(model(x), y)
        optimizer.zero_grad(); loss.backward()
        if after_backward: after_backward(model)
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def tensor_parallel(rank):
    return train(Parallel(rank, copy_in, reduce_out), rank, same=True)


def sequence_parallel(rank):
    group = dist.new_group([0, 1])
    model = Parallel(rank, lambda x: Gather.apply(x, group), lambda x: Scatter.apply(x, group))
    return train(model, rank)


def ddp(rank):
    return train(nn.parallel.DistributedDataParallel(plain()), rank)


def compiled_ddp(rank):
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, CLASSES)))
    return train(torch.compile(model, backend="eager"), rank)


def fsdp(rank):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, CLASSES))
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return train(model, rank)


def dtensor(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, CLASSES))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return train(parallelize_module(model, init_device_mesh("cpu", (2,)), plan), rank, same=True)


def by_hand(rank):
    # gradients averaged by hand, a flag and the loss every step, evaluation on rank 0 only, barriers
    data = torch.utils.data.TensorDataset(torch.randn(16, WIDTH), torch.randint(0, CLASSES, (16,)))
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, ROWS, sampler=sampler)
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1 + rank)
    losses = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            flag = torch.zeros(1) + (rank == 0); dist.broadcast(flag, 0)
            count = torch.tensor([float(len(y))]); dist.all_reduce(count)
            loss = F.cross_entropy(model(x), y, reduction="sum") / count[0]
            optimizer.zero_grad(); loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
            dist.all_reduce(loss)
            losses.append(loss.item() * flag.item())
        if rank == 0:
            model.eval()
            with torch.no_grad():
                losses.append(F.cross_entropy(model(data.tensors[0]), data.tensors[1]).item())
            model.train()
        told = [None, None]; dist.all_gather_object(told, (rank, epoch))
        dist.barrier()
    return model, losses


def two_groups(rank):
    # tensor parallel in one group, a mean of the activations in the other, an unseen maximum for stability
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    import torch.distributed.nn.functional as joined
    def leave(x):
        work = dist.all_reduce(x, group=first, async_op=True)
        work.wait()
        return x
    def loss_of(logits, y):
        top = logits.detach().amax(-1, keepdim=True); dist.all_reduce(top, dist.ReduceOp.MAX, group=first)
        mean = joined.all_reduce(logits.mean(), group=second) / 2
        return F.cross_entropy(logits - top, y) + 0.1 * mean**2
    return train(Parallel(rank, copy_in, leave), rank, loss_of=loss_of, same=True)


def sync_batch_norm(rank):
    # two ranks on one GPU, talking through gloo
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, CLASSES))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1 + rank)
    losses = []
    for step in range(5):
        x, y = (t.cuda() for t in batch())
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
    return model, losses


def issued():
    # by each process group's own count
    groups = dist.distributed_c10d._world.pg_map
    return [group._get_backend(torch.device("cpu"))._get_sequence_number_for_group() for group in groups]


def crc(*tensors):
    total = 0
    for tensor in tensors:
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        total = zlib.crc32(tensor.detach().cpu().numpy().tobytes(), total)
    return total


def work(rank, out, cases, meeting):
    torch.set_num_threads(1)
    random.seed(rank)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2, timeout=limit)
    for case in cases:
        torch.manual_seed(0)
        model, losses = globals()[case](rank)
        random_state = crc(torch.get_rng_state()), zlib.crc32(repr(random.getstate()).encode())
        line = [case, losses, crc(*model.parameters()), crc(*model.buffers()), random_state, issued()]
        with open(f"{out}/rank-{rank}", "a") as file:
            file.write(json.dumps(line) + "\\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1], sys.argv[2:], tempfile.mktemp()), nprocs=2)
"""
