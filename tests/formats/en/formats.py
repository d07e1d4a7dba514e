"""A form of moments that can be told from every other."""

DATETIME_FORMAT = r"\D\A\T\E\D Y, H:i"
SHORT_DATETIME_FORMAT = r"\S\H\O\R\T Y"
