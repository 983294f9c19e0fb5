"""Chat: messages to a prompt through the model's template, and the model's reply back to a message.

types         messages, options, what comes out; the protocols that `native.door` satisfies
templates     ChatTemplates: render messages, with tools, schemas and thinking as the model knows them
replies       ReplyParser: an answer's text, as it grows, into reasoning, content and tool calls
tool_prelude  tools for templates that know none
jinja         the second engine, for templates that llama.cpp's own cannot run
"""

from pagedrun.chat.replies import ReplyParser
from pagedrun.chat.templates import ChatTemplates
from pagedrun.chat.types import ChatOptions, Message, RenderedChat, ReplyDelta, ToolCall, ToolCallDelta

__all__ = [
    "ChatOptions",
    "ChatTemplates",
    "Message",
    "RenderedChat",
    "ReplyDelta",
    "ReplyParser",
    "ToolCall",
    "ToolCallDelta",
]
