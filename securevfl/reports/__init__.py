"""What people read: tables in the terminal and JSON files."""
