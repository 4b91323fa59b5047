"""The recipe of one micro-batch on the driver, without Spark."""
