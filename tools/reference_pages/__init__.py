"""Pages of docs/reference that are made of the code: ``make reference-pages``. A test compares them."""
