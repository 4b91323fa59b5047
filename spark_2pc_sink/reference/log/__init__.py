"""The log of one partition: what producers may append and what readers may see."""
