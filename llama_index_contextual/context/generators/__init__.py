"""The context generators that have a name: each file is one generator, called as its file is."""
