"""What an index keeps on disk, and how it is read and written so that nothing is lost."""
