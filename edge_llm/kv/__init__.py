"""The only owner of key and value pages: who holds which page (`pages`), and what lies in it (`store`)."""
