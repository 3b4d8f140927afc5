"""PyTorch's files and objects. No module but `live` and `objects` needs PyTorch.

- `keys`: the names that its pickles use, and what they mean;
- `storages`: storages and the strided bytes of tensors within them;
- `arguments`, `rebuild`: the calls that make tensors, to nodes of a tree;
- `opening`: the file around what each reader does;
- `archives`, `reader`: zip files of `torch.save` to a checkpoint;
- `script`, `export`: what programs of TorchScript and torch.export compute with, to a checkpoint;
- `ranks`: files of all ranks, whose shards are joined, to a checkpoint;
- `ranges`, `stream`, `tarred`, `bare`: older files, and pickles of no file, to a checkpoint;
- `carried`: how PyTorch can hold a tensor, and the bytes of its storage;
- `emit_tensors`, `emit`: a tree to a pickle and its storages;
- `writer`, `stream_writer`: a tree to a file, new or old, that `torch.load(weights_only=True)` reads;
- `dcp`: directories of torch.distributed.checkpoint, read and written;
- `optimizers`: the state of an optimizer by the names of its parameters, and back;
- `wrappers`: what DataParallel, FSDP and compile leave in names;
- `state`, `objects`: a tree to plain objects and tensors in memory;
- `restoring`, `live`: modules, optimizers and tensors in memory, to a tree and back.
"""
