"""The OpenAI-compatible server: HTTP in the event loop, answers from the engines' threads.

fields, chat_fields   bodies: what may be asked, and how what is wrong is said (errors, body, functions, calls, schemas)
asking                from an `Ask`, whatever API it came through, to the engine's requests (tokens: of texts)
answers, gate         events of the engine in the event loop (bridge, bell); how many may wait
http                  one request from its body to its last event; ends when the client leaves
thinking              whether the model can think, where a request asks it to
replies               what the responses of all APIs have in common
chat, completions     OpenAI's objects and chunks (chunks: what they share)
embeddings            vectors of texts
messages              Anthropic's, with messages_fields
responses             OpenAI's newer API, with responses_fields, responses_items and responses_store
own                   `chat` and `complete` of the same version through the server (direct), and their sessions (kept)
serving               one loaded model
models, served, mover which one a request means; loading, and giving memory back
tools, metrics, docs  tokens of texts, health, figures, a look inside, /docs
listing, views        /v1/models (model_infos: as Anthropic has it); the routes of all that is no answer
web                   the page at /
guard, app, run       keys and origins (request_id), routes, listening and stopping (ending: conversations are saved)

Imported by the command that serves only: FastAPI and pydantic take a while.
"""
