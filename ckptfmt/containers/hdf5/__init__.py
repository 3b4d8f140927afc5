"""HDF5 files: bytes to groups, datasets and attributes, and back. Needs h5py (the extra ``hdf5``).

- `superblock`: where a file begins and ends, without the library;
- `library`: the HDF5 library over a reader of ours, its failures as errors of ours;
- `elements`, `attributes`: types and small values in our words;
- `layout`, `sources`, `filters`: elements, read by us from the places that the library tells;
- `budget`: what a file may claim;
- `walk`, `reader`: `Hdf5File(path_or_reader)`, with ``root``, ``groups``, ``datasets`` and ``findings``;
- `outline`: a look at names only, for telling what kind of file it is;
- `writer`: `Hdf5Writer(file)`, with ``group``, ``add``, ``add_text`` and ``add_empty``.

Links and datasets that lead out of a file are refused by name. Hard links are ties.
"""
