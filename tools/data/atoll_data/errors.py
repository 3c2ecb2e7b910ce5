"""Errors for people: one line with the remedy."""
import importlib
import json


class DataError(Exception):
    """Wrong input. The text names the file, the record and the remedy."""


def need(module, purpose, package=None, other=""):
    """Imports an optional module, or says how to install it. `other` is another remedy."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = package or module
        raise DataError(f"{purpose} needs the Python package {package}: pip install {package}{other}") from None


def parse_json(text, place, whole_file=False):
    """The value of a JSON text, which `place` names; errors in a whole file name their line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if whole_file:
            place = f"{place}: line {1 + text.rstrip().count(chr(10), 0, error.pos)}"
        raise DataError(f"{place}: not JSON: {_problem(text, error)}") from None
    except RecursionError:
        raise DataError(f"{place}: not JSON: nested too deeply") from None
    except ValueError:  # Python limits the digits of integers
        raise DataError(f"{place}: not JSON: a number has too many digits") from None


def _problem(text, error):
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
        return "it ends in the middle; it was cut off, or a quote or bracket is missing"
    if error.msg == "Extra data":
        return f"more text follows behind its end, in column {error.colno}"
    if error.msg.startswith("Invalid control"):
        return f"a string is not closed before the line end or control character in column {error.colno}"
    return f"unexpected {text[error.pos]!r} in column {error.colno}"
