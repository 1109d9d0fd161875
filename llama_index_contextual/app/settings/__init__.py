"""The settings of the application: what they are called, and the models that their names stand for."""
