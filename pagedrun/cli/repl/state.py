"""What the chat knows while it runs; commands read and change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.chat import ChatOptions
from pagedrun.cli import generate
from pagedrun.cli.repl.context import DropPlan, plan_drop
from pagedrun.cli.repl.conversation import Conversation
from pagedrun.cli.repl.output import Output
from pagedrun.cli.repl.settings import Settings
from pagedrun.cli.repl.stats import Stats

if TYPE_CHECKING:
    from pagedrun.chat import RenderedChat
    from pagedrun.cli.sessions.kept import Kept
    from pagedrun.request import GenerationRequest
    from pagedrun.service import Answerer


@dataclass(slots=True, kw_only=True)
class ChatState:
    """The conversation, the settings, the speeds, and the model that answers.

    saved_as: the file this conversation was saved to or loaded from. confirm: asks yes or no; None: nobody is there.
    keeps: the session that it is saved to by itself; None: there is none.
    """

    service: Answerer
    output: Output
    conversation: Conversation = field(default_factory=Conversation)
    settings: Settings = field(default_factory=Settings)
    stats: Stats = field(default_factory=Stats)
    saved_as: Path | None = None
    confirm: Callable[[str], bool] | None = None
    keeps: Kept | None = None

    @property
    def context_size(self) -> int:
        """Tokens a conversation can hold."""
        return self.service.limits.max_seq_len

    def request(self, conversation: Conversation, question: str) -> tuple[GenerationRequest, RenderedChat]:
        """The request that asks `question` next. Raises TemplateError."""
        options = ChatOptions(think=self.settings.value("think"))
        request, rendered = generate.chat_request(
            self.service, conversation.messages(question), options, self.settings.sampling()
        )
        return generate.limited(request, max_tokens=self.settings.value("max_tokens")), rendered

    def count(self, conversation: Conversation, question: str) -> int:
        """Tokens of the prompt that asks `question` next. Raises TemplateError."""
        return len(self.request(conversation, question)[0].prompt)

    def prompt(self, conversation: Conversation) -> tuple[int, ...]:
        """Tokens of the next prompt before anything is asked. Raises TemplateError."""
        return self.request(conversation, "")[0].prompt if conversation.messages() else ()

    def used(self) -> int:
        """Tokens of the context that the next prompt takes before anything is asked."""
        return len(self.prompt(self.conversation))

    def plan_drop(self, conversation: Conversation, question: str = "") -> DropPlan | None:
        """Which of the oldest turns would have to go for a comfortable answer; None when that cannot help."""
        return plan_drop(conversation, question, self.count, self.context_size)
