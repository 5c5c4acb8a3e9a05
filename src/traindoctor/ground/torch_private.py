"""The private parts of torch that we use, each with what it is for. Nothing else in the project reaches into torch,
but for the kernels, which launch by hand; a test reads every file for that.

Where a release of torch has dropped one, importing this says so in one sentence.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from traindoctor.errors import TraindoctorError

try:
    from torch.utils._device import DeviceContext as DeviceContext
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

    _C: Any = torch._C
    _overrides: Any = torch.overrides
    _dispatch: Any = torch.utils._python_dispatch
    _pytree: Any = torch.utils._pytree

    # The stacks of modes, the script's and ours.
    pop_function_mode, push_function_mode = _overrides._pop_mode, _overrides._push_mode
    pop_dispatch_mode, push_dispatch_mode = _dispatch._pop_mode, _dispatch._push_mode
    dispatch_mode_stack = _dispatch._get_current_dispatch_mode_stack
    num_function_modes = _C._len_torch_function_stack
    function_mode_stack = _overrides._get_current_function_mode_stack
    num_dispatch_modes = _C._len_torch_dispatch_stack

    # Our own calls of torch: the script's modes and subclasses hear nothing of them.
    DisableTorchFunction = _C.DisableTorchFunction
    # Of subclasses that do not hear them.
    DISABLED = _C._disabled_torch_function_impl

    # Where we must not look: inside a trace, a functorch transform, a profile of the script's own, a CUDA graph.
    is_tracing = _C._is_tracing
    # Asking functorch for its level would make its state, and every backward pass would copy that from then on.
    is_transforming = _C._are_functorch_transforms_active
    is_profiling = _C._autograd._profiler_enabled
    # A CPU build has no graphs.
    is_capturing = getattr(_C, "_cuda_isCurrentStreamCapturing", lambda: False)

    # State of the run that is set aside and given back, each for less than a microsecond.
    set_grad_enabled = _C._set_grad_enabled
    is_any_autocast_enabled = _C._is_any_autocast_enabled
    get_deterministic, set_deterministic = (
        _C._get_deterministic_algorithms,
        _C._set_deterministic_algorithms,
    )
    set_anomaly_enabled = _C.set_anomaly_enabled
    get_warn_always, set_warn_always = _C._get_warnAlways, _C._set_warnAlways
    eval_frame = _C._dynamo.eval_frame
    set_compiler = eval_frame.set_eval_frame

    # Hooks on saved tensors that the script has set.
    saved_hooks_allowed = _C._autograd._saved_tensors_hooks_is_enabled
    top_saved_hooks = _C._autograd._top_saved_tensors_default_hooks
    pop_saved_hooks = _C._autograd._pop_saved_tensors_default_hooks
    push_saved_hooks = _C._autograd._push_saved_tensors_default_hooks

    # The names of registered operators.
    OpOverload, OpOverloadPacket = torch._ops.OpOverload, torch._ops.OpOverloadPacket

    # Containers of tensors, taken apart and put together again.
    tree_flatten, tree_unflatten = _pytree.tree_flatten, _pytree.tree_unflatten
    tree_map_only = _pytree.tree_map_only

    # Whether a backward pass is under way: what a checkpoint computes again in it is no new forward pass.
    current_backward = _C._current_graph_task_id

    # Norms of many tensors in one launch.
    foreach_norm = torch._foreach_norm

    # Layers that differ between training and evaluation, whatever their dimensions.
    Dropout = torch.nn.modules.dropout._DropoutNd
    BatchNorm = torch.nn.modules.batchnorm._NormBase

    is_in_bad_fork = torch.cuda._is_in_bad_fork
    """A forked child of a process that uses CUDA: it must not call it."""
    _ = torch.cuda._initialized
except (AttributeError, ImportError) as missing:
    raise TraindoctorError(
        f"this torch ({torch.__version__}) lacks something that traindoctor needs ({missing}); "
        "install a newer traindoctor or torch 2.13"
    ) from missing


def stand_in(original: Any, replacement: Any) -> None:
    """What the compiler has noted of a function, for the one that takes its place. Notes that it makes later are right.

    Without it a compiler that was imported before the replacement would not trace through it.
    """
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module = sys.modules.get(name)
        if getattr(module, "unpatched_nn_module_call", None) is original:
            module.unpatched_nn_module_call = replacement  # type: ignore[union-attr]
    rules = getattr(sys.modules.get("torch._dynamo.trace_rules"), "get_torch_obj_rule_map", None)
    made = rules is not None and hasattr(rules, "cache_info") and rules.cache_info().currsize
    if rules is not None and made and original in rules():
        rules()[replacement] = rules()[original]


def uses_cuda() -> bool:
    """As `torch.cuda.is_initialized`, without a question about forks: asked at every entry."""
    return torch.cuda._initialized


def fetcher_of(iterator: Any) -> Any:
    """What makes the batches of a DataLoader in this process: it calls the script's `collate_fn`."""
    fetcher = vars(iterator).get("_dataset_fetcher")
    return fetcher if hasattr(fetcher, "collate_fn") else None


def rows_of(iterator: Any) -> int | None:
    """Examples that a DataLoader's iterator joins to a batch."""
    joins, sampler = (vars(iterator).get(name) for name in ("_auto_collation", "_index_sampler"))
    size = getattr(sampler, "__dict__", {}).get("batch_size")  # its class may be the script's
    return size if joins and isinstance(size, int) else None
