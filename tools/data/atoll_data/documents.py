"""Turns records into documents: ids, and which of them are trained."""
from . import chat, conversation, encoding
from .errors import DataError


class Converter:
    """Converts records of one format. Every process has its own."""

    def __init__(self, options):
        self.options = options
        self.tokenizer, settings = encoding.load(options.tokenizer,
                                                 {"bos": options.bos, "eos": options.eos})
        self.ends = list(self.tokenizer.special)
        self.templates = None
        self.settings = settings
        self.untrained_end = None  # why the first answer does not teach a model to stop; "" if it does
        if options.format != "chat" and self.tokenizer.eos is None:
            raise DataError(f"--tokenizer {options.tokenizer}: names no token that ends a text: add --eos "
                            "TOKEN")

    def convert(self, place, record):
        """Returns (ids, mask) of a record; mask has b"1" for each token that is trained."""
        if isinstance(record, DataError):
            raise record
        make = {"alpaca": self._alpaca, "completion": self._completion, "text": self._text,
                "chat": self._chat}[self.options.format]
        ids, mask = make(place, record)
        if self.options.train_on == "all":
            return ids, b"1" * len(ids)
        if ids and b"1" not in mask:
            raise DataError(f"{place}: nothing of it would be trained; --train-on all trains prompts too")
        return ids, mask

    def text_of(self, place, record, key, default=None):
        value = record.get(key, default)
        if not isinstance(value, str):
            raise DataError(f"{place}: `{key}` is not a string" if key in record else
                            f"{place}: no `{key}`")
        return whole_characters(place, value)

    def _bos(self):
        return [] if self.tokenizer.bos is None else [self.tokenizer.bos]

    def _pair(self, prompt, output):
        """Prompt and output are encoded together, since some tokenizers would put a space between. The
        output begins where the ids first differ from those of the prompt alone."""
        bos = self._bos()
        alone, ids = self.tokenizer.ids(prompt), self.tokenizer.ids(prompt + output)
        masked = len(bos) + encoding.common_length(alone, ids)
        ids = bos + ids + [self.tokenizer.eos]
        return ids, b"0" * masked + b"1" * (len(ids) - masked)

    def _alpaca(self, place, record):
        record = {key: value for key, value in record.items() if value is not None}
        given = self.text_of(place, record, "input", "")
        prompt = f"### Instruction:\n{self.text_of(place, record, 'instruction')}\n\n"
        if given:
            prompt += f"### Input:\n{given}\n\n"
        return self._pair(prompt + "### Response:\n", self.text_of(place, record, "output"))

    def _completion(self, place, record):
        prompt, completion = record.get("prompt"), record.get("completion")
        if isinstance(prompt, list) and isinstance(completion, list):
            return self._chat(place, record | {"messages": prompt + completion}, len(prompt))
        return self._pair(self.text_of(place, record, "prompt"),
                          self.text_of(place, record, "completion"))

    def _text(self, place, record):
        ids = self._bos() + self.tokenizer.ids(self.text_of(place, record, self.options.field))
        ids.append(self.tokenizer.eos)
        return ids, b"1" * len(ids)

    def _chat(self, place, record, first=0):
        options = self.options
        if self.templates is None:
            folder = None if options.tokenizer == "bytes" else encoding.find_files(options.tokenizer)[1]
            self.templates = chat.Templates(folder, self.settings, options.template, options.variables, self.tokenizer)
        messages, tools = conversation.messages_of(place, record), conversation.tools_of(place, record)
        template = self.templates.choose(place, tools)
        try:
            if options.train_on == "all":
                text, spans = template.render(messages, tools), []
            else:
                text, spans = template.render_marked(messages, self.ends, tools, first)
        except chat.TemplateRefuses as refusal:
            raise DataError(f"{place}: the chat template refuses it: {refusal}") from None
        text = whole_characters(place, text)
        if not spans and options.train_on == "output":
            raise DataError(f"{place}: no answer of the assistant, so nothing would be trained; "
                            "--train-on all trains prompts too")
        if spans and self.untrained_end is None:
            self.untrained_end = chat.untrained_end(text, spans, self.ends)
        return self.tokenizer.encode(text, spans)


def whole_characters(place, text):
    """The text. JSON can escape half of a surrogate pair, which has no bytes in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: \\u{ord(text[error.start]):04x} is half of a surrogate pair and no "
                        "character") from None
    return text
