"""Settings of the application, and the embeddings and language models that they name."""
