"""From a target (a file, a module, an object) to subjects: parsing, importing, looking."""
