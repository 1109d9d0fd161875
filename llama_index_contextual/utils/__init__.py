"""What every part of the package needs: errors, metadata keys, text and languages, dates, tokens, SQLite files."""
