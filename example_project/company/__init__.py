"""A small company's Django project, with one app: expenses."""
