"""Parts of atoll-data; see README.md."""
