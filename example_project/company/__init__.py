"""A small company's Django project, with three apps: expenses, shop, and live, which shows runs as they happen."""
