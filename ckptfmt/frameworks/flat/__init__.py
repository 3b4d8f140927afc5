"""Files of named arrays of no particular framework: NPZ, safetensors, HDF5.

Readers and writers; what they have in common with every container of named arrays is in
`ckptfmt.containers.noted`.
"""
