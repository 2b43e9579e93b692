"""Judges requests by the types of the providers' own SDKs, each object closed.

Reads {"path", "body"}, one on a line, and tells each fault on a line. What servers take beside
those types is in `beyond.json`. For each protocol it also spoils one of the requests in several
ways, each of which must be found: a judge that refuses nothing is none.
"""

import copy
import json
import pathlib
import sys

from anthropic.types import message_create_params as anthropic
from google.genai import types as gemini
from jsonschema import Draft202012Validator
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses
from pydantic import TypeAdapter, create_model


def closed(node):
    """Lets no object have members that its type does not name."""
    if isinstance(node, dict):
        if "properties" in node:
            node.setdefault("additionalProperties", False)
        for inner in node.values():
            closed(inner)
    elif isinstance(node, list):
        for inner in node:
            closed(inner)
    return node


def judge(*kinds):
    schemas = [closed(TypeAdapter(kind).json_schema(by_alias=True)) for kind in kinds]
    return [Draft202012Validator(schema) for schema in schemas]


Generation = create_model(
    "Generation",
    contents=(list[gemini.Content], ...),
    systemInstruction=(gemini.Content | None, None),
    tools=(list[gemini.Tool] | None, None),
    toolConfig=(gemini.ToolConfig | None, None),
    generationConfig=(gemini.GenerationConfig | None, None),
)
JUDGES = {
    "responses": judge(
        responses.ResponseCreateParamsNonStreaming, responses.ResponseCreateParamsStreaming
    ),
    "completions": judge(
        chat.CompletionCreateParamsNonStreaming, chat.CompletionCreateParamsStreaming
    ),
    "messages": judge(
        anthropic.MessageCreateParamsNonStreaming, anthropic.MessageCreateParamsStreaming
    ),
    "generateContent": judge(Generation, Generation),
    "streamGenerateContent": judge(Generation, Generation),
}
# The members that hold the conversation.
CONVERSATIONS = ("input", "messages", "contents")


def protocol(path):
    return path.split("?")[0].replace(":", "/").split("/")[-1]


def faults_of(kind, body):
    # The stream of a body says which of the two types it has.
    return JUDGES[kind][body.get("stream") is True].iter_errors(body)


def within(body, beyond):
    """The same without the members that servers take beside the types."""
    body = copy.deepcopy(body)
    for path, members in beyond.items():
        places = [body]
        for key in filter(None, path.split("/")):
            places = [inner for place in places for inner in place.get(key, [])]
        for place in places:
            for member in members:
                place.pop(member, None)
    return body


def spoiled(body):
    """The same with a fault, in each of several ways."""
    yield "a member that is not known", {**body, "martian": 1}
    for key in CONVERSATIONS:
        if key not in body:
            continue
        for place in (0, -1):
            wrong = copy.deepcopy(body)
            wrong[key][place]["martian"] = "x"
            yield f"a member of {key}[{place}] that is not known", wrong
        yield f"{key} that is a number", {**body, key: 1}


def main():
    requests = [json.loads(line) for line in sys.stdin if line.strip()]
    beyond = json.loads(pathlib.Path(__file__).with_name("beyond.json").read_text())
    faults = []
    last = {}
    for number, request in enumerate(requests):
        kind = protocol(request["path"])
        last[kind] = body = within(request["body"], beyond.get(kind, {}))
        for error in faults_of(kind, body):
            place = "/".join(map(str, error.absolute_path))
            faults.append(f"request {number} {request['path']} {place}: {error.message[:500]}")
    for kind, body in last.items():
        for what, wrong in spoiled(body):
            if not any(faults_of(kind, wrong)):
                faults.append(f"the judge of {kind} does not see {what}")
    for fault in faults:
        print(fault)
    print(f"{len(requests)} requests of {', '.join(sorted(last))}", file=sys.stderr)
    sys.exit(1 if faults or not requests else 0)


main()
