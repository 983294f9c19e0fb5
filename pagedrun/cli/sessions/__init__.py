"""Named sessions on the command line.

command   pagedrun sessions list|show|rm|rename|export|import|gc
kept      what --session means to chat and complete: what was said, and saving it
"""
