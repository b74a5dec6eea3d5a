"""Classes that options name by their import path."""

import importlib
from typing import Any


def class_at(path: str, *, option: str, noun: str, contract: type) -> type[Any]:
    """The class at an import path, "package.module.Class", with every public method of `contract`.

    Raises ValueError, naming the option and the path, if there is none. `noun` says in it what the class should be.
    """
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(f"{option} must be an import path like 'package.module.Class', got {path!r}")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        where = "it is looked for in installed packages and in PYTHONPATH"
        raise ValueError(f"{option} {path!r} cannot be imported: {error}; {where}") from error
    except (Exception, SystemExit) as error:  # what the module does is the user's own
        raise ValueError(f"{option} {path!r} cannot be imported, its module fails with {error!r}") from error
    missing = [name for name in vars(contract) if not name.startswith("_") and not _has(found, name)]
    if not isinstance(found, type) or missing:
        raise ValueError(
            f"{option} {path!r} is no {noun}: a class with the methods of {contract.__module__}.{contract.__qualname__}"
            + (f"; it lacks {', '.join(missing)}" if missing else "")
        )
    return found


def _has(found: object, name: str) -> bool:
    """Whether there is a method of this name that does something."""
    return not getattr(getattr(found, name, None), "__isabstractmethod__", not hasattr(found, name))
