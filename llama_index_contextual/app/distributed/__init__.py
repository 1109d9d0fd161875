"""Who does the work of a refresh: this process, or others on Ray."""

from llama_index_contextual.app.distributed.ray_workers import RayWorkers

__all__ = ["RayWorkers"]
