"""Errors for people: one line with the remedy."""
import importlib
import json

DEBIAN = {"jinja2", "sentencepiece"}  # packages that Debian has as python3-NAME


class DataError(Exception):
    """Wrong input. The text names the file, the record and the remedy."""


class MissingPackage(DataError):
    """Python packages are missing. The argument has what each is for, by name."""

    def __str__(self):
        purposes, names = self.args[0].values(), list(self.args[0])
        needs = "need the Python packages" if len(names) > 1 else "needs the Python package"
        debian = ", or apt install " + " ".join(f"python3-{name}" for name in names) if DEBIAN.issuperset(names) else ""
        return f"{' and '.join(purposes)} {needs} {' and '.join(names)}: pip install {' '.join(names)}{debian}"


def need(module, purpose):
    """Imports an optional module, or says how to install it."""
    need_all({module: purpose})
    return importlib.import_module(module)


def need_all(purposes):
    """Imports modules; one error names all that are missing. `purposes` has what each is for, by name."""
    missing = {}
    for module, purpose in purposes.items():
        try:
            importlib.import_module(module)
        except ImportError:
            missing[module.partition(".")[0]] = purpose
    if missing:
        raise MissingPackage(missing)


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
