"""What torch says of models, gradients and data."""

from __future__ import annotations

from .known import MORE_SHARED_MEMORY, Known

MODELS = (
    Known(
        "ddp unused parameters",
        r"expected to have finished reduction in the prior iteration",
        "Some parameters of the model took no part in this step's loss on this rank, so that DDP waits for gradients "
        "that never come.",
        "Use every parameter in the loss, freeze what you do not train (requires_grad_(False)), or pass "
        "find_unused_parameters=True to DistributedDataParallel, which an Accelerator takes as "
        "kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)].",
    ),
    Known(
        "ddp ready twice",
        r"expected to mark a variable ready only once|marked as ready twice",
        "A parameter got its gradient twice in one backward pass: it is shared by several forward passes, or "
        "checkpointed several times over.",
        "Use checkpoint(..., use_reentrant=False), call the model once per backward, or pass "
        "DistributedDataParallelKwargs(static_graph=True) when the graph is the same in each step.",
    ),
    Known(
        "ddp models differ",
        r"appears not to match (?:sizes|strides) of the same param|ddp expects same model across all ranks",
        "The model is not the same on all ranks: another number of parameters, or other shapes.",
        "Build it from the same configuration on each rank: sizes that come from the data must be agreed on first "
        "(broadcast_object_list), and adding or freezing layers must not depend on the rank.",
    ),
    Known(
        "modified in place",
        r"needed for gradient computation has been modified by an inplace operation",
        "A tensor that backward still needs was changed in place; with DDP also by its own broadcast of buffers "
        "(BatchNorm statistics) when the model is called twice before backward.",
        "Call the model once per backward or pass DistributedDataParallelKwargs(broadcast_buffers=False), replace += "
        "and x[...] = by new tensors, and find the line with torch.autograd.set_detect_anomaly(True).",
    ),
    Known(
        "graph freed",
        r"trying to backward through the graph a second time",
        "backward was called twice on one graph.",
        "Call accelerator.backward once per forward, add up losses before it, and detach what is carried from one "
        "step to the next (hidden states, a running loss).",
    ),
)


DATA = (
    Known(
        "shm bus error",
        r"insufficient shared memory|is killed by signal: bus error"
        r"|unable to (?:allocate shared memory|(?:resize file|mmap \d+ bytes from file) </torch_)"
        r"|torch_shm_manager.*no space left",
        "There was no room in /dev/shm, through which batches come from DataLoader workers to the rank; in containers "
        "it is 64 MB unless told otherwise.",
        f"{MORE_SHARED_MEMORY}, or use fewer workers, or num_workers=0.",
    ),
    Known(
        "worker killed",
        r"dataloader worker \(pid (?:\d+)\) is killed by signal: killed",
        "A DataLoader worker was killed: most often by the system, since the main memory was full; every worker of "
        "every rank holds what the dataset holds.",
        "Use fewer workers or ranks, a smaller prefetch_factor, or a dataset that reads its samples when they are "
        "asked for.",
    ),
    Known(
        "worker exited",
        r"dataloader worker \(pid\(?s?\)? ?[\d, ]+\) (?:exited unexpectedly|is killed by signal)",
        "A DataLoader worker ended without a report: it crashed in native code, was killed, or could not load the "
        "dataset, as one typed in a notebook under 'spawn' or 'forkserver'.",
        "Read its own last words in this rank's log, or set num_workers=0 to see an error of the dataset itself; a "
        "loader that an Accelerator has prepared sends what was typed in a notebook.",
    ),
    Known(
        "too many open files",
        r"too many open files|received \d+ items of ancdata",
        "This process has as many files open as it may: each tensor that comes from a DataLoader worker is one.",
        "Raise the limit in the shell that starts Jupyter (`ulimit -n 65536`), or call "
        "torch.multiprocessing.set_sharing_strategy('file_system') first in the function, or keep fewer batches.",
    ),
    Known(
        "bootstrapping",
        r"finished its bootstrapping phase|freeze_support\(\)",
        "A process was started while a module was still being imported: code at a module's top level starts workers or "
        "ranks each time another process imports it.",
        "Move that code into a function, or under `if __name__ == '__main__':`.",
    ),
    Known(
        "cannot be pickled for workers",
        r"can't pickle local object|can't get local object|attribute lookup .* on __main__ failed"
        r"|can't get attribute '.*' on <module '__main__'",
        "pickle stores functions and classes by name, and this one has none that can be found again: a lambda, an "
        "inner function or class, or one that was typed in a notebook.",
        "Where DataLoader workers need it, prepare the loader with an Accelerator, which sends it by value; where it "
        "is saved, save a state_dict instead of the object; or define it at the top level of a module.",
    ),
)
