"""``python -m llama_index_contextual`` is the command line."""

from llama_index_contextual.app.cli import main

if __name__ == "__main__":
    main()
