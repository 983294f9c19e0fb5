"""Commands about model files: one module each, and what they share.

pull, search, listing, show, verify, path, rm    the commands (`listing` is `pagedrun list`)
show_text, show_json                             what `show` prints
fetching                                         a download with its lines and its progress
missing                                          a model that is named and not here: offered, fetched, or an error
"""
