"""A small company's Django project, with two apps: expenses and shop."""
