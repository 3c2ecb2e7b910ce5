"""The version, the manual page and the completions, like those of the other tools."""
import re
from pathlib import Path


def version():
    """The version of atoll: from the file that the build writes, or from the source."""
    here = Path(__file__).resolve().parent
    try:
        return (here / "version").read_text().strip()
    except OSError:
        header = here.parents[2] / "include" / "atoll" / "version.hpp"
        return ".".join(re.findall(r"#define ATOLL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)",
                                   header.read_text()))


def _shown(parser):
    return [action for action in parser._actions if action.help != "==SUPPRESS=="]


def _roff(text):
    return text.replace("\\", "\\e").replace("-", "\\-").replace("\n.", "\n\\&.")


def manual_page(parser):
    name = _roff(parser.prog)
    inputs = next(action.dest for action in parser._actions if not action.option_strings)
    page = [f'.TH {parser.prog.upper()} 1 "" "atoll {version()}" "User Commands"', ".SH NAME",
            f"{name} \\- {_roff(' '.join(parser.description.split()))}", ".SH SYNOPSIS", f".B {name}",
            f"[\\fI{inputs}\\fR ...] [\\fIoptions\\fR]", ".SH OPTIONS"]
    for action in _shown(parser):
        if not action.option_strings:
            continue
        flags = ", ".join(f"\\fB{_roff(flag)}\\fR" for flag in action.option_strings)
        value = action.metavar or "|".join(action.choices or ()) or action.dest.upper()
        page += [".TP", flags if action.nargs == 0 else f"{flags} \\fI{_roff(value)}\\fR",
                 _roff(action.help or "")]
    page += [".SH NOTES", ".nf", _roff(parser.epilog), ".fi"]
    return "\n".join(page) + "\n"


def function_of(parser):
    return "_" + parser.prog.replace("-", "_")


def completion(parser):
    function = function_of(parser)
    flags = [flag for action in _shown(parser) for flag in action.option_strings]
    cases = [f"    {'|'.join(action.option_strings)}) words='{' '.join(action.choices)}' ;;"
             for action in _shown(parser) if action.choices]
    return "\n".join([
        f"# Completion of {parser.prog}.",
        f"{function}() {{",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=",
        "  # bash splits --option=value into three words.",
        "  [[ $word != = ]] || word=",
        "  [[ $before != = ]] || before=${COMP_WORDS[COMP_CWORD-2]}",
        "  case $before in", *cases,
        f"    *) [[ $word != -* ]] || words='{' '.join(flags)}' ;;",
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        f"complete -o default -F {function} {parser.prog}"]) + "\n"


def zsh_completion(parser):
    """The function of zsh's completion system that runs the script for bash."""
    return (f"#compdef {parser.prog}\nautoload -Uz bashcompinit && bashcompinit\n{completion(parser)}"
            f"_bash_complete -o default -F {function_of(parser)}\n")


def generate(parser, folder):
    """Writes all files below share/."""
    for name, text in ((f"man/man1/{parser.prog}.1", manual_page(parser)),
                       (f"bash-completion/completions/{parser.prog}", completion(parser)),
                       (f"zsh/site-functions/_{parser.prog}", zsh_completion(parser))):
        file = Path(folder) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
