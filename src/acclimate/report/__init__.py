"""What a person looks at: tables and the HTML report, made from records."""
