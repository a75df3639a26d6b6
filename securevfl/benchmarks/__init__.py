"""What `securevfl bench` runs; the scripts in bench/ only call it."""
