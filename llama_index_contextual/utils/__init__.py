"""What every part of the package needs.

Errors, metadata keys, text and languages, dates, tokens, SQLite files.
"""
