"""The wire types, one module per mailbox. This package is the leaf of the import graph: it imports nothing of Ringpost."""
