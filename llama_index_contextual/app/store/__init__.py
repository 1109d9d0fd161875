"""The state of a folder index on disk: two SQLite files, arrays that are derived from them, and a lock."""
