"""The stream from tasks to the driver: COPY bytes and record batches over one authenticated TCP connection per task."""
