"""The chat program behind `pagedrun chat`, in layers:

conversation  what was said: turns, system prompt, undo, drop; plain values
saved         a conversation as a JSON file
context       how much room the context has left, which turns would have to go
settings      what /set shows and changes, and where each value comes from
stats         speeds and memory, as /stats shows them
commands      the table of /commands
prompt        reading a line from a terminal or a pipe
markdown      markdown that can be printed block by block while it is still being written
live          the part of the screen that is redrawn
render        showing an answer while it is made
answer        one answer: submit, follow, interrupt
loop          all of it in a row
"""
