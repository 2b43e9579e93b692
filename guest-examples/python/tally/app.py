"""Counts how often each word of a text occurs.

A tool over the world `tool-pure`: all that it imports is given to every component.
"""

# Everything is imported while the component is made: where it runs there are no files to load a
# module from. `Counter.most_common` loads heapq only when it is called.
import heapq  # noqa: F401
import json
from collections import Counter

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.tools import ToolCall, ToolResult
from wit_world.imports import log
from wit_world.imports.types import ToolError, ToolFailure, ToolHints, ToolSpec

INPUT = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The text."},
        "most": {"type": "integer", "minimum": 1, "description": "How many words to give."},
    },
    "required": ["text"],
    "additionalProperties": False,
}


class Tools(exports.Tools):
    """What the host calls."""

    def describe(self) -> list[ToolSpec]:
        return [
            ToolSpec(
                name="count",
                title="Count words",
                description="Counts how often each word of a text occurs, the most frequent first.",
                input_schema=json.dumps(INPUT),
                output_schema=None,
                hints=ToolHints(
                    read_only=True,
                    destructive=False,
                    idempotent=True,
                    terminal=False,
                    bounded=False,
                ),
                timeout=None,
                tags=["text"],
            )
        ]

    def call(self, call: ToolCall) -> ToolResult:
        arguments = json.loads(call.payload)
        counts = Counter(arguments["text"].lower().split())
        if not counts:
            raise Err(
                ToolFailure(
                    error=ToolError(
                        code="empty-text", message="there is no word in the text", causes=[]
                    ),
                    retry_hint=None,
                )
            )
        most = counts.most_common(arguments.get("most", 10))
        log.log(log.Level.DEBUG, f"{len(counts)} different words", [])
        value = json.dumps([{"word": word, "count": count} for word, count in most])
        return ToolResult(value=value, server_data=None, bounds=None, telemetry=None, media=[])
