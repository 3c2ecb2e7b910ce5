"""The messages and tools of a record, checked and named as chat templates expect them."""
import json

from .errors import DataError, parse_json

OPEN, CLOSE = "\ufdd0", "\ufdd1"  # marks that no text has: Unicode reserves them for use inside programs
REASONING = ("reasoning_content", "thinking", "reasoning")
CALLS = ("function_call", "tool_call")  # senders in ShareGPT whose messages are a call, or a list of calls
SHAREGPT = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "system": "system", "user": "user",
            "assistant": "assistant", "tool": "tool", "observation": "tool", "tool_response": "tool",
            "function_response": "tool"} | dict.fromkeys(CALLS, "assistant")


def plain(message):
    """A message as templates expect it: without null values, and reasoning under its usual name."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def objects(place, name, value):
    """A list of objects, which tables often hold as JSON text, or None."""
    if isinstance(value, str):
        value = parse_json(value or "null", f"{place}: `{name}`")
    if isinstance(value, list):
        value = [parse_json(one, f"{place}: `{name}`") if isinstance(one, str) else one for one in value]
    if value is not None and not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
        raise DataError(f"{place}: `{name}` is not a list of objects")
    return value


def tools_of(place, record):
    """The tools of a record, or None."""
    return objects(place, "tools", record.get("tools"))


def messages_of(place, record):
    """The messages of a record: `messages`, or `conversations` as ShareGPT names them."""
    is_shared = record.get("messages") is None
    messages = record.get("conversations" if is_shared else "messages")
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{place}: `messages` is not a list of messages")
    result = [_message(f"{place}: message {number}", message) for number, message in enumerate(messages, 1)]
    # LLaMA-Factory keeps the system's message of a ShareGPT record in a separate field.
    if is_shared and record.get("system") and result[0]["role"] != "system":
        if not isinstance(record["system"], str):
            raise DataError(f"{place}: `system` is not a string")
        result.insert(0, {"role": "system", "content": record["system"]})
    return result


def _message(place, message):
    """A message of role and content."""
    if not isinstance(message, dict):
        raise DataError(f"{place} is not an object with `role` and `content`")
    role, content = "role", "content"
    if "from" in message and ("value" in message or "role" not in message):
        role, content = "from", "value"
    if not isinstance(message.get(role), str):
        raise DataError(f"{place} has no `{role}`")
    if message.get("function_call") is not None:
        raise DataError(f"{place} has `function_call`, which templates do not write: make it an entry of `tool_calls`")
    if message.get("tool_calls") is not None:
        message = message | {"tool_calls": objects(place, "tool_calls", message["tool_calls"])}
    # An assistant's message that calls tools may have no content.
    if message.get(content) is None and not message.get("tool_calls"):
        raise DataError(f"{place} has no `{content}`")
    text = json.dumps(message, ensure_ascii=False, default=str)
    if OPEN in text or CLOSE in text:
        raise DataError(f"{place} has a character that is no text (U+FDD0)")
    if role == "from":
        message = _from_sharegpt(place, message)
    elif message["role"] != "tool" and not _is_text(message.get("content")):
        raise DataError(f"{place}: `content` is neither a string nor a list of objects")
    return plain(message)


def _is_text(content):
    """Whether a content is absent, a text, or a list of parts."""
    return content is None or isinstance(content, str) or (
        isinstance(content, list) and all(isinstance(part, dict) for part in content))


def _from_sharegpt(place, message):
    """A message of `from` and `value` as one of role and content."""
    name, value = message["from"], message.get("value")
    if name not in SHAREGPT:
        raise DataError(f"{place} is from {name!r}, which is none of {', '.join(SHAREGPT)}")
    if value is not None and not isinstance(value, str):
        raise DataError(f"{place}: `value` is not a string")
    rest = {key: value for key, value in message.items() if key not in ("from", "value", "role", "content")}
    if name not in CALLS:
        return {"role": SHAREGPT[name], "content": value} | rest
    calls = parse_json(value, f"{place}: `value`")
    calls = objects(place, "value", calls if isinstance(calls, list) else [calls])
    if not all(isinstance(call.get("name"), str) for call in calls):
        raise DataError(f"{place}: `value` is no call: a JSON object with `name` and `arguments`")
    calls = [{"type": "function", "function": call} for call in calls]
    return {"role": "assistant", "content": "", "tool_calls": calls} | rest
