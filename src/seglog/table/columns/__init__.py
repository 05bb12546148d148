"""Columns of a table: `column_types`, their changes (`evolution`), and how they were decoded (`pinned_formats`)."""
