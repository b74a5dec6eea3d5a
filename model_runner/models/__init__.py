"""Model definitions, and the registry that finds them by architecture."""
