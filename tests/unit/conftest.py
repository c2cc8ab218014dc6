"""How the properties are run: often enough to find, quickly enough to run at every save."""

from hypothesis import settings

settings.register_profile("unit", max_examples=40, deadline=None, database=None)
settings.load_profile("unit")
