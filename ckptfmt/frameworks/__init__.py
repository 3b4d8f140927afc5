"""How each framework names and nests things: one package each, and none knows another.

`reader` and `writer` turn files of the framework's convention into the tree and back, without the
framework; `live` captures and restores its objects and is the only module that imports it.
"""
