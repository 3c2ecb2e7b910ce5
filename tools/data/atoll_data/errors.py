"""Errors for people: one line with the remedy."""
import importlib


class DataError(Exception):
    """Wrong input. The text names the file, the record and the remedy."""


def need(module, purpose, package=None):
    """Imports an optional module, or says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = package or module
        raise DataError(f"{purpose} needs the Python package {package}: pip install {package}") from None
