"""PyTorch's files and objects. No module but `live` needs PyTorch.

- `keys`: the names that its pickles use, and what they mean;
- `storages`: storages and the strided bytes of tensors within them;
- `rebuild`: the calls that make tensors, to nodes of a tree;
- `reader`: zip files of `torch.save` to a checkpoint;
- `emit`, `writer`: a tree to a file that `torch.load(weights_only=True)` reads;
- `live`: modules, optimizers and tensors in memory.
"""
