"""The parts of the reference reader, lowest first: document, nodes, table, shards."""
