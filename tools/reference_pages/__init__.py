"""Pages of docs/reference and pictures that are made of the code: ``make reference-pages``. A test compares them."""
