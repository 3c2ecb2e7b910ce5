"""The command line of atoll-data."""
import argparse
import array
import collections
import contextlib
import ctypes
import difflib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import time

from . import documents, encoding, pages, records, token_file
from .errors import DataError, MissingPackage, need_all, parse_json

CHUNK = 128  # records that a process converts at once

DESCRIPTION = """\
Converts text, chats and instructions into a token file for atoll-train, once, so that training needs no
Python and no tokenizer."""

EXAMPLES = """\
formats (found by the keys of the first record):
  alpaca      instruction, input (may be absent), output
  chat        messages of role and content, rendered with the model's chat template; also conversations
              of from and value. Only answers of the assistant are trained, with their tool calls
  completion  prompt and completion, both strings or both lists of messages
  text        text, or the key named by --field; .txt and .md files, in which blank lines part documents

examples:
  atoll-data alpaca.json --tokenizer tokenizer.model -o alpaca.tok
  atoll-data chat.jsonl --tokenizer ~/models/Qwen3-0.6B --show 3
  atoll-data web-*.parquet --tokenizer HuggingFaceTB/SmolLM3-3B -o web.tok --processes 16
  atoll-data --check web.tok
  atoll-train --data web.tok:0.9,alpaca.tok:0.1

exit status: 0, or 1 after a failure, 2 for wrong flags, 128 + N after signal N"""


class Once(argparse.Action):
    """Stores the value of a flag, which must not be given twice."""
    given = False

    def __call__(self, parser, namespace, values, flag=None):
        if flag and self.given:
            raise argparse.ArgumentError(self, "given twice")
        self.given = True
        setattr(namespace, self.dest, values if self.nargs != 0 else True)


# Each process holds a tokenizer: thousands of them exhaust the memory of a host.
MOST_PROCESSES = 256


def at_least(least, most=None):
    """A type of whole numbers."""
    def number(text):
        try:
            if least <= int(text) and (most is None or int(text) <= most):
                return int(text)
        except ValueError:
            pass
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise argparse.ArgumentTypeError(f"{text} is not a whole number {limits}")
    return number


# Flags of other programs (transformers' and TRL's scripts, axolotl, datasets) and their counterparts.
FOREIGN = {"--template": "chat-template chat-template-path", "--tokenizer": "model model-name-or-path tokenizer-name "
           "tokenizer-name-or-path tokenizer-model", "--samples": "max-samples max-train-samples limit num-samples",
           "--processes": "num-proc workers num-workers preprocessing-num-workers dataset-num-proc jobs",
           "--field": "text-column text-key text-field dataset-text-field json-key json-keys", "-o": "output-path output-prefix "
           "output-dir save-to", "--format": "type dataset-type", "the file itself": "data dataset dataset-path dataset-name "
           "train-file input i data-path", "--train-on all": "train-on-inputs", "--train-on output (the default)":
           "train-on-responses-only assistant-only-loss completion-only-loss", "--eos": "append-eod",
           "--seq of atoll-train": "max-length max-seq-length max-seq-len seq-length sequence-len cutoff-len block-size",
           "--eval-split of atoll-train": "split val-split", "--seed of atoll-train": "shuffle"}


def hint(word, flags):
    """An unknown word of the command line, with what was probably meant."""
    name = word.split("=")[0].lstrip("-").lower().replace("_", "-")
    meant = [ours for ours, theirs in FOREIGN.items() if name in theirs.split()]
    meant += difflib.get_close_matches("--" + name, flags, 1, 0.8)
    return f"{word} (use {meant[0]})" if meant and word.startswith("-") else word


def parse(arguments):
    parser = argparse.ArgumentParser("atoll-data", description=DESCRIPTION, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.register("action", None, Once)
    parser.add_argument("input", nargs="*", help="JSON Lines, JSON, Parquet, Arrow or text files")
    parser.add_argument("-o", "--output", metavar="FILE",
                        help="the token file to write; it replaces an older token file, but nothing else")
    parser.add_argument("--tokenizer", help="bytes, a tokenizer.json, a SentencePiece model, the folder "
                        "of a model, or ORG/NAME[@REVISION] in the Hub's local cache")
    parser.add_argument("--format", choices=("auto", *records.FORMATS), default="auto")
    parser.add_argument("--ending", help="read all files as if their names had this ending, for example jsonl")
    parser.add_argument("--field", help="the key of the text in records of text; default: text")
    parser.add_argument("--template", metavar="FILE|NAME", help="chat template: a file, the name of one of the "
                        "tokenizer's, or one that is built in (chatml, mistral); default: tool_use for records with tools "
                        "if it exists, else default")
    parser.add_argument("--template-args", metavar="JSON", default="{}",
                        help="variables of the chat template, for example '{\"enable_thinking\": false}'")
    parser.add_argument("--bos", metavar="TOKEN", help="begins a text; default: the tokenizer's")
    parser.add_argument("--eos", metavar="TOKEN", help="ends a text; default: the tokenizer's")
    parser.add_argument("--train-on", choices=("output", "all"), default="output",
                        help="all: prompts are trained as well")
    parser.add_argument("--samples", type=at_least(1), metavar="N", help="convert the first N records")
    parser.add_argument("--processes", type=at_least(1, MOST_PROCESSES), default=min(os.cpu_count() or 1, MOST_PROCESSES), metavar="N",
                        help="processes that convert; default: one for each CPU")
    parser.add_argument("--skip-bad", nargs=0, default=False,
                        help="leave out records that cannot be read or converted, and count them")
    parser.add_argument("--show", type=at_least(0), default=0, metavar="N",
                        help="print the first N documents with ids, text and what is trained; without "
                        "-o, end then")
    parser.add_argument("--check", metavar="FILE", help="read a whole token file and print its figures")
    parser.add_argument("--quiet", nargs=0, default=False, help="do not tell how far the conversion is")
    parser.add_argument("--version", action="version", version=f"atoll-data {pages.version()}")
    parser.add_argument("--generate", metavar="FOLDER", help=argparse.SUPPRESS)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        words = [word for word in unknown if word.startswith("-")] or unknown  # without their values
        parser.error(f"unknown: {', '.join(hint(word, parser._option_string_actions) for word in words)}")
    if options.generate:
        pages.generate(parser, options.generate)
        parser.exit()
    if options.check:
        return options
    if not options.input:
        parser.error("name the input")
    if not options.tokenizer:
        parser.error("name the tokenizer with --tokenizer, for example bytes or the folder of a model")
    if not options.output and not options.show:
        parser.error("name the token file to write with -o, or look at documents with --show 3")
    if options.output and not os.path.basename(options.output):
        parser.error(f"-o {options.output}: not the name of a file")
    try:
        for flag, value in (("--field", options.field), ("--template", options.template)):
            if value == "":
                raise DataError(f"{flag}: the value is empty")
        options.variables = parse_json(options.template_args, "--template-args")
        if not isinstance(options.variables, dict):
            raise DataError("--template-args: not an object in braces")
    except DataError as error:
        parser.error(str(error))
    return options


def read_all(options):
    """All records of all files, and their format."""
    given_field = options.field
    options.field = given_field or "text"
    found = itertools.chain.from_iterable(records.read(path, options.field, options.ending) for path in options.input)
    first, problems = [], []  # the records up to the one that tells the format
    for place, record in found:
        first.append((place, record))
        try:
            if isinstance(record, DataError):
                raise record
            if options.format == "auto":
                options.format = records.format_of(place, record, options.field)
            break
        except DataError as error:
            problems.append(str(error))
            if not options.skip_bad or len(problems) == 1000:
                raise
    check_use(options, given_field)
    if len(problems) == len(first):
        raise DataError(f"{', '.join(options.input)}: no record"
                        + (f" could be read: {problems[0]}" if problems else ""))
    return itertools.islice(itertools.chain(first, found), options.samples)


def read_with_packages(options):
    """read_all(), or one error that names all missing Python packages."""
    found, wanted = None, {}
    try:
        found = read_all(options)
    except MissingPackage as error:
        wanted = error.args[0]
    wanted = wanted | encoding.package_of(options.tokenizer)
    if options.format == "chat" or options.template is not None:
        wanted["jinja2"] = "a chat template"
    need_all(wanted)
    return found


def check_use(options, field):
    """Refuses flags that the format of the records does not use."""
    if options.format == "auto":
        return  # no record tells the format
    if field is not None and options.format != "text":
        raise DataError(f"--field {field}: only records of text use it, and these are of format "
                        f"{options.format}: add --format text, or leave --field out")
    if options.template is not None and options.format not in ("chat", "completion"):
        raise DataError(f"--template {options.template}: only messages use it, and these records are of format "
                        f"{options.format}: add --format chat, or leave --template out")


def nothing_converted(options):
    return DataError(f"{', '.join(options.input)}: no record could be converted")


def chunks_of(found, read):
    """Yields lists of records, and appends to `read` how many bytes were read with each."""
    while chunk := list(itertools.islice(found, CHUNK)):
        read.append(records.extent.bytes())
        yield chunk


class Chunk:
    """Documents of some records, ready to be written."""

    def __init__(self, width):
        self.ids = array.array(token_file.type_code(width))
        self.lengths, self.mask, self.bad = [], bytearray(), []
        self.untrained_end = ""


PR_SET_PDEATHSIG = 1  # the operation of Linux's prctl that sets a signal for the end of the parent
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
main_process = os.getpid()

worker = None  # the converter of this process


def start_worker(options):
    global worker
    # Otherwise a worker would wait for ever after the main process was killed.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != main_process:  # the main process has ended already
            os._exit(1)
    for name in ENDING:
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the main process ends the others
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    worker = documents.Converter(options)


def convert(options, width, converter, chunk):
    done = Chunk(width)
    for place, record in chunk:
        try:
            ids, mask = converter.convert(place, record)
        except DataError as error:
            if not options.skip_bad:
                raise
            done.bad.append(str(error))
            continue
        if ids:
            done.ids.extend(ids)
            done.lengths.append(len(ids))
            done.mask += mask
    done.untrained_end = converter.untrained_end or ""
    return done


def warn_of_end(reason):
    """An answer that ends without a special token teaches no model to stop."""
    print(f"atoll-data: warning: no special token that is trained ends the answers ({reason}), so the model does not "
          "learn to stop: use a template that ends them with one", file=sys.stderr)


def convert_in_worker(task):
    try:
        return convert(*task[:2], worker, task[2])
    except DataError as error:
        return error


def converted(options, width, converter, found, read):
    """Yields chunks in the order of the records."""
    if options.processes <= 1:
        for chunk in chunks_of(found, read):
            yield convert(options, width, converter, chunk)
        return
    # Python forgets a signal that reaches a worker before it has started. The worker would not end, and this process
    # would wait for it for ever.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        pool = multiprocessing.Pool(options.processes, start_worker, (options,))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    with pool:
        tasks = ((options, width, chunk) for chunk in chunks_of(found, read))
        for done in pool.imap(convert_in_worker, tasks):
            if isinstance(done, DataError):
                raise done
            yield done


class Progress:
    """Tells on standard error how far the conversion is: each second, or each 30 s in a log. A timer calls it, since
    the next records may take longer."""
    PERIODS = {True: 1, False: 30}  # seconds, on a terminal and in a log

    def __init__(self, writer, options):
        self.writer, self.quiet, self.bad, self.read = writer, options.quiet, 0, 0
        self.start, self.terminal = time.monotonic(), sys.stderr.isatty()
        self.size = sum(os.path.getsize(path) for path in options.input)

    def __enter__(self):
        if not self.quiet:
            period = self.PERIODS[self.terminal]
            signal.signal(signal.SIGALRM, lambda *_: self.show(f"{100 * self.read / (self.size or 1):.0f} % of "
                                                               f"{self.size / 1e6:,.1f} MB", end=""))
            signal.setitimer(signal.ITIMER_REAL, period, period)
        return self

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)

    def show(self, what, end="\n"):
        seconds = max(time.monotonic() - self.start, 1e-9)
        line = (f"{what}: {self.writer.documents:,} documents, {self.writer.tokens:,} tokens, "
                f"{self.writer.documents / seconds:,.0f} rows/s, {self.writer.tokens / seconds:,.0f} tokens/s")
        line += f", {self.bad:,} skipped" if self.bad else ""
        with contextlib.suppress(OSError):  # sys.stderr must not be used in the handler of a signal
            os.write(2, (f"\r\033[K{line}{end}" if self.terminal else line + "\n").encode())

    def finish(self):
        if not self.quiet:
            self.show(self.writer.path)


def show(tokenizer, place, ids, mask):
    """Prints a document: ids, and text in runs that are trained or not."""
    trained = mask.count(b"1")
    print(f"{place}: {len(ids)} tokens, {trained} trained")
    print("  ids    ", " ".join(map(str, ids)))
    print("  trained", " ".join(map(str, (id if bit == 49 else "." for id, bit in zip(ids, mask)))))
    pieces, at = tokenizer.pieces(), 0
    for name, id in tokenizer.special.items():  # some have no text
        pieces[id] = name.encode()
    for bit, run in itertools.groupby(mask):
        count = len(list(run))
        text = b"".join(pieces[id] for id in ids[at:at + count]).decode(errors="replace")
        print("  trained" if bit == 49 else "  prompt ", json.dumps(text, ensure_ascii=False))
        at += count


def show_first(options, converter, found):
    """Shows documents and returns the records that were read for them."""
    read, shown = [], 0
    while shown < options.show and (next_one := next(found, None)):
        read.append(next_one)
        try:
            show(converter.tokenizer, next_one[0], *converter.convert(*next_one))
            shown += 1
        except DataError as error:
            if not options.skip_bad:
                raise
            if not options.output and len(read) - shown <= 10:  # with -o, the conversion prints the errors
                print(f"atoll-data: skipped: {error}", file=sys.stderr)
    if shown == 0 and not options.output:
        raise nothing_converted(options)
    return read


def write(options):
    if options.output:
        token_file.check_output(options.output, options.input)
    found = read_with_packages(options)
    converter = documents.Converter(options)
    if options.show > 0:
        shown = show_first(options, converter, found)
        if not options.output:
            if converter.untrained_end and options.train_on != "all":
                warn_of_end(converter.untrained_end)
            return
        found = itertools.chain(shown, found)
    masked = options.train_on == "output" and options.format != "text"
    joined = options.format == "text"
    read = collections.deque()
    with (token_file.Writer(options.output, converter.tokenizer, joined, masked) as writer,
          Progress(writer, options) as progress):
        warned = options.train_on == "all"
        for done in converted(options, writer.width, converter, found, read):
            if done.untrained_end and not warned:
                warn_of_end(done.untrained_end)
                warned = True
            for message in done.bad[:max(0, 10 - progress.bad)]:
                print(f"atoll-data: skipped: {message}", file=sys.stderr)
            writer.add(token_file.little(done.ids), done.lengths, done.mask)
            progress.bad, progress.read = progress.bad + len(done.bad), read.popleft()
        if writer.tokens == 0:
            raise nothing_converted(options)
        writer.finish()
        progress.finish()


def end(number, _):
    """Ends the process at once and leaves no unfinished file.

    An exception would not do: multiprocessing.Pool hangs when one is raised while it starts or ends."""
    if os.getpid() == main_process:
        for child in multiprocessing.active_children():
            child.kill()
        if token_file.remove_drafts():
            os.write(2, b"atoll-data: interrupted; no file was written\n")
    os._exit(128 + number)


def main(arguments=None):
    options = parse(arguments)
    for name in ENDING:
        signal.signal(name, end)
    try:
        if options.check:
            for name, value in token_file.check(options.check).items():
                print(f"{name:12} {value}")
        else:
            write(options)
        return 0
    except DataError as error:
        print(f"atoll-data: {error}", file=sys.stderr)
    except OSError as error:
        place = error.filename or options.output or "standard output"
        print(f"atoll-data: {place}: {error.strerror}", file=sys.stderr)
    return 1
