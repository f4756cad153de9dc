"""Import of source text from a file, so that `inspect` finds its source."""

import importlib.util
import sys


def import_source(text, folder, name):
    """Write `text` to `folder/name.py` and import it from there."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
